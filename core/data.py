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
from typing import TYPE_CHECKING, Annotated, Any, Self, TypeVar, cast, get_args, get_origin

from pydantic import BaseModel, BeforeValidator, Field, PlainSerializer, ValidationError, WithJsonSchema

from core import files
from core.errors import DataError, MissingInputError, nearest

if TYPE_CHECKING:
    from pydantic_core import ErrorDetails

_ROOT = Path(__file__).resolve().parents[1]


# built at first use: a front door imports more models than it reads
class Model(BaseModel, frozen=True, extra="forbid", defer_build=True):
    """A frozen model that refuses keys it does not know."""


class Document(Model):
    """A model that is kept as a JSON file of its own."""

    def digest(self) -> str:
        """Hash what it says: the hex SHA-256 of its canonical JSON."""
        return files.digest_of(self.model_dump(mode="json"))

    def write(self, path: Path) -> None:
        """Write it as JSON, atomically; the same document gives the same bytes."""
        files.write_json(path, self.model_dump(mode="json"))

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
    return json.dumps(value, separators=(",", ":"), ensure_ascii=False, default=str)


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
        return f"{age} days old, where {self.days} are allowed" if age > self.days else ""


AnyModel = TypeVar("AnyModel", bound=BaseModel)
Result = TypeVar("Result")


def load_toml(path: Path, model: type[AnyModel]) -> AnyModel:
    """Read a TOML file into `model`; a text that was read before gives the same value again."""
    return cast("AnyModel", _validated_text(read_text(path), path, model))


# Parsing takes far longer than reading, and one process asks for a file many times.
@functools.lru_cache(maxsize=128)
def _validated_text(text: str, path: Path, model: type[BaseModel]) -> BaseModel:
    return validated(parse_toml(text, where=path), model, where=path)


# Of each of the project's files that the user's one file goes over: the table of that file which does, or
# "" where both have tables of the same names.
LAYERED: Mapping[Path, str] = types.MappingProxyType(
    {
        **{_ROOT / f"{one}.toml": "" for one in ("pytorch_build/refs/refs", "core/families", "ci/families")},
        **{_ROOT / f"ci/{one}.toml": one for one in ("runners", "matrix", "triggers")},
        **{_ROOT / f"ci/{one}.toml": one for one in ("rocm", "buckets", "upload")},
        _ROOT / "ci/promote/gates.toml": "promotion",
        _ROOT / "pytorch_build/build/needs.toml": "needs",
    }
)
# Files about one repository: a table of the user's that names another one takes the place of the whole file,
# as what upstream has is not the user's. These tables of it stay, which name nothing that a run writes to.
_OF_ONE_REPOSITORY: Mapping[Path, tuple[tuple[str, ...], ...]] = types.MappingProxyType(
    {_ROOT / "ci/buckets.toml": (("products",), ("distributions", "rehearsal"))}
)
_REPOSITORY = "repository"
_SAME_NAMES = ("default", "refs", "targets", "families", "variants", "expect_failure")


@dataclass(frozen=True)
class Own:
    """The user's file as this process read it; without a file the project's data holds as it is."""

    file: Path | None = None
    text: str = ""

    @functools.cached_property
    def tables(self) -> Mapping[str, Any]:
        """What it says. Its top-level names are checked here, and its tables where they are read."""
        known = (*_SAME_NAMES, *filter(None, LAYERED.values()))
        tables = parse_toml(self.text, where=self.file or "")
        for name, value in tables.items():
            said = "" if name in known else f"unknown key. {nearest(name, known)}"
            if name not in _SAME_NAMES and not isinstance(value, dict):
                said = said or f"this is a table, [{name}]."
            if said:
                raise DataError(f"{self.file}: {name}: {said}", hint=f"Correct {self.file}.")
        return tables


_in_use = [Own()]


def use_own(file: Path | None) -> None:
    """Read this file over the project's from now on, or none; front doors do (`core.cli.options`)."""
    _in_use[:] = [Own(file, read_text(file)) if file else Own()]


def own() -> Own:
    """Return the user's file that is in use."""
    return _in_use[0]


def once(read: Callable[[], Result]) -> Callable[[], Result]:
    """Read what the user's file may change once for each such file."""
    known = functools.cache(lambda _own: read())
    return lambda: known(own())


