"""Records: one JSON document a stage and cell says what was made, from what, with digests.

`docs/record.schema.json` is their schema.
"""

import json
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field, PlainSerializer, ValidationError, WithJsonSchema

from core.causes import Cause
from core.cell import GroupCell, python_of_tag
from core.data import Model
from core.errors import DataError
from core.run import RunOutputs, is_record, key_name
from core.stores import Store

# The detail of a build's record that says whose wheel it has borrowed.
BORROWED = "borrowed"
# The detail of a build's record that names the family's gfx targets that it was told to leave out.
LEFT_OUT_TARGETS = "left_out_targets"


class FileRecord(Model):
    """A file that a stage made."""

    name: str
    key: str = Field("", description="Key in the store (empty where the file is not a run output)")
    size: int = Field(ge=0)
    sha256: str = Field(pattern=r"^[0-9a-f]{64}$")
    distribution: str = Field("", description="Normalised distribution name, for wheels and sdists")
    version: str = ""
    requires_python: str = Field("", description="A wheel's Requires-Python; empty for none")
    metadata_sha256: str = Field(
        "", description="Of a wheel's METADATA, which is its sidecar; empty for none"
    )
    license: str = Field("", description="As the wheel names it: an SPDX expression or words")


def _read_cell(stored: object) -> object:
    """Return the values of a cell as a record has them, with None for those that are absent."""
    if not isinstance(stored, dict):
        return stored
    known_names = _CELL_SCHEMA["properties"].keys()
    unknown_names = sorted(stored.keys() - known_names)
    if unknown_names:
        listed_names = ", ".join(map(str, unknown_names))
        raise ValueError(f"A cell has no {listed_names}")

    values: dict[str, object] = {}
    for name, value in stored.items():
        values[name] = None if value == "" else value
    # A cell's artifact group is called "group" in records.
    values["artifact_group"] = values.pop("group", None)

    tag = values.get("python")
    if isinstance(tag, str):
        values["python"] = python_of_tag(tag)
    return values


def _write_cell(cell: GroupCell) -> dict[str, str]:
    """Return a cell as a record has it: "" for what is absent, and the Python by its ABI tag."""
    return {
        "python": cell.python_tag or "",
        "torch_ref": cell.torch_ref or "",
        "gpu_family": cell.gpu_family or "",
        "build_variant": cell.build_variant or "",
        "group": cell.artifact_group or "",
    }


_CELL_SCHEMA: dict[str, Any] = {
    "additionalProperties": False,
    "description": "What a stage ran on; empty where it does not apply.",
    "properties": {
        "python": {"default": "", "description": "``cp312``", "type": "string"},
        "torch_ref": {"default": "", "type": "string"},
        "gpu_family": {"default": "", "type": "string"},
        "build_variant": {
            "default": "",
            "description": "Build variant; empty for the release build",
            "type": "string",
        },
        "group": {
            "default": "",
            "description": "Of several families, from which a test of one took its wheels",
            "type": "string",
        },
    },
    "type": "object",
}
_CELL_OF_NOTHING: dict[str, Any] = {**_write_cell(GroupCell())}
RecordedOn = Annotated[
    GroupCell,
    BeforeValidator(_read_cell),
    PlainSerializer(_write_cell),
    WithJsonSchema(_CELL_SCHEMA),
    Field(json_schema_extra={"default": _CELL_OF_NOTHING}),
]


class Record(Model):
    """What a stage made, from what."""

    schema_version: Literal[1] = 1
    stage: str
    status: Literal["ok", "failed"] = "ok"
    exit_code: int = Field(0, description="The front door's exit code: 0, or the error class's")
    error: str = Field("", description="The error's sentence, for a failed stage")
    cause: Cause | None = Field(None, description="The first error of the tool that made the stage fail")
    again: str = Field("", description="The command that does a failed stage once more; empty for none")
    log: str = Field("", description="Key of the log of the stage's tools; empty for none")
    run_id: str
    platform: str
    cell: RecordedOn = GroupCell()  # with an artifact group where that is not its own family's
    started: str = Field(description="ISO 8601, UTC")
    seconds: float = Field(ge=0, allow_inf_nan=False)
    inputs: dict[str, Any] = Field({}, description="Digests, commits, versions, settings")
    input_digest: str = Field("", description="Over canonical `inputs`: equal ones need no new run")
    files: tuple[FileRecord, ...] = ()
    details: dict[str, Any] = Field({}, description="Cache statistics, findings, test totals")

    @property
    def name(self) -> str:
        """The record's name within its artifact group."""
        return record_name(self.stage, self.cell)

    @property
    def edited(self) -> str:
        """Say that it was made from a tree with edits that are in no commit; "" where it was not."""
        source = self.details.get("source")
        if not source:
            source = self.inputs.get("source")
        match source:
            case {"diff": str(diff), "edited": int(count)} if diff:
                return edited_words(count)
            case {"diff": str(diff)} if diff:
                return "edited tree"
        return ""


