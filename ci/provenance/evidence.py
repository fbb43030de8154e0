"""What a run knows of one file: records that name it, and its statement."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ci.promote.documents import document
from ci.promote.run_records import Recorded
from ci.promote.staging import python_of
from ci.provenance.checking import AGAIN, Statement
from ci.provenance.names import statement_path
from core import data, parallel
from core.errors import DataError, FatalError, InterruptedStageError, MissingInputError
from core.run import records
from core.run.outputs import is_record
from pytorch_build.refs.torch_refs import DISTRIBUTIONS
from rocm_packaging.packages.layouts import is_rocm

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ci.provenance.places import RunPlace
    from core.run.records import FileRecord, Record

_MANIFESTS = "manifests"
_RECORD = re.compile(rf"{_MANIFESTS}/[^/]+/[^/]+")
_NAME_THE_RUN = "Name the run with --run-id and --store, or verify the file where the run has it."


@dataclass(frozen=True, kw_only=True)
class Evidence:
    """What a run knows of a file."""

    promised: tuple[tuple[Recorded, FileRecord], ...]
    run: RunPlace

    def statement(self, by: Recorded, name: str) -> tuple[Statement | None, str]:
        """Read the statement that lies by a record's group; None where there is none; and its path."""
        path = statement_path(_group_of(by.document.key), name)
        return read_statement(self.run, path), path


def _group_of(key: str) -> str:
    return key.rpartition("/")[0].rpartition("/")[2]


def read_statement(run: RunPlace, path: str) -> Statement | None:
    """Read a statement; None where there is none."""
    content = run.read(path)
    if content is None:
        return None
    return data.parse_json(content.decode(errors="replace"), Statement, where=f"{run.url}/{path}")


def gather(run: RunPlace, file: FileRecord, group: str) -> Evidence:
    """Find the records that name a file."""
    listed = run.paths(_MANIFESTS)
    if listed is None:
        return Evidence(promised=(_by_statement(run, file.name, group),), run=run)
    paths = [path for path in listed if is_record(path) and _RECORD.fullmatch(path)]
    if group:
        paths = [path for path in paths if _group_of(path) == group]
    found, problems = [], []
    for one in parallel.each(lambda path: _read(run, path), paths):
        if isinstance(one, FatalError):
            problems.append(one)
        else:
            found.append(one)
    promised = [
        (by, said)
        for by in found
        for said in (by.record.files if by.record.status == "ok" else ())
        if said.name == file.name
    ]
    if not promised:
        raise _absent(run, file, [by.record for by in found], problems)
    promised.sort(key=lambda pair: not pair[0].record.stage.startswith("build_"))
    return Evidence(promised=tuple(promised), run=run)


def _read(run: RunPlace, path: str) -> Recorded | DataError:
    content = run.read(path)
    try:
        # one that is gone since it was listed says nothing
        return _recorded(path, content or b"")
    except DataError as problem:
        return problem


def _recorded(path: str, content: bytes) -> Recorded:
    return Recorded(record=records.parse(content, where=path), document=document(path, content))


def _by_statement(run: RunPlace, name: str, group: str) -> tuple[Recorded, FileRecord]:
    """Find a file's record by its statement, where nothing can be listed."""
    path = statement_path(group, name)
    statement = read_statement(run, path)
    if statement is None:
        raise MissingInputError(f"{name} has no statement {run.url}/{path}.", hint=f"{AGAIN} {_NAME_THE_RUN}")
    where = statement.record_path
    content = run.read(where) if where else None
    if content is None:
        raise MissingInputError(
            f"The record that {name} and its statement follow from is missing: {run.url}/{where}.",
            hint="Whoever took it away took away what the file can be held against.",
        )
    by = _recorded(where, content)
    said = next((one for one in by.record.files if one.name == name), None)
    if said is None:
        raise MissingInputError(f"The record {run.url}/{where} does not name {name}.", hint=AGAIN)
    return by, said


def _absent(
    run: RunPlace, file: FileRecord, found: Sequence[Record], problems: Sequence[FatalError]
) -> FatalError:
    """Say why no record names a file: one is unreadable, its build ended early, or there never was one."""
    if problems:
        return problems[0]
    failed = next((one for one in found if one.status == "failed" and _would_make(one, file)), None)
    if failed is not None:
        interrupted = failed.exit_code == InterruptedStageError.exit_code
        how = "was interrupted" if interrupted else f"failed ({failed.error.splitlines()[0]})"
        return MissingInputError(
            f"No record of {run.url} names {file.name}: {failed.stage}, begun {failed.started}, {how}.",
            hint=f"Run it again: nox -s {failed.stage}. A file that it left is not one of the run.",
        )
    return MissingInputError(f"No record of {run.url} names {file.name}.", hint=_NAME_THE_RUN)


def _would_make(record: Record, file: FileRecord) -> bool:
    """Say whether a stage's success would have made a file like this one."""
    if record.stage == "build_rocm":
        return is_rocm(file.distribution)
    made = DISTRIBUTIONS.get(record.stage.removeprefix("build_"), "")
    of_project = file.distribution == made or file.distribution.startswith(f"amd-{made}-device-")
    return bool(made) and of_project and record.cell.python in {"", python_of(file.name)}
