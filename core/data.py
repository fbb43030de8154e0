"""TOML and JSON that people edit or stages exchange, read into frozen pydantic models.

Every problem of a file is reported at once, each with its key path, and an unknown key
with the known one that it is nearest to.
"""

from __future__ import annotations

import functools
import json
import tomllib
import types
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import date  # noqa: TC003 - pydantic reads it
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Self, TypeVar, Union, get_args, get_origin

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from core import files
from core.errors import DataError, MissingInputError, nearest

if TYPE_CHECKING:
    from pydantic_core import ErrorDetails


class Model(BaseModel):
    """A frozen model that refuses keys it does not know."""

    # built at first use: a front door imports more models than it reads
    model_config = ConfigDict(frozen=True, extra="forbid", defer_build=True)


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
    """Write JSON on one line, as job outputs and variables hold it."""
    return json.dumps(value, separators=(",", ":"), ensure_ascii=False)


class Dated(Model):
    """Data about others that grows old: `checked` with its source, to be checked again after `days`."""

    checked: date
    days: int = Field(gt=0)

    def overdue(self, today: date) -> str:
        """Return how old the data is, if that is too old, else ""."""
        age = (today - self.checked).days
        return f"{age} days old, where {self.days} are allowed" if age > self.days else ""


AnyModel = TypeVar("AnyModel", bound=BaseModel)


def load_toml(path: Path, model: type[AnyModel]) -> AnyModel:
    """Read a TOML file into `model`."""
    return validated(read_toml(path), model, where=path)


def data_file(path: Path, model: type[AnyModel]) -> Callable[[], AnyModel]:
    """Return the function that reads a data file, once."""
    return functools.cache(functools.partial(load_toml, path, model))


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


def validated(value: Mapping[str, Any], model: type[AnyModel], *, where: Path | str) -> AnyModel:
    """Check plain data from `where` against `model`."""
    try:
        return model.model_validate(value)
    except ValidationError as problem:
        raise _as_data_error(problem, model, where) from problem


def merged(base: Mapping[str, Any], over: Mapping[str, Any]) -> dict[str, Any]:
    """Put tables over others: tables are merged, lists and values take the place of what was there."""
    result = dict(base)
    for key, value in over.items():
        inner = result.get(key)
        result[key] = merged(inner, value) if isinstance(inner, dict) and isinstance(value, dict) else value
    return result


def _as_data_error(problem: ValidationError, model: type[BaseModel], where: Path | str) -> DataError:
    lines = [_sentence(error, model) for error in problem.errors(include_url=False)]
    if len(lines) == 1:
        return DataError(f"{where}: {lines[0]}", hint=f"Correct {where}.")
    listed = "\n".join(f"  {line}" for line in lines)
    return DataError(f"{where} has {len(lines)} problems:\n{listed}", hint=f"Correct {where}.")


def _sentence(error: ErrorDetails, model: type[BaseModel]) -> str:
    location = error["loc"]
    path = key_path(location)
    match error["type"]:
        case "extra_forbidden":
            return f"{path}: unknown key. {nearest(str(location[-1]), _known_keys(model, location[:-1]))}"
        case "missing":
            return f"{path}: this key is missing."
        case "json_invalid":
            return f"not valid JSON: {error['msg'].removeprefix('Invalid JSON: ')}."
        case "value_error" | "assertion_error":
            said = error["msg"].removeprefix("Value error, ").removeprefix("Assertion failed, ")
            return f"{path}: {said}"
        case _:
            return f"{path}: {error['msg']} (it is {error['input']!r})."


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


def _known_keys(model: type[BaseModel], location: Sequence[str | int]) -> set[str]:
    """Names the model would have taken at `location`."""
    found: list[Any] = [model]
    for step in location:
        found = [inner for outer in found for inner in _step_into(outer, step)]
    return {
        field.alias or name
        for inner in found
        if isinstance(inner, type) and issubclass(inner, BaseModel)
        for name, field in inner.model_fields.items()
    }


def _step_into(annotation: Any, step: str | int) -> Iterator[Any]:  # noqa: ANN401 - a type's annotation
    """Return the types that a key or index of a value of this type may have."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        for name, field in annotation.model_fields.items():
            if step in (name, field.alias):
                yield from _alternatives(field.annotation)
    elif (origin := get_origin(annotation)) in (list, tuple) or hasattr(origin, "keys"):
        yield from _alternatives(next(arg for arg in reversed(get_args(annotation)) if arg is not Ellipsis))


def _alternatives(annotation: Any) -> Iterator[Any]:  # noqa: ANN401 - a type's annotation
    if get_origin(annotation) in (Union, types.UnionType):
        for inner in get_args(annotation):
            yield from _alternatives(inner)
    elif get_origin(annotation) is Annotated:
        yield from _alternatives(get_args(annotation)[0])
    else:
        yield annotation
