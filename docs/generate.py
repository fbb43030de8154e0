"""Write the parts of the documentation that follow from data and code: `nox -s docs`.

A page keeps such a part between two comments, ``<!-- generated: NAME -->`` and
``<!-- end of NAME -->``; what stands around it is written by hand. ``--check`` compares only;
``--screenshots`` takes the pictures of pages anew.
"""

from __future__ import annotations

import inspect
import json
import re
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from core import console, errors, files
from core.cli import exit_code
from core.data import read_toml
from core.errors import CheckError, DataError, FatalError, UsageError
from core.families import CPU, FAMILIES_FILE, families
from core.run import records
from docs import command_tables, data_tables, roles
from docs.command_tables import table
from docs.messages import message_tables
from docs.mutants import score_table
from rocm_packaging.origin import INDEXES_FILE

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

FOLDER = Path(__file__).parent
RECORD_SCHEMA = FOLDER / "record.schema.json"
PLAN_SCHEMA = FOLDER / "plan.schema.json"

_PART = re.compile(r"<!-- generated: (?P<name>[\w-]+) -->\n(?P<text>.*?)<!-- end of (?P=name) -->", re.DOTALL)


def gpu_families() -> str:
    """Write the GPU families with their targets, those of the data file first."""
    rows = [
        (f"`{name}`", " ".join(families()[name].targets)) for name in read_toml(FAMILIES_FILE)["families"]
    ]
    single = [name for name, family in families().items() if family.targets == (name,)]
    rows.append((f"a target by itself, such as `{single[-1]}`", "itself"))
    return "\n".join(table(("GPU family", "gfx targets"), [*rows, (f"`{CPU}`", "none: built without ROCm")]))


def rocm_indexes() -> str:
    """Write the release indexes that have a name."""
    rows = [
        (f"`{name}`" + (" (the default)" if "default" in row else ""), f"`{row['url']}`")
        for name, row in read_toml(INDEXES_FILE)["indexes"].items()
    ]
    return "\n".join(table(("name", "address"), rows))


def exit_codes() -> str:
    """Write the exit code of every class of errors, from its docstring."""
    classes = {
        one
        for _, one in inspect.getmembers(errors, inspect.isclass)
        if issubclass(one, FatalError) and one is not FatalError
    }
    rows = [(str(one.exit_code), _first_sentence(one)) for one in classes]
    rows = [("0", "The stage did its work, or found that nothing has changed."), *rows]
    rows.append(
        (str(FatalError.exit_code), "An internal error: run the command with `--debug` and report it.")
    )
    return "\n".join(table(("code", "meaning"), sorted(rows, key=lambda row: int(row[0]))))


def record_schema() -> str:
    """Write the JSON schema of records."""
    return json.dumps(records.Record.model_json_schema(), indent=2) + "\n"


PARTS: Mapping[str, Callable[[], str]] = {
    "support": data_tables.support_tables,
    "gpu-families": gpu_families,
    "rocm-indexes": rocm_indexes,
    "exit-codes": exit_codes,
    "messages": message_tables,
    "sessions": command_tables.session_table,
    "flows": command_tables.flow_tables,
    "common-options": command_tables.common_table,
    "verbs": command_tables.verb_tables,
    "ci-tests": data_tables.test_table,
    "ci-labels": data_tables.label_table,
    "ci-families": data_tables.family_table,
    "ci-inputs": data_tables.input_table,
    "ci-outputs": data_tables.output_table,
    "role-keys": roles.role_table,
    "role-trust": roles.assumption_table,
    "role-events": roles.event_table,
    "role-shares": roles.shared_table,
    "mutants": score_table,
}


def filled(text: str, parts: Mapping[str, Callable[[], str]], *, where: str) -> str:
    """Put the generated parts into a page.

    Args:
        text: The page.
        parts: What writes each part, by name.
        where: The page's name, for errors.

    Raises:
        DataError: It names a part that nothing writes, or one does not end.
    """
    marks = len(re.findall(r"<!-- generated: ", text))
    if marks != len(_PART.findall(text)):
        raise DataError(f"{where}: a generated part does not end.", hint="<!-- end of NAME --> ends it.")

    def written(match: re.Match[str]) -> str:
        name = match["name"]
        if name not in parts:
            raise DataError(f"{where}: no part is called {name!r}. {errors.nearest(name, parts)}")
        return f"<!-- generated: {name} -->\n\n{parts[name]().strip()}\n\n<!-- end of {name} -->"

    return _PART.sub(written, text)


def pages() -> Mapping[Path, str]:
    """Return every page that has a generated part, as it should be.

    Raises:
        DataError: A page's marks are wrong, or a part stands on no page.
    """
    current = {path: path.read_text(encoding="utf-8") for path in sorted(FOLDER.glob("*.md"))}
    marked = {path: text for path, text in current.items() if _PART.search(text)}
    placed = {match["name"] for text in marked.values() for match in _PART.finditer(text)}
    if absent := sorted(PARTS.keys() - placed):
        raise DataError(f"No page has the generated parts {', '.join(absent)}.", hint="Put their marks in.")
    return {
        **{path: filled(text, PARTS, where=path.name) for path, text in marked.items()},
        RECORD_SCHEMA: record_schema(),
        PLAN_SCHEMA: data_tables.plan_schema(),
        roles.TEMPLATE: roles.template(),
    }


def stale() -> Mapping[Path, str]:
    """Return the pages that differ from what they should be, as they should be."""
    return {
        path: text
        for path, text in pages().items()
        if not path.is_file() or path.read_text(encoding="utf-8") != text
    }


def main(words: list[str]) -> int:
    """Write the pages; with ``--check`` only say whether they are current."""
    return exit_code(lambda: _run(words))


def _run(words: list[str]) -> None:
    if words == ["--screenshots"]:
        from docs import screenshots  # which needs a browser

        screenshots.take()
        return
    if words not in ([], ["--check"]):
        raise UsageError(
            f"Unknown: {' '.join(words)}.", hint="python -m docs.generate [--check | --screenshots]"
        )
    check = bool(words)
    outdated = stale()
    names = ", ".join(path.name for path in outdated)
    if check and outdated:
        raise CheckError(f"Not current: {names}.", hint="Write them: nox -s docs.")
    for path, text in outdated.items():
        files.write_text(path, text)
    console.done(f"docs: {names} written" if outdated else "docs: current")


def _first_sentence(one: type) -> str:
    return (one.__doc__ or "").strip().partition("\n")[0]


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
