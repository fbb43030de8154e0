"""TOML and JSON that people edit or stages exchange, read into frozen pydantic models.

Every problem of a file is reported at once, each with its key path, and an unknown key
with the known one that it is nearest to.
"""

from __future__ import annotations

import functools
import json
import re
import tomllib
import types
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import date  # noqa: TC003 - pydantic reads it
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Self, TypeVar, cast, get_args, get_origin, get_type_hints

from pydantic import BaseModel, BeforeValidator, Field, PlainSerializer, ValidationError, WithJsonSchema

from core import files
from core.errors import DataError, MachineError, MissingInputError, nearest

if TYPE_CHECKING:
    from pydantic_core import ErrorDetails

_ROOT = Path(__file__).resolve().parents[1]
# TOML's keys that need no quotes.
_BARE_KEY = re.compile(r"[\w-]*")


# Built at first use: a front door imports more models than it reads.
class Model(BaseModel, frozen=True, extra="forbid", defer_build=True):
    """A frozen model that refuses keys it does not know."""


class Document(Model):
    """A model that is kept as a JSON file of its own."""

    def digest(self) -> str:
        """Hash what it says: the hex SHA-256 of its canonical JSON."""
        return files.digest_of(self.model_dump(mode="json", by_alias=True))

    def write(self, path: Path) -> None:
        """Write it as JSON, atomically; the same document gives the same bytes."""
        files.write_json(path, self.model_dump(mode="json", by_alias=True))

    @classmethod
    def read(cls, path: Path) -> Self:
        """Read what `write` wrote.

        Raises:
            MissingInputError: There is no such file.
            DataError: It is not such a document.
        """
        return parse_json(read_text(path), cls, where=path)


def compact(value: object) -> str:
    """Write JSON on one line, as job outputs and variables hold it; dates as texts."""
    return json.dumps(
        value,
        separators=(",", ":"),
        ensure_ascii=False,
        default=str,
    )


def _none_for_empty(text: object) -> object:
    return None if text == "" else text


# None in code, "" in the document.
OptionalText = Annotated[
    str | None,
    BeforeValidator(_none_for_empty),
    PlainSerializer(lambda text: text or "", return_type=str),
    WithJsonSchema({"type": "string"}),
    Field(json_schema_extra={"default": ""}),
]


class Dated(Model):
    """Data about others that grows old: `checked` with its source, to be checked again after `days`."""

    checked: date
    days: int = Field(gt=0)

    def overdue(self, today: date) -> str:
        """Return how old the data is, if that is too old, else ""."""
        age = (today - self.checked).days
        if age <= self.days:
            return ""
        return f"{age} days old, where {self.days} are allowed"


AnyModel = TypeVar("AnyModel", bound=BaseModel)
Result = TypeVar("Result")


def load_toml(path: Path, model: type[AnyModel]) -> AnyModel:
    """Read a TOML file into `model`; a text that was read before gives the same value again."""
    text = read_text(path)
    document = _validated_text(text, path, model)
    return cast("AnyModel", document)


# Parsing takes far longer than reading, and one process asks for a file many times.
@functools.lru_cache(maxsize=128)
def _validated_text(
    text: str,
    path: Path,
    model: type[BaseModel],
) -> BaseModel:
    tables = parse_toml(text, where=path)
    return validated(tables, model, where=path)


# What the user's one file says of each of the project's files: in a table of this name, or, where it is "",
# in tables that have the same names as the file's own.
LAYERED: Mapping[Path, str] = types.MappingProxyType(
    {
        _ROOT / "pytorch_build/refs/refs.toml": "",
        _ROOT / "core/families.toml": "",
        _ROOT / "ci/families.toml": "",
        _ROOT / "ci/runners.toml": "runners",
        _ROOT / "ci/matrix.toml": "matrix",
        _ROOT / "ci/triggers.toml": "triggers",
        _ROOT / "ci/rocm.toml": "rocm",
        _ROOT / "ci/buckets.toml": "buckets",
        _ROOT / "ci/upload.toml": "upload",
        _ROOT / "ci/promote/gates.toml": "promotion",
        _ROOT / "pytorch_build/build/needs.toml": "needs",
        _ROOT / "pytorch_build/check/policy.toml": "checks",
    }
)
# Files about one repository: a table of the user's that names another one takes the place of the whole file,
# as what upstream has is not the user's. These tables of it stay, which name nothing that a run writes to.
_KeyPath = tuple[str, ...]
_OF_ONE_REPOSITORY: Mapping[Path, tuple[_KeyPath, ...]] = types.MappingProxyType(
    {
        _ROOT / "ci/buckets.toml": (
            ("products",),
            ("distributions", "rehearsal"),
        ),
    }
)
_REPOSITORY = "repository"
_SAME_NAMES = ("default", "refs", "targets", "families", "variants", "expect_failure")


