"""The commands as Markdown: sessions of the noxfile, flows of tasks.py, and verbs by their parsers."""

from __future__ import annotations

import argparse
import ast
import copy
import re
from dataclasses import dataclass
from importlib import import_module
from typing import TYPE_CHECKING

from core.cli import verb_parser
from core.cli.options import ROOT, add_common

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from core.cli import Verb

PACKAGES = ("pytorch_build", "rocm_packaging", "ci")
_OPTIONS = ("option", "meaning")


@dataclass(frozen=True, kw_only=True)
class Session:
    """One session of the noxfile.

    Attributes:
        name: What ``nox -s`` takes.
        summary: Its docstring.
        calls: The front door's package, the verb, and what follows it; empty where none is called.
    """

    name: str
    summary: str
    calls: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True)
class OptionGroup:
    """Options that a verb declares together: (option, meaning) each."""

    title: str
    rows: tuple[tuple[str, str], ...]


@dataclass(frozen=True, kw_only=True)
class VerbOptions:
    """A verb with the options that not every verb has."""

    package: str
    verb: Verb
    groups: tuple[OptionGroup, ...]
    epilog: str


def sessions(noxfile: str) -> tuple[Session, ...]:
    """Read the sessions from the text of a noxfile, in their order."""
    functions = [node for node in ast.parse(noxfile).body if isinstance(node, ast.FunctionDef)]
    return tuple(_session(function) for function in functions if _is_session(function))


def _is_session(function: ast.FunctionDef) -> bool:
    return any(ast.unparse(decorator).startswith("nox.session") for decorator in function.decorator_list)


def _session(function: ast.FunctionDef) -> Session:
    """Read one session: its docstring, and the words that it gives to a front door."""
    summary = ast.get_docstring(function) or ""
    for node in ast.walk(function):
        if isinstance(node, ast.Call) and ast.unparse(node.func) in {"front_door", "cell_front_door"}:
            words = [str(word.value) for word in node.args if isinstance(word, ast.Constant)]
            package = ["pytorch_build"] if ast.unparse(node.func) == "cell_front_door" else []
            return Session(name=function.name, summary=summary, calls=(*package, *words))
    return Session(name=function.name, summary=summary)


def options_of(parser: argparse.ArgumentParser) -> tuple[OptionGroup, ...]:
    """Read what a parser declares, group by group; a group without a title has the parser's own.

    argparse has no public way to say it but a text that differs by Python version.
    """
    found = []
    for group in parser._action_groups:  # noqa: SLF001 - see above
        shown = (one for one in group._group_actions if one.help != argparse.SUPPRESS)  # noqa: SLF001
        rows = tuple(_row(action) for action in shown if action.dest != "help")
        untitled = group.title in {"positional arguments", "options"}
        if rows:
            found.append(OptionGroup(title="" if untitled else group.title or "", rows=rows))
    return tuple(found)


def _row(action: argparse.Action) -> tuple[str, str]:
    value = action.metavar or ("{" + ",".join(map(str, action.choices)) + "}" if action.choices else "")
    words = [f"{name} {value}".rstrip() for name in action.option_strings] or [str(value or action.dest)]
    return ", ".join(f"`{word}`" for word in words), (action.help or "") % vars(action)


def session_table() -> str:
    """Write every session with its summary, and where its options stand."""
    headings = {each.name: heading for heading, sessions in _sections() for each in sessions}
    rows = [
        (f"[`{one.name}`](#{anchor(headings[one.name])})" if one.calls else f"`{one.name}`", one.summary)
        for one in all_sessions()
    ]
    return "\n".join(table(("session", "what it does"), rows))


def _sections() -> list[tuple[str, tuple[Session, ...]]]:
    """Return the headings of all verbs, each with the sessions that call it."""
    return [_called(package, verb) for package in PACKAGES for verb in verbs(package)]


def _called(package: str, verb: Verb) -> tuple[str, tuple[Session, ...]]:
    calling = tuple(each for each in all_sessions() if each.calls[:2] == (package, verb.name))
    return ", ".join(each.name for each in calling) or f"python -m {package} {verb.name}", calling


