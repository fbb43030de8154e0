"""What the pages print: links lead somewhere, and every command is one that the tool takes."""

import argparse
import contextlib
import io
import re
import shlex
from collections.abc import Iterator
from pathlib import Path

import pytest
from invoke.collection import Collection
from invoke.parser import Parser
from packaging.requirements import Requirement

import tasks
from core.cli import verb_parser
from core.cli.options import ROOT
from docs import command_tables

PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md"))]
FENCE = re.compile(r"^```(?P<kind>\w*)\n(?P<text>.*?)^```$", re.MULTILINE | re.DOTALL)
SESSIONS = {one.name: one.calls for one in command_tables.all_sessions()}
# nothing is done on these
WITHOUT_COMMANDS = {"README.md", "architecture.md", "glossary.md"}
# what a test session does not know goes to pytest
TO_PYTEST = {"test_smoke", "test_torch", "tests", "integration", "upstream"}


def commands(page: Path) -> Iterator[str]:
    """Read the shell commands of a page, a line each: comments, continuations and pipelines resolved."""
    for block in FENCE.finditer(page.read_text(encoding="utf-8")):
        if block["kind"] in {"bash", "console", "batch", ""}:
            for line in re.sub(r"\\\n\s*", " ", block["text"]).splitlines():
                yield from re.split(r"\s(?:&&|\|)\s|;\s", line.removeprefix("$ "))


def printed(program: str) -> list[tuple[str, str]]:
    """Return the pages' calls of a program: (page, command)."""
    found = [(page.name, one.strip()) for page in PAGES for one in commands(page)]
    return [(page, one) for page, one in found if re.match(rf"(?:[A-Z_]+=\S+ )*{program} ", one)]


def words(command: str) -> list[str]:
    """Split a command, without comment, variables set before it and what the shell puts in."""
    return [one for one in shlex.split(command, comments=True) if not re.match(r"[A-Z_]+=", one)][1:]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_lead_to_files_and_headings_that_exist(page: Path) -> None:
    wrong = []
    for link in re.findall(r"\]\(([^)\s]+)\)", FENCE.sub("", page.read_text(encoding="utf-8"))):
        target, _, heading = link.partition("#")
        path = page.parent / target if target else page
        if re.match(r"\w+:", link):
            continue
        if not path.exists() or (heading and heading not in headings(path)):
            wrong.append(link)
    assert wrong == []


def headings(page: Path) -> set[str]:
    """Return the anchors of a page."""
    text = FENCE.sub("", page.read_text(encoding="utf-8"))
    return {command_tables.anchor(one.strip()) for one in re.findall(r"^#+ (.*)$", text, re.MULTILINE)}


@pytest.mark.parametrize(("page", "command"), printed("nox"))
def test_nox_takes_what_is_printed(page: str, command: str) -> None:
    del page
    given = words(command)
    own, posargs = (
        (given[: given.index("--")], given[given.index("--") + 1 :]) if "--" in given else (given, [])
    )
    chosen = own[own.index("-s") + 1 :] if "-s" in own else []
    for name in (one.partition("(")[0] for one in chosen if not one.startswith("-")):
        if name == chosen[-1] and chosen[-2:-1] == ["-P"]:
            continue
        known = name if name in SESSIONS else name.rpartition("-")[0]
        assert known in SESSIONS
        takes(known, posargs)


def takes(session: str, posargs: list[str]) -> None:
    """Give a session's front door the words; a test session leaves to pytest what it does not know."""
    calls = SESSIONS[session]
    if not calls or {"--help", "list|explain|check|prune"} & {*posargs}:
        return
    package, name, *before = calls
    verb = next(one for one in command_tables.verbs(package) if one.name == name)
    parser = verb_parser(package, verb)[1]
    said = io.StringIO()
    with contextlib.redirect_stderr(said):
        try:
            _, rest = parser.parse_known_args([*before, *posargs])
        except SystemExit:
            pytest.fail(said.getvalue())
    assert not rest or session in TO_PYTEST, f"{session} does not know {rest}"


@pytest.mark.parametrize(("page", "command"), printed("invoke"))
def test_invoke_takes_what_is_printed(page: str, command: str) -> None:
    del page
    given = words(command)
    if given[0].startswith("--") or "--help" in given:
        return
    parser = Parser(contexts=Collection.from_module(tasks).to_contexts())
    parsed = parser.parse_argv(given)
    assert [one.name for one in parsed if one.name] == [given[0]]
    assert not parsed.unparsed


@pytest.mark.parametrize(("page", "command"), printed("(?:uv )?pip install"))
def test_pip_takes_what_is_printed(page: str, command: str) -> None:
    del page
    pip = argparse.ArgumentParser(allow_abbrev=False)
    for flag in ("--pre", "--no-index", "--no-cache-dir", "--no-build-isolation"):
        pip.add_argument(flag, action="store_true")
    for option in ("-r", "--index-url", "--extra-index-url", "--find-links"):
        pip.add_argument(option)
    pip.add_argument("wanted", nargs="*", type=Requirement)
    given = pip.parse_intermixed_args(words(command.partition("pip ")[2]))
    assert given.wanted or (ROOT / given.r).is_file()


def test_there_are_commands_and_links_to_look_at() -> None:
    assert len(printed("nox")) > 100
    assert len(printed("invoke")) > 10
    assert len(printed("pip install")) > 10


@pytest.mark.parametrize(
    "page", [one for one in PAGES if one.name not in WITHOUT_COMMANDS], ids=lambda page: page.name
)
def test_pages_lead_with_a_command(page: Path) -> None:
    head = page.read_text(encoding="utf-8").partition("\n## ")[0]
    assert re.search(r"^```bash\n", head, re.MULTILINE), page