@dataclass(frozen=True)
class UserFile:
    """The user's file as this process read it; without a file the project's data holds as it is."""

    file: Path | None = None
    text: str = ""

    @functools.cached_property
    def tables(self) -> Mapping[str, Any]:
        """What it says. Its top-level names are checked here, and its tables where they are read."""
        tables = parse_toml(self.text, where=self.file or "")
        for name, value in tables.items():
            fault = _fault_of_top_level(name, value)
            if fault is not None:
                raise DataError(f"{self.file}: {name}: {fault}", hint=f"Correct {self.file}.")
        return tables


def _fault_of_top_level(name: str, value: object) -> str | None:
    """Return what is wrong with a top-level key of the user's file, None where nothing is."""
    table_names = [table for table in LAYERED.values() if table]
    known_names = [*_SAME_NAMES, *table_names]
    if name not in known_names:
        return f"unknown key. {nearest(name, known_names)}"
    if name in table_names and not isinstance(value, dict):
        return f"this is a table, [{name}]."
    return None


_in_use = [UserFile()]


def use_user_file(file: Path | None) -> None:
    """Read this file over the project's from now on, or none; front doors do (`core.cli.options`)."""
    if file is None:
        _in_use[0] = UserFile()
        return
    text = read_text(file)
    _in_use[0] = UserFile(file, text)


def user_file() -> UserFile:
    """Return the user's file that is in use."""
    return _in_use[0]


def cached_by_user_file(read: Callable[[], Result]) -> Callable[[], Result]:
    """Return a function that reads once for each user's file in use, which may change what is read."""

    # The argument is what results are kept by.
    @functools.cache
    def read_for(_user_file: UserFile) -> Result:
        return read()

    return lambda: read_for(user_file())


def data_file(path: Path, model: type[AnyModel]) -> Callable[[], AnyModel]:
    """Return the function that reads a data file, once, with the user's own over it if it is `LAYERED`."""

    @cached_by_user_file
    def read() -> AnyModel:
        tables = _project_tables(path)
        file = user_file().file
        user_tables = tables_of_user(path, model)
        if file is None or not user_tables:
            return validated(tables, model, where=path)
        merged_tables = merge_tables(tables, user_tables)
        return validated(
            merged_tables,
            model,
            where=file,
            table_name=LAYERED[path],
        )

    return read


def _project_tables(path: Path) -> dict[str, Any]:
    """Return what one of the project's files says, as far as the user's file does not take its place."""
    tables = read_toml(path)
    if not _is_of_other_repository(path, tables):
        return tables

    kept_tables: dict[str, Any] = {}
    for names in _OF_ONE_REPOSITORY[path]:
        kept_tables = merge_tables(kept_tables, _selected(tables, names))
    return kept_tables


def _is_of_other_repository(path: Path, tables: Mapping[str, Any]) -> bool:
    """Return whether a file is about one repository, and the user's about another one."""
    if path not in _OF_ONE_REPOSITORY:
        return False
    table_name = LAYERED[path]
    user_tables = user_file().tables.get(table_name) or {}
    repository = user_tables.get(_REPOSITORY)
    return repository is not None and repository != tables[_REPOSITORY]


def _selected(tables: Mapping[str, Any], names: Sequence[str]) -> dict[str, Any]:
    """Return tables with nothing but the one that these names lead to."""
    name, *inner_names = names
    selected_table = tables[name]
    if inner_names:
        selected_table = _selected(selected_table, inner_names)
    return {name: selected_table}


def tables_of_user(path: Path, model: type[BaseModel]) -> Mapping[str, Any]:
    """Return what the user's file says of one of the project's."""
    if path not in LAYERED:
        return {}
    tables = user_file().tables
    table_name = LAYERED[path]
    if table_name:
        return tables.get(table_name) or {}
    return {name: tables[name] for name in model.model_fields if name in tables}