def edited_words(count: int) -> str:
    """Say of a tree in how many files it differs from its commit."""
    if count == 0:
        return "no edits"
    if count == 1:
        return "edited tree, 1 file differs"
    return f"edited tree, {count} files differ"


def record_name(stage: str, cell: GroupCell) -> str:
    """Name a record: stage, ref and Python where the stage has them, one of a group's several families."""
    parts = [stage, cell.torch_ref, cell.python_tag]
    if cell.artifact_group is not None:
        parts.append(cell.gpu_family)

    present_parts = [part for part in parts if part]
    return key_name("-".join(present_parts))


def now() -> str:
    """Return this moment as ISO 8601 in UTC, to the second."""
    moment = datetime.now(UTC)
    return moment.isoformat(timespec="seconds")


def parse(text: str | bytes, *, where: str) -> Record:
    """Read a record; anything else, and another schema, is a `DataError`."""
    try:
        return Record.model_validate_json(text)
    except ValidationError as problem:
        raise _error_in_record(problem, where) from problem


def _error_in_record(problem: ValidationError, where: str) -> DataError:
    """Return the error for the first value of a record that is wrong."""
    first_error = problem.errors()[0]
    path = ".".join(map(str, first_error["loc"]))

    if path == "schema_version":
        written_version = first_error["input"]
        known_version = Record.model_fields["schema_version"].default
        return DataError(
            f"{where}: schema_version: It is a record of version {written_version!r}, and this version "
            f"reads {known_version}.",
            hint="Use the version of this tool that wrote it, or run the stage again with --force.",
        )
    key = path or "record"
    reason = first_error["msg"]
    return DataError(
        f"{where}: {key}: {reason}.",
        hint="Run the stage again with --force.",
    )


def serialize(record: Record) -> bytes:
    """Write a record as the JSON that the store keeps."""
    document = record.model_dump(mode="json")
    text = json.dumps(document, indent=2)
    return f"{text}\n".encode()


def read(store: Store, outputs: RunOutputs, artifact_group: str, name: str) -> Record | None:
    """Read a record of the run, if there is one."""
    key = outputs.record_key(artifact_group, name)
    if store.find(key) is None:
        return None
    document = store.read(key)
    return parse(document, where=key)


def read_all(store: Store, outputs: RunOutputs, artifact_group: str) -> Sequence[Record]:
    """Read all of a group's records, sorted by name; failures included."""
    prefix = outputs.manifests_prefix(artifact_group)
    group_records: list[Record] = []
    for stored in store.list(prefix):
        if is_record(stored.key):
            document = store.read(stored.key)
            group_records.append(parse(document, where=stored.key))
    return group_records


def latest(records: Sequence[Record]) -> Sequence[Record]:
    """Leave out the successes that a failure lies beside, as it is later."""
    failed_names = {record.name for record in records if record.status == "failed"}

    def has_failed_since(record: Record) -> bool:
        return record.status == "ok" and record.name in failed_names

    return [record for record in records if not has_failed_since(record)]


def promised(records: Sequence[Record]) -> Mapping[str, frozenset[str]]:
    """Return the digests that successful stages recorded, by key.

    A key has more than one where a file of the local run was uploaded over, or built again.
    """
    digests: dict[str, frozenset[str]] = {}
    for record in records:
        if record.status != "ok":
            continue
        for file in record.files:
            digests_of_key = digests.get(file.key, frozenset())
            digests[file.key] = digests_of_key | {file.sha256}
    return digests


def write(store: Store, outputs: RunOutputs, artifact_group: str, record: Record) -> None:
    """Put a record; a failure beside the last success, a success in the place of both."""
    document = serialize(record)
    if record.status == "failed":
        key_of_failure = failure_key(outputs, artifact_group, record)
        store.put_bytes(key_of_failure, document)
        return

    key = outputs.record_key(artifact_group, record.name)
    store.put_bytes(key, document)
    remove_failure(store, outputs, artifact_group, record)


def remove_failure(store: Store, outputs: RunOutputs, artifact_group: str, record: Record) -> None:
    """Delete what was recorded of a failure since a success that stands."""
    key_of_failure = failure_key(outputs, artifact_group, record)
    if store.find(key_of_failure) is not None:
        store.delete(key_of_failure)


def failure_key(outputs: RunOutputs, artifact_group: str, record: Record) -> str:
    """Return the key of a failure since a success, which lies beside the success's record."""
    name = f"{record.name}.failed"
    return outputs.record_key(artifact_group, name)
