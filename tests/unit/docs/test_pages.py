"""What the pages print: links lead somewhere, and every command is one that the tool takes."""

import argparse
import contextlib
import copy
import io
import re
import shlex
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from pathlib import Path

import pytest
from invoke.collection import Collection
from invoke.parser import Parser
from packaging.requirements import Requirement

import tasks
from core.cli import verb_parser
from core.cli.options import ROOT
from core.cli.shared_options import divide_options
from docs import command_tables, markdown

DOCS = ROOT / "docs"
PAGES = [
    ROOT / "README.md",
    ROOT / "CONTRIBUTING.md",
    *sorted(DOCS.rglob("*.md")),
]
FENCE = re.compile(r"^```(?P<kind>\w*)\n(?P<text>.*?)^```$", re.MULTILINE | re.DOTALL)
CALLS = {session.name: session.calls for session in command_tables.all_sessions()}

# Nothing is done on these.
PAGES_WITHOUT_COMMANDS = {"README.md", "architecture.md", "glossary.md"}
# What these sessions do not know goes to pytest.
SESSIONS_OF_PYTEST = {"test_smoke", "test_torch", "tests", "integration", "upstream"}
# Words that ask for help or for another command.
OTHER_COMMANDS = {"--help", "list|explain|check|prune"}

EACH_PAGE = pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)


@cache
def read_prose(page: Path) -> str:
    """Return the text of a page without its code."""
    return FENCE.sub("", page.read_text(encoding="utf-8"))


def shell_commands(page: Path) -> Iterator[str]:
    """Yield the shell commands of a page, a line each: comments, continuations and pipelines resolved."""
    text = page.read_text(encoding="utf-8")
    for block in FENCE.finditer(text):
        if block["kind"] not in {"bash", "console", "batch", ""}:
            continue
        joined_lines = re.sub(r"\\\n\s*", " ", block["text"])
        for line in joined_lines.splitlines():
            pipeline = line.removeprefix("$ ")
            yield from re.split(r"\s(?:&&|\|)\s|;\s", pipeline)


def find_commands(program: str) -> list[str]:
    """Return the pages' calls of a program, which a pattern matches; each once."""
    pattern = re.compile(rf"(?:[A-Z_]+=\S+ )*{program} ")
    commands: set[str] = set()
    for page in PAGES:
        for command in map(str.strip, shell_commands(page)):
            if pattern.match(command):
                commands.add(command)
    return sorted(commands)


def split_words(command: str) -> list[str]:
    """Return a command's words without its program, comment and variables."""
    arguments = shlex.split(command, comments=True)
    while re.match(r"[A-Z_]+=", arguments[0]):
        arguments.pop(0)
    return arguments[1:]


# Links


def heading_anchors(page: Path) -> set[str]:
    """Return the anchors of a page's headings."""
    headings = re.findall(r"^#+ (.*)$", read_prose(page), re.MULTILINE)
    return {markdown.anchor(heading.strip()) for heading in headings}


def leads_somewhere(page: Path, link: str) -> bool:
    """Return whether a link of a page leads to a file and heading that exist, or away from here."""
    if re.match(r"\w+:", link):
        return True
    target, _, heading = link.partition("#")
    path = page
    if target:
        path = page.parent / target
    if not heading:
        return path.exists()
    return path.exists() and heading in heading_anchors(path)


@EACH_PAGE
def test_links_lead_to_files_and_headings_that_exist(page: Path) -> None:
    links = re.findall(r"\]\(([^)\s]+)\)", read_prose(page))

    for link in links:
        assert leads_somewhere(page, link), link


# Commands

NOX_COMMANDS = find_commands("nox")
INVOKE_COMMANDS = find_commands("invoke")
PIP_COMMANDS = find_commands("(?:uv )?pip install")


def test_the_pages_have_commands_to_look_at() -> None:
    assert len(NOX_COMMANDS) > 60
    assert len(INVOKE_COMMANDS) > 10
    assert len(PIP_COMMANDS) > 5