@dataclass(frozen=True, kw_only=True)
class Value:
    """One value in force, and the file that says it; `instead_of` is the project's own."""

    key: str
    value: Any
    where: str
    instead_of: Value | None = None


def in_force() -> Mapping[str, Value]:
    """Return every value of the `LAYERED` files by key path, or the user's in its place; those last."""
    values: dict[str, Value] = {}
    for file, table_name in LAYERED.items():
        where = str(file.relative_to(_ROOT))
        for path, value in _leaves(_project_tables(file)):
            if table_name:
                path.insert(0, table_name)
            elif path[0] not in _SAME_NAMES:
                continue
            key = key_path(path)
            values[key] = Value(
                key=key,
                value=value,
                where=where,
            )

    file_of_user = str(user_file().file)
    for path, value in _leaves(user_file().tables):
        key = key_path(path)
        replaced_value = values.pop(key, None)
        values[key] = Value(
            key=key,
            value=value,
            where=file_of_user,
            instead_of=replaced_value,
        )
    return values


def _leaves(tables: Mapping[str, Any]) -> Iterator[tuple[list[str], Any]]:
    """Yield each value in tables with the names that lead to it."""
    for name, value in tables.items():
        if isinstance(value, dict) and value:
            for path, inner_value in _leaves(value):
                yield [name, *path], inner_value
        else:
            yield [name], value


def read_toml(path: Path) -> dict[str, Any]:
    """Read a TOML file without checking what it holds."""
    return parse_toml(read_text(path), where=path)


def read_text(path: Path) -> str:
    """Read a UTF-8 file, without the byte order mark that editors of Windows put before it."""
    try:
        text = files.read_regular(path).decode("utf-8-sig")
    except MachineError as problem:
        raise MissingInputError(problem.message, hint=problem.hint) from problem
    except UnicodeDecodeError as problem:
        raise DataError(f"{path} is not UTF-8: {problem.reason} at byte {problem.start}.") from problem
    return text.replace("\r\n", "\n").replace("\r", "\n")


def parse_toml(text: str, *, where: Path | str) -> dict[str, Any]:
    """Parse TOML text that came from `where`."""
    try:
        return tomllib.loads(text)
    except tomllib.TOMLDecodeError as problem:
        raise DataError(f"{where} is not valid TOML: {problem}.", hint=f"Correct {where}.") from problem


def parse_json(
    text: str,
    model: type[AnyModel],
    *,
    where: Path | str,
) -> AnyModel:
    """Read JSON text that came from `where` into `model`."""
    try:
        return model.model_validate_json(text)
    except ValidationError as problem:
        raise _as_data_error(problem, model, where) from problem


def json_object(
    text: str,
    *,
    where: str,
    hint: str = "",
) -> dict[str, Any]:
    """Read a JSON object of any shape that came from `where`."""
    try:
        value = json.loads(text)
    except (ValueError, RecursionError) as problem:
        raise DataError(f"{where} is not JSON: {problem}.", hint=hint) from problem
    if not isinstance(value, dict):
        raise DataError(f"{where} is not a JSON object.", hint=hint)
    return value


def validated(
    value: Mapping[str, Any],
    model: type[AnyModel],
    *,
    where: Path | str,
    table_name: str = "",
) -> AnyModel:
    """Check plain data from `where` against `model`; key paths begin with the table's name."""
    try:
        return model.model_validate(value)
    except ValidationError as problem:
        raise _as_data_error(problem, model, where, table_name) from problem


def merge_tables(
    base: Mapping[str, Any],
    overlay: Mapping[str, Any],
    *,
    adding: bool = False,
) -> dict[str, Any]:
    """Put tables over others: tables are merged, other values replaced; with `adding`, lists go before."""
    tables = dict(base)
    for key, value in overlay.items():
        base_value = tables.get(key)
        if isinstance(base_value, dict) and isinstance(value, dict):
            tables[key] = merge_tables(base_value, value, adding=adding)
        elif adding and isinstance(base_value, list) and isinstance(value, list):
            tables[key] = [*value, *base_value]
        else:
            tables[key] = value
    return tables


