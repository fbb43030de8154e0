"""The commands as Markdown: sessions of the noxfile, flows of tasks.py, and verbs by their parsers."""

from __future__ import annotations

import argparse
import ast
import copy
from collections import Counter, defaultdict
from dataclasses import dataclass
from importlib import import_module
from typing import TYPE_CHECKING, TypeAlias

from core.cli import verb_parser
from core.cli.options import COMMON_TITLE, ROOT, add_common
from docs.markdown import Table, anchor, code, codes, sentence

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Iterator, Sequence

    from core.cli import Verb

PACKAGES = ("pytorch_build", "rocm_packaging", "ci")

OptionRow: TypeAlias = tuple[str, str]
_FRONT_DOORS = {"front_door", "cell_front_door"}


# --- Sessions


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


def all_sessions() -> Sequence[Session]:
    """Return the checkout's own sessions."""
    noxfile = ROOT / "noxfile.py"
    return read_sessions(noxfile.read_text(encoding="utf-8"))


def read_sessions(noxfile: str) -> Sequence[Session]:
    """Return the sessions in the text of a noxfile, in their order."""
    functions = [node for node in ast.parse(noxfile).body if isinstance(node, ast.FunctionDef)]
    return [_read_session(function) for function in functions if _is_session(function)]


def _is_session(function: ast.FunctionDef) -> bool:
    decorators = map(ast.unparse, function.decorator_list)
    return any(decorator.startswith("nox.session") for decorator in decorators)


def _read_session(function: ast.FunctionDef) -> Session:
    """Return one session: its docstring, and the words that it gives to a front door."""
    calls: list[str] = []
    for node in ast.walk(function):
        if not isinstance(node, ast.Call):
            continue
        callee = ast.unparse(node.func)
        if callee not in _FRONT_DOORS:
            continue
        if callee == "cell_front_door":
            calls.append("pytorch_build")
        constants = [argument for argument in node.args if isinstance(argument, ast.Constant)]
        calls += [str(constant.value) for constant in constants]
        break
    return Session(
        name=function.name,
        summary=ast.get_docstring(function) or "",
        calls=tuple(calls),
    )


def session_table() -> str:
    """Write every session with its summary, and where its options stand."""
    headings: dict[str, str] = {}
    for package in PACKAGES:
        for verb in verbs(package):
            heading = _heading_of_verb(package, verb)
            for session in _sessions_that_call(package, verb):
                headings[session.name] = heading

    table = Table("session", "what it does")
    for session in all_sessions():
        name = code(session.name)
        if session.calls:
            place = anchor(headings[session.name])
            name = f"[{name}](#{place})"
        table.add(name, session.summary)
    return str(table)


def _sessions_that_call(package: str, verb: Verb) -> Sequence[Session]:
    front_door = (package, verb.name)
    return [session for session in all_sessions() if session.calls[:2] == front_door]


def _heading_of_verb(package: str, verb: Verb) -> str:
    """Return the heading above a verb's options: the sessions that call it, else its own command."""
    names = [session.name for session in _sessions_that_call(package, verb)]
    if names:
        return ", ".join(names)
    return f"python -m {package} {verb.name}"


# --- Flows


def flow_tables() -> str:
    """Write every flow of tasks.py with its options."""
    from invoke.collection import Collection

    flows = Collection.from_module(import_module("tasks"))
    lines: list[str] = []
    for name in sorted(flows.task_names):
        flow = flows[name]
        docstring = flow.__doc__ or ""
        summary, _, _ = docstring.partition("\n")
        table = Table("option", "meaning")
        # A task forgets its help once it has been asked for its arguments, so a copy is.
        arguments = copy.deepcopy(flow).get_arguments()
        for argument in arguments:
            option = argument.name.replace("_", "-")
            table.add(f"`--{option}`", argument.help or "")
        lines += [f"### invoke {name}", ""]
        lines += [summary, ""]
        lines += [*table.lines, ""]
    return _text_of(lines)


# --- Verbs


@dataclass(frozen=True, kw_only=True)
class OptionGroup:
    """Options that a verb declares together: (option, meaning) each."""

    title: str
    rows: tuple[OptionRow, ...]

    @property
    def heading(self) -> str:
        """The title without what is said of the group in brackets."""
        title, _, _ = self.title.partition(" (")
        return sentence(title).removesuffix(".")

    @property
    def remark(self) -> str:
        """What the title says of the group in brackets; "" for nothing."""
        _, _, remark = self.title.partition(" (")
        return remark.removesuffix(")")


@dataclass(frozen=True, kw_only=True)
class VerbOptions:
    """A verb with its own options, and the names of the common ones that it takes."""

    package: str
    verb: Verb
    common_names: tuple[str, ...]
    groups: tuple[OptionGroup, ...]
    epilog: str