def data_file(path: Path, model: type[AnyModel]) -> Callable[[], AnyModel]:
    """Return the function that reads a data file, once, with the user's own over it if it is `LAYERED`."""

    @once
    def read() -> AnyModel:
        over, file = own_part(path, model), own().file
        where, under = (file, LAYERED[path]) if over and file else (path, "")
        return validated(merged(_project_tables(path), over), model, where=where, under=under)

    return read


def _project_tables(path: Path) -> dict[str, Any]:
    """Return what one of the project's files says, as far as the user's file does not take its place."""
    tables = read_toml(path)
    if not _is_of_other_repository(path, tables):
        return tables

    kept_tables: dict[str, Any] = {}
    for key in _OF_ONE_REPOSITORY[path]:
        table: Any = tables
        for name in key:
            table = table[name]
        for name in reversed(key):
            table = {name: table}
        kept_tables = merged(kept_tables, table)
    return kept_tables


def _is_of_other_repository(path: Path, tables: Mapping[str, Any]) -> bool:
    """Return whether a file is about one repository, and the user's about another one."""
    if path not in _OF_ONE_REPOSITORY:
        return False
    repository = (own().tables.get(LAYERED[path]) or {}).get(_REPOSITORY)
    return repository is not None and repository != tables[_REPOSITORY]


def own_part(path: Path, model: type[BaseModel]) -> Mapping[str, Any]:
    """Return what the user's file says of one of the project's."""
    table, tables = LAYERED.get(path), own().tables
    if table:
        return tables.get(table) or {}
    return {} if table is None else {one: tables[one] for one in model.model_fields if one in tables}


@dataclass(frozen=True, kw_only=True)
class Value:
    """One value in force, and the file and line that says it; `instead_of` is the project's own."""

    key: str
    value: Any
    where: str
    instead_of: Value | None = None


def in_force() -> Mapping[str, Value]:
    """Return every value of the `LAYERED` files by key path, or the user's in its place; those last."""
    found: dict[str, Value] = {}
    for file, table in LAYERED.items():
        is_replaced = _is_of_other_repository(file, read_toml(file))
        for path, value, line in _values(read_text(file)):
            if is_replaced and not _is_kept(file, path):
                continue
            if table or path[0] in _SAME_NAMES:
                key = key_path((*filter(None, [table]), *path))
                found[key] = Value(key=key, value=value, where=f"{file.relative_to(_ROOT)}:{line}")
    for path, value, line in _values(own().text):
        key, where = key_path(path), f"{own().file}:{line}"
        found[key] = Value(key=key, value=value, where=where, instead_of=found.pop(key, None))
    return found


def _is_kept(file: Path, path: Sequence[str]) -> bool:
    """Return whether a value of a file about one repository holds for every other one, too."""
    return any(tuple(path[: len(key)]) == key for key in _OF_ONE_REPOSITORY[file])


def _values(text: str) -> Iterator[tuple[tuple[str, ...], Any, int]]:
    """Yield each value of a TOML text with its key path and the line that it begins at."""
    lines: dict[tuple[str, ...], int] = {}
    header, statement, begun = "", "", 0
    for number, line in enumerate(text.splitlines(), 1):
        begun = begun if statement else number
        statement += f"{line}\n"
        try:
            tables = tomllib.loads(statement if statement.startswith("[") else f"{header}{statement}")
        except tomllib.TOMLDecodeError:
            continue  # it goes on in the next line
        for path, _ in _leaves(tables):
            lines.setdefault(path, begun)
        header = statement if statement.startswith("[") else header
        statement = ""
    yield from ((path, value, lines[path]) for path, value in _leaves(tomllib.loads(text)))


def _leaves(tables: Mapping[str, Any], path: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], Any]]:
    for name, value in tables.items():
        if isinstance(value, dict) and value:
            yield from _leaves(value, (*path, name))
        else:
            yield (*path, name), value


def read_toml(path: Path) -> dict[str, Any]:
    """Read a TOML file without checking what it holds."""
    return parse_toml(read_text(path), where=path)


def read_text(path: Path) -> str:
    """Read a UTF-8 file."""
    try:
        return path.read_text(encoding="utf-8")
    except OSError as problem:
        raise MissingInputError(f"{path} cannot be read: {problem.strerror}.") from problem
    except UnicodeDecodeError as problem:
        raise DataError(f"{path} is not UTF-8: {problem.reason} at byte {problem.start}.") from problem