def flow_tables() -> str:
    """Write every flow of tasks.py with its options."""
    from invoke.collection import Collection

    flows = Collection.from_module(import_module("tasks"))
    lines: list[str] = []
    for name in sorted(flows.task_names):
        # a copy, because a task forgets its help once it has been asked for its arguments
        arguments = copy.deepcopy(flows[name]).get_arguments()
        options = [(f"`--{one.name.replace('_', '-')}`", one.help or "") for one in arguments]
        summary = (flows[name].__doc__ or "").partition("\n")[0]
        lines += [f"### invoke {name}", "", summary, "", *table(_OPTIONS, options), ""]
    return _text(lines)


def common_table() -> str:
    """Write the options that every verb takes."""
    return _text(table(_OPTIONS, [row for group in _common() for row in group.rows]))


def verb_tables() -> str:
    """Write every verb with its own options; a group that verbs share stands once, at the end."""
    found = [_verb_options(package, verb) for package in PACKAGES for verb in verbs(package)]
    every = [group for one in found for group in one.groups if group.title]
    shared = {group: None for group in every if every.count(group) > 1}
    lines = [line for one in found for line in _verb_section(one, shared)]
    for group in shared:
        rest = group.title.partition(" (")[2]
        lines += [f"### {_heading(group)}", ""]
        lines += [f"{_sentence(rest.removesuffix(')'))}", ""] if rest else []
        lines += [*table(_OPTIONS, group.rows), ""]
    return _text(lines)


def verbs(package: str) -> Sequence[Verb]:
    """Return a front door's verbs, in its order."""
    found: Sequence[Verb] = import_module(f"{package}.__main__").VERBS
    return found


def table(columns: Sequence[str], rows: Iterable[Sequence[str]]) -> list[str]:
    """Write a Markdown table, a line each."""
    lines = [columns, ["---"] * len(columns), *rows]
    return [f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in line)} |" for line in lines]


def _verb_options(package: str, verb: Verb) -> VerbOptions:
    parser = verb_parser(package, verb)[1]
    common = _common()
    groups = tuple(group for group in options_of(parser) if group not in common)
    return VerbOptions(package=package, verb=verb, groups=groups, epilog=parser.epilog or "")


def _verb_section(one: VerbOptions, shared: Iterable[OptionGroup]) -> list[str]:
    title, calling = _called(one.package, one.verb)
    front = f"`python -m {one.package} {one.verb.name}`"
    lines = [f"### {title}", "", _sentence(one.verb.summary), ""]
    lines += [f"The front door is {front}." if calling else "No session calls it.", ""]
    own = [group for group in one.groups if group not in shared]
    for name in dict.fromkeys(group.title for group in own):
        rows = [row for group in own if group.title == name for row in group.rows]
        lines += [
            *([f"{_sentence(name).removesuffix('.')}:", ""] if name else []),
            *table(_OPTIONS, rows),
            "",
        ]
    links = [f"[{_heading(group)}](#{anchor(_heading(group))})" for group in one.groups if group in shared]
    lines += [f"More options: {', '.join(links)}.", ""] if links else []
    return [*lines, one.epilog, ""] if one.epilog else lines


def all_sessions() -> tuple[Session, ...]:
    """Read the checkout's own sessions."""
    return sessions((ROOT / "noxfile.py").read_text(encoding="utf-8"))


def _common() -> tuple[OptionGroup, ...]:
    parser = argparse.ArgumentParser(add_help=False)
    add_common(parser)
    return options_of(parser)


def _heading(group: OptionGroup) -> str:
    return _sentence(group.title.partition(" (")[0]).removesuffix(".")


def anchor(heading: str) -> str:
    """Name the place that a heading has in a page's address, as GitHub does."""
    return re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-")


def _sentence(text: str) -> str:
    return f"{text[:1].upper()}{text[1:]}".removesuffix(".") + "."


def _text(lines: Iterable[str]) -> str:
    return "\n".join(lines).rstrip()