def chosen_sessions(arguments: list[str]) -> list[str]:
    """Return the sessions that nox is called for, without its options and the Python that is chosen."""
    if "-s" not in arguments:
        return []
    first = arguments.index("-s") + 1
    names: list[str] = []
    for argument in arguments[first:]:
        if argument in {"-P", "-p"}:
            break
        if not argument.startswith("-"):
            names.append(session_of(argument))
    return names


def session_of(argument: str) -> str:
    """Return a session without what nox tells its copies by: ``build_torch-3.12(cell='…')``."""
    name, _, _ = argument.partition("(")
    if name in CALLS:
        return name
    session, _, _ = name.rpartition("-")
    return session


def unknown_words(session: str, arguments: Sequence[str]) -> list[str]:
    """Return the words that a session's front door does not know; fail where it refuses some."""
    calls = CALLS[session]
    if not calls or OTHER_COMMANDS.intersection(arguments):
        return []
    package, verb_name, *first_words = calls
    (verb,) = [verb for verb in command_tables.verbs(package) if verb.name == verb_name]
    _module, parser = verb_parser(package, verb)

    output = io.StringIO()
    with contextlib.redirect_stderr(output):
        try:
            _arguments, unknown = parser.parse_known_args([*first_words, *arguments])
        except SystemExit:
            pytest.fail(output.getvalue())
    return unknown


@pytest.mark.parametrize("command", NOX_COMMANDS)
def test_nox_takes_the_commands_that_are_printed(command: str) -> None:
    arguments = split_words(command)
    session_words: list[str] = []
    if "--" in arguments:
        separator = arguments.index("--")
        session_words = arguments[separator + 1 :]
        arguments = arguments[:separator]

    sessions = chosen_sessions(arguments)
    assert set(sessions) <= set(CALLS)
    front_doors = {session: CALLS[session] for session in sessions if CALLS[session]}
    words_of_sessions: Mapping[str, Sequence[str]] = {}
    if len(front_doors) > 1:
        words_of_sessions = divide_options(front_doors, session_words)

    for session in sessions:
        unknown = unknown_words(session, words_of_sessions.get(session, session_words))
        assert session in SESSIONS_OF_PYTEST or unknown == []


@pytest.mark.parametrize("command", INVOKE_COMMANDS)
def test_invoke_takes_the_commands_that_are_printed(command: str) -> None:
    arguments = split_words(command)
    if arguments[0].startswith("--") or "--help" in arguments:
        return  # options of invoke itself

    # A copy, because a task forgets its help once it has been asked for its options.
    flows = copy.deepcopy(Collection.from_module(tasks))
    parsed = Parser(contexts=flows.to_contexts()).parse_argv(arguments)

    assert [context.name for context in parsed if context.name] == [arguments[0]]
    assert not parsed.unparsed


@pytest.mark.parametrize("command", PIP_COMMANDS)
def test_pip_takes_the_commands_that_are_printed(command: str) -> None:
    pip = argparse.ArgumentParser(allow_abbrev=False)
    for flag in ("--pre", "--no-index", "--no-cache-dir", "--no-build-isolation"):
        pip.add_argument(flag, action="store_true")
    for option in ("-r", "--index-url", "--extra-index-url", "--find-links"):
        pip.add_argument(option)
    pip.add_argument("requirements", nargs="*", type=Requirement)

    _, _, call = command.partition("pip ")
    arguments = pip.parse_intermixed_args(split_words(call))

    assert arguments.requirements or (ROOT / arguments.r).is_file()


@EACH_PAGE
def test_pages_lead_with_a_command(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    introduction, _, _ = text.partition("\n## ")
    if page.name in PAGES_WITHOUT_COMMANDS:
        return

    assert re.search(r"^```bash\n", introduction, re.MULTILINE)