def _as_data_error(
    problem: ValidationError,
    model: type[BaseModel],
    where: Path | str,
    table_name: str = "",
) -> DataError:
    faults = _innermost_errors(problem)
    sentences = [_sentence(error, model, table_name) for error in faults]
    hint = f"Correct {where}."
    if len(sentences) == 1:
        return DataError(f"{where}: {sentences[0]}", hint=hint)

    headline = f"{where} has {len(sentences)} problems:"
    message = "\n  ".join([headline, *sentences])
    return DataError(message, hint=hint)


def _innermost_errors(problem: ValidationError) -> Sequence[ErrorDetails]:
    """Return what is wrong, without what is said of lists and tables: that follows from what is inside."""
    errors = problem.errors(include_url=False)
    outer_locations: set[tuple[int | str, ...]] = set()
    for error in errors:
        location = error["loc"]
        for length in range(len(location)):
            outer_locations.add(location[:length])
    return [error for error in errors if error["loc"] not in outer_locations]


def _sentence(
    error: ErrorDetails,
    model: type[BaseModel],
    table_name: str,
) -> str:
    """Return what is wrong with one value, behind its key path."""
    location = [step for step in error["loc"] if step != "[key]"]
    fault = _fault(error, model, location)
    is_by_validator = error["type"] in {"value_error", "assertion_error"}
    if is_by_validator and not location:
        # It is about the whole document, and names what it is about.
        return fault

    if table_name:
        location.insert(0, table_name)
    return f"{key_path(location)}: {fault}"


def _fault(
    error: ErrorDetails,
    model: type[BaseModel],
    location: Sequence[str | int],
) -> str:
    """Return what is wrong with the value at a location."""
    value = error["input"]
    message = error["msg"]
    fault = f"{message} (it is {value!r})."
    match error["type"]:
        case "extra_forbidden":
            *outer_location, key = location
            known_keys = _keys_at(model, outer_location)
            fault = f"unknown key. {nearest(str(key), known_keys)}"
        case "missing":
            fault = "this key is missing."
        case "json_invalid":
            reason = message.removeprefix("Invalid JSON: ")
            fault = f"not valid JSON: {reason}."
        case "value_error":
            fault = message.removeprefix("Value error, ")
        case "assertion_error":
            fault = message.removeprefix("Assertion failed, ")
        case "literal_error":
            listing = error["ctx"]["expected"]
            known_values = re.findall(r"'([^']*)'", listing)
            fault = f"{value!r} is not known. {nearest(str(value), known_values)}"
        case "dict_type" | "model_type":
            fault = f"this is a table, not {value!r}."
    return fault


def key_path(location: Sequence[str | int]) -> str:
    """Write a location for people: ``refs."release/2.9".audio.origin``, ``features[2].name``."""
    path = ""
    for step in location:
        if isinstance(step, int):
            path += f"[{step}]"
            continue
        if path:
            path += "."
        is_bare = _BARE_KEY.fullmatch(step) is not None
        path += step if is_bare else f'"{step}"'
    return path or "the file"


def _keys_at(annotation: Any, location: Sequence[str | int]) -> set[str]:  # noqa: ANN401 - any type
    """Return the keys that are known at a location of a value of this type."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return _keys_in_model(annotation, location)

    origin = get_origin(annotation)
    is_container = origin in (list, tuple) or hasattr(origin, "keys")
    # A step leads into a list or table. Alternatives (``X | None``) are on the same level.
    inner_location = location[1:] if is_container else location
    keys: set[str] = set()
    for alternative in get_args(annotation):
        keys |= _keys_at(alternative, inner_location)
    return keys


def _keys_in_model(model: type[BaseModel], location: Sequence[str | int]) -> set[str]:
    """Return the keys of a model, or those at a location inside of it."""
    annotation_by_key: dict[str, Any] = {}
    for name, field in model.model_fields.items():
        key = field.alias or name
        annotation_by_key[key] = field.annotation
    if not location:
        return set(annotation_by_key)

    key, *inner_location = map(str, location)
    # Keys that a model has beside its fields all have the type that it says of them.
    other_keys = get_type_hints(model).get("__pydantic_extra__")
    if key not in annotation_by_key and other_keys is not None:
        return _keys_at(other_keys, location)
    return _keys_at(annotation_by_key.get(key), inner_location)
