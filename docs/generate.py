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
from docs.markdown import Table, code
from docs.messages import message_tables
from docs.mutants import score_table
from rocm_packaging.origin import INDEXES_FILE

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

FOLDER = Path(__file__).parent
RECORD_SCHEMA = FOLDER / "record.schema.json"
PLAN_SCHEMA = FOLDER / "plan.schema.json"

_BEGINNING = "<!-- generated: "
_PART = re.compile(r"<!-- generated: (?P<name>[\w-]+) -->\n(?P<text>.*?)<!-- end of (?P=name) -->", re.DOTALL)


def gpu_families() -> str:
    """Write the GPU families with their targets, those of the data file first."""
    all_families = families()
    table = Table("GPU family", "gfx targets")
    for name in read_toml(FAMILIES_FILE)["families"]:
        targets = " ".join(all_families[name].targets)
        table.add(code(name), targets)
    single_targets = [name for name, family in all_families.items() if family.targets == (name,)]
    example = single_targets[-1]
    table.add(f"a target by itself, such as `{example}`", "itself")
    table.add(code(CPU), "none: built without ROCm")
    return str(table)


def rocm_indexes() -> str:
    """Write the release indexes that have a name."""
    table = Table("name", "address")
    indexes = read_toml(INDEXES_FILE)["indexes"]
    for name, index in indexes.items():
        label = code(name)
        if "default" in index:
            label = f"{label} (the default)"
        table.add(label, code(index["url"]))
    return str(table)


def exit_codes() -> str:
    """Write the exit code of every class of errors, from its docstring."""
    meanings: dict[int, str] = {
        0: "The stage did its work, or found that nothing has changed.",
        FatalError.exit_code: "An internal error: run the command with `--debug` and report it.",
    }
    error_classes = inspect.getmembers(errors, inspect.isclass)
    for _, error_class in error_classes:
        if issubclass(error_class, FatalError) and error_class is not FatalError:
            meanings[error_class.exit_code] = _first_line(error_class.__doc__)
    table = Table("code", "meaning")
    for number in sorted(meanings):
        table.add(str(number), meanings[number])
    return str(table)


def _first_line(docstring: str | None) -> str:
    text = docstring or ""
    first_line, _, _ = text.strip().partition("\n")
    return first_line


def record_schema() -> str:
    """Write the JSON schema of records."""
    schema = records.Record.model_json_schema()
    text = json.dumps(schema, indent=2)
    return f"{text}\n"


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


def fill_page(
    text: str,
    parts: Mapping[str, Callable[[], str]],
    *,
    page_name: str,
) -> str:
    """Return a page with its generated parts.

    Args:
        text: The page.
        parts: What writes each part, by name.
        page_name: The page's name, for errors.

    Raises:
        DataError: The page names a part that nothing writes, or a part does not end.
    """
    complete_parts = _PART.findall(text)
    if text.count(_BEGINNING) != len(complete_parts):
        raise DataError(f"{page_name}: a generated part does not end.", hint="<!-- end of NAME --> ends it.")

    def write_part(match: re.Match[str]) -> str:
        name = match["name"]
        if name not in parts:
            suggestion = errors.nearest(name, parts)
            raise DataError(f"{page_name}: no part is called {name!r}. {suggestion}")
        part = parts[name]().strip()
        return f"{_BEGINNING}{name} -->\n\n{part}\n\n<!-- end of {name} -->"

    return _PART.sub(write_part, text)


def write_pages() -> Mapping[Path, str]:
    """Return every page that has a generated part, as it should be.

    Raises:
        DataError: A page's marks are wrong, or a part stands on no page.
    """
    filled_pages: dict[Path, str] = {}
    absent_parts = set(PARTS)
    for path in sorted(FOLDER.glob("*.md")):
        text = path.read_text(encoding="utf-8")
        names = [match["name"] for match in _PART.finditer(text)]
        if names:
            absent_parts.difference_update(names)
            filled_pages[path] = fill_page(
                text,
                PARTS,
                page_name=path.name,
            )
    if absent_parts:
        names_of_parts = ", ".join(sorted(absent_parts))
        raise DataError(f"No page has the generated parts {names_of_parts}.", hint="Put their marks in.")
    return {
        **filled_pages,
        RECORD_SCHEMA: record_schema(),
        PLAN_SCHEMA: data_tables.plan_schema(),
        roles.TEMPLATE: roles.template(),
    }


def outdated_pages() -> Mapping[Path, str]:
    """Return the pages that differ from what they should be, as they should be."""
    return {path: text for path, text in write_pages().items() if not _has_text(path, text)}


def _has_text(path: Path, text: str) -> bool:
    if not path.is_file():
        return False
    return path.read_text(encoding="utf-8") == text


def main(words: list[str]) -> int:
    """Write the pages; with ``--check`` only say whether they are current."""
    return exit_code(lambda: _run(words))


def _run(words: list[str]) -> None:
    if words == ["--screenshots"]:
        # It needs a browser.
        from docs import screenshots

        screenshots.take()
        return
    if words not in ([], ["--check"]):
        call = " ".join(words)
        raise UsageError(
            f"Unknown: {call}.",
            hint="python -m docs.generate [--check | --screenshots]",
        )

    outdated = outdated_pages()
    names = ", ".join(path.name for path in outdated)
    if words == ["--check"] and outdated:
        raise CheckError(f"Not current: {names}.", hint="Write them: nox -s docs.")
    for path, text in outdated.items():
        files.write_text(path, text)
    if outdated:
        console.done(f"docs: {names} written")
    else:
        console.done("docs: current")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
