"""Every session calls a verb, every verb says what it does."""

import ast
import re
from collections.abc import Iterator
from importlib import import_module

import pytest

from core.cli import Verb, verb_parser
from core.cli.options import ALL_OPTIONS, ROOT
from docs.command_tables import Session, all_sessions
from tests.kit import source_code

FRONT_DOORS = ("rocm_packaging", "pytorch_build", "ci")

# Only the noxfile asks for cells. The zip is made once for a server, by hand, and no workflow makes it.
WITHOUT_SESSION = {("ci", "cells"), ("ci", "lambda-zip")}

# Clients of servers, which take as long to import as a quick verb takes.
CLIENTS = {"boto3", "botocore", "urllib3"}


def verbs_with_packages() -> Iterator[tuple[str, Verb]]:
    for package in FRONT_DOORS:
        for verb in import_module(f"{package}.__main__").VERBS:
            yield package, verb


VERBS = list(verbs_with_packages())
VERB_IDS = [f"{package} {verb.name}" for package, verb in VERBS]
SESSIONS = all_sessions()


@pytest.mark.parametrize(("package", "verb"), VERBS, ids=VERB_IDS)
def test_every_verb_shows_the_common_options_that_it_takes(package: str, verb: Verb) -> None:
    module, parser = verb_parser(package, verb)
    help_text = parser.format_help()

    assert set(module.COMMON_OPTIONS) <= set(ALL_OPTIONS)
    for option in ALL_OPTIONS:
        is_shown = re.search(rf"  --{option}[ ,\n]", help_text) is not None
        assert is_shown == (option in module.COMMON_OPTIONS), option


@pytest.mark.parametrize(("package", "verb"), VERBS, ids=VERB_IDS)
def test_every_verb_has_a_summary_of_one_line(package: str, verb: Verb) -> None:
    assert verb.summary, f"python -m {package} --help has no line for it"
    assert len(verb.summary) < 90


@pytest.mark.parametrize(("package", "verb"), VERBS, ids=VERB_IDS)
def test_every_verb_starts_without_clients_of_servers(package: str, verb: Verb) -> None:
    packages = {name.partition(".")[0] for name in names_imported_with(verb.module)}

    assert not packages & CLIENTS, (
        f"{package} {verb.name} --help imports them: import them where they are used"
    )


def names_imported_with(module: str) -> set[str]:
    """Return all that is imported with a module, directly or through modules of this project."""
    paths = {source_code.module_name(path): path for path in source_code.package_modules()}
    names = {module}
    waiting = [module]
    while waiting:
        name = waiting.pop()
        # With a module its packages are imported, too.
        imported_names = {name.rpartition(".")[0]}
        if name in paths:
            imported_names |= source_code.imported_at_start(paths[name])
        waiting += imported_names - names
        names |= imported_names
    return names


def test_sessions_and_verbs_belong_together() -> None:
    verbs = {(package, verb.name) for package, verb in VERBS}
    called_verbs = {session.calls[:2] for session in SESSIONS if session.calls}

    assert len(called_verbs) > 10
    assert called_verbs <= verbs, "a session calls a verb that there is not"
    assert verbs - called_verbs <= WITHOUT_SESSION, "no session calls this verb"


@pytest.mark.parametrize("session", SESSIONS, ids=lambda session: session.name)
def test_every_session_has_a_line_for_the_list(session: Session) -> None:
    assert 0 < len(session.summary) <= 100


def test_the_projects_own_tools_run_from_a_lock() -> None:
    for function in source_code.parse(ROOT / "noxfile.py").body:
        if not isinstance(function, ast.FunctionDef) or not function.decorator_list:
            continue
        for node in ast.walk(function):
            if isinstance(node, ast.Call) and ast.unparse(node.func) == "run_tool":
                lock = ROOT / "requirements" / f"{ast.literal_eval(node.args[1])}.txt"
                assert lock.is_file(), f"the session {function.name} has no lock {lock}"