def verbs(package: str) -> Sequence[Verb]:
    """Return a front door's verbs, in its order."""
    front_door = import_module(f"{package}.__main__")
    package_verbs: Sequence[Verb] = front_door.VERBS
    return package_verbs


def common_table() -> str:
    """Write the options that verbs have in common."""
    rows: list[OptionRow] = []
    for group in _common_groups():
        rows += group.rows
    return _text_of(_option_lines(rows))


def _option_lines(rows: Iterable[OptionRow]) -> Sequence[str]:
    """Return the lines of a table of options."""
    table = Table("option", "meaning")
    for option, meaning in rows:
        table.add(option, meaning)
    return table.lines


def verb_tables() -> str:
    """Write every verb with its own options; a group that verbs share stands once, at the end."""
    all_options: list[VerbOptions] = []
    for package in PACKAGES:
        all_options += [_options_of_verb(package, verb) for verb in verbs(package)]
    shared_groups = _shared_groups(all_options)

    lines: list[str] = []
    for options in all_options:
        lines += _section_of_verb(options, shared_groups)
    for group in shared_groups:
        lines += [f"### {group.heading}", ""]
        if group.remark:
            lines += [sentence(group.remark), ""]
        lines += _option_lines(group.rows)
        lines.append("")
    return _text_of(lines)


def _options_of_verb(package: str, verb: Verb) -> VerbOptions:
    module, parser = verb_parser(package, verb)
    groups = [group for group in read_options(parser) if group.title != COMMON_TITLE]
    return VerbOptions(
        package=package,
        verb=verb,
        common_names=module.COMMON_OPTIONS,
        groups=tuple(groups),
        epilog=parser.epilog or "",
    )


def _common_groups() -> Sequence[OptionGroup]:
    parser = argparse.ArgumentParser(add_help=False)
    add_common(parser)
    return read_options(parser)


def _shared_groups(all_options: Sequence[VerbOptions]) -> Sequence[OptionGroup]:
    """Return the groups that several verbs have."""
    counts: Counter[OptionGroup] = Counter()
    for options in all_options:
        counts.update(group for group in options.groups if group.title)
    return [group for group, count in counts.items() if count > 1]


def _section_of_verb(options: VerbOptions, shared_groups: Collection[OptionGroup]) -> Iterator[str]:
    """Yield the lines about one verb."""
    package = options.package
    verb = options.verb
    heading = _heading_of_verb(package, verb)
    yield from (f"### {heading}", "")
    yield from (sentence(verb.summary), "")
    if _sessions_that_call(package, verb):
        yield from (f"The front door is `python -m {package} {verb.name}`.", "")
    else:
        yield from ("No session calls it.", "")

    rows_by_title: dict[str, list[OptionRow]] = defaultdict(list)
    links: list[str] = []
    for group in options.groups:
        if group in shared_groups:
            place = anchor(group.heading)
            links.append(f"[{group.heading}](#{place})")
        else:
            rows_by_title[group.title] += group.rows
    for title, rows in rows_by_title.items():
        if title:
            title_text = sentence(title).removesuffix(".")
            yield from (f"{title_text}:", "")
        yield from _option_lines(rows)
        yield ""
    if options.common_names:
        names = ", ".join(code(f"--{name}") for name in options.common_names)
        yield from (f"[Common options](#common-options): {names}.", "")
    if links:
        names = ", ".join(links)
        yield from (f"More options: {names}.", "")
    if options.epilog:
        yield from (options.epilog, "")


def read_options(parser: argparse.ArgumentParser) -> Sequence[OptionGroup]:
    """Return what a parser declares, group by group; a group without a title has the parser's own.

    argparse has no public way to say it but a text that differs by Python version.
    """
    groups: list[OptionGroup] = []
    for group in parser._action_groups:  # noqa: SLF001 - see above
        actions = [action for action in group._group_actions if _is_shown(action)]  # noqa: SLF001 - see above
        rows = tuple(map(_row_of_option, actions))
        title = group.title or ""
        if title in {"positional arguments", "options"}:
            title = ""
        if rows:
            groups.append(OptionGroup(title=title, rows=rows))
    return groups


def _is_shown(action: argparse.Action) -> bool:
    return action.help != argparse.SUPPRESS and action.dest != "help"


def _row_of_option(action: argparse.Action) -> OptionRow:
    value = str(action.metavar or "")
    if not value and action.choices:
        choices = ",".join(map(str, action.choices))
        value = f"{{{choices}}}"
    names = [f"{name} {value}".rstrip() for name in action.option_strings]
    if not names:
        names = [value or action.dest]
    meaning = action.help or ""
    return codes(names), meaning % vars(action)


def _text_of(lines: Sequence[str]) -> str:
    return "\n".join(lines).rstrip()