def parse_toml(text: str, *, where: Path | str) -> dict[str, Any]:
    """Parse TOML text that came from `where`."""
    try:
        return tomllib.loads(text)
    except tomllib.TOMLDecodeError as problem:
        raise DataError(f"{where} is not valid TOML: {problem}.", hint=f"Correct {where}.") from problem


def parse_json(text: str, model: type[AnyModel], *, where: Path | str) -> AnyModel:
    """Read JSON text that came from `where` into `model`."""
    try:
        return model.model_validate_json(text)
    except ValidationError as problem:
        raise _as_data_error(problem, model, where) from problem


def json_object(text: str, *, where: str, hint: str = "") -> dict[str, Any]:
    """Read a JSON object of any shape that came from `where`."""
    try:
        value = json.loads(text)
    except (ValueError, RecursionError) as problem:
        raise DataError(f"{where} is not JSON: {problem}.", hint=hint) from problem
    if not isinstance(value, dict):
        raise DataError(f"{where} is not a JSON object.", hint=hint)
    return value


def validated(
    value: Mapping[str, Any], model: type[AnyModel], *, where: Path | str, under: str = ""
) -> AnyModel:
    """Check plain data from `where` against `model`; key paths begin with the table that it is `under`."""
    try:
        return model.model_validate(value)
    except ValidationError as problem:
        raise _as_data_error(problem, model, where, under) from problem


def merged(base: Mapping[str, Any], over: Mapping[str, Any], *, adding: bool = False) -> dict[str, Any]:
    """Put tables over others: tables are merged, other values replaced; with `adding`, lists go before."""
    result = dict(base)
    for key, value in over.items():
        match result.get(key), value:
            case dict() as inner, dict():
                result[key] = merged(inner, value, adding=adding)
            case list() as inner, list() if adding:
                result[key] = [*value, *inner]
            case _:
                result[key] = value
    return result


def _as_data_error(
    problem: ValidationError, model: type[BaseModel], where: Path | str, under: str = ""
) -> DataError:
    errors = problem.errors(include_url=False)
    within = {error["loc"][:length] for error in errors for length in range(len(error["loc"]))}
    # what is said of a list or table follows from what is wrong inside
    lines = [_sentence(error, model, under) for error in errors if error["loc"] not in within]
    several = "\n  ".join((f" has {len(lines)} problems:", *lines))
    return DataError(f"{where}{several if lines[1:] else f': {lines[0]}'}", hint=f"Correct {where}.")


def _sentence(error: ErrorDetails, model: type[BaseModel], under: str) -> str:
    location = [step for step in error["loc"] if step != "[key]"]
    path = key_path((*([under] if under else []), *location))
    given = error["input"]
    match error["type"]:
        case "extra_forbidden":
            said = f"unknown key. {nearest(str(location[-1]), _known_keys(model, location[:-1]))}"
        case "missing":
            said = "this key is missing."
        case "json_invalid":
            said = f"not valid JSON: {error['msg'].removeprefix('Invalid JSON: ')}."
        case "value_error" | "assertion_error":
            said = error["msg"].removeprefix("Value error, ").removeprefix("Assertion failed, ")
            path = path if location else ""
        case "literal_error":
            known = re.findall(r"'([^']*)'", error["ctx"]["expected"])
            said = f"{given!r} is not known. {nearest(str(given), known)}"
        case "dict_type" | "model_type":
            said = f"this is a table, not {given!r}."
        case _:
            said = f"{error['msg']} (it is {given!r})."
    return f"{path}: {said}" if path else said


def key_path(location: Sequence[str | int]) -> str:
    """Write a location for people: ``refs."release/2.9".audio.origin``, ``features[2].name``."""
    text = ""
    for step in location:
        if isinstance(step, int):
            text += f"[{step}]"
        else:
            bare = all(letter.isalnum() or letter in "-_" for letter in step)
            text += ("." if text else "") + (step if bare else f'"{step}"')
    return text or "the file"


def _known_keys(annotation: Any, location: Sequence[str | int]) -> set[str]:  # noqa: ANN401 - any type
    """Names that a model would have taken at `location` of a value of this type."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        fields = {one.alias or name: one.annotation for name, one in annotation.model_fields.items()}
        return _known_keys(fields.get(str(location[0])), location[1:]) if location else {*fields}
    container = (origin := get_origin(annotation)) in (list, tuple) or hasattr(origin, "keys")
    inner = location[1:] if container else location  # alternatives are no step of it
    return {name for one in get_args(annotation) for name in _known_keys(one, inner)}
