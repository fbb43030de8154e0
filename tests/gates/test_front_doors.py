"""Every session calls a verb, every verb says what it does."""

import argparse
import ast
from importlib import import_module

import pytest

from core.cli import Verb, verb_parser
from core.cli.options import ROOT
from docs.command_tables import all_sessions
from tests.kit import source_code

FRONT_DOORS = ("rocm_packaging", "pytorch_build", "ci")

# Only the noxfile asks for cells.
WITHOUT_SESSION = {("ci", "cells")}


def all_verbs() -> list[tuple[str, Verb]]:
    return [(package, verb) for package in FRONT_DOORS for verb in import_module(f"{package}.__main__").VERBS]


@pytest.mark.parametrize(
    ("package", "verb"), [pytest.param(*pair, id=f"{pair[0]} {pair[1].name}") for pair in all_verbs()]
)
def test_every_verb_takes_the_common_options(package: str, verb: Verb) -> None:
    module, parser = verb_parser(package, verb)

    assert callable(module.run)
    assert isinstance(parser, argparse.ArgumentParser)
    assert "--gpu-family" in parser.format_help()


def test_every_verb_has_a_summary_of_one_line() -> None:
    summaries = {verb.name: verb.summary for _package, verb in all_verbs()}

    assert [name for name, summary in summaries.items() if not 0 < len(summary) < 90] == []


def test_sessions_and_verbs_belong_together() -> None:
    verbs = {(package, verb.name) for package, verb in all_verbs()}
    called_verbs = {(session.calls[0], session.calls[1]) for session in all_sessions() if session.calls}

    assert len(called_verbs) > 10
    assert called_verbs <= verbs, "a session calls a verb that there is not"
    assert verbs - called_verbs <= WITHOUT_SESSION, "no session calls this verb"


def test_every_session_has_a_line_for_the_list() -> None:
    summaries = {session.name: session.summary for session in all_sessions()}

    assert [name for name, summary in summaries.items() if not 0 < len(summary) <= 100] == []


def test_the_projects_own_tools_run_from_a_lock() -> None:
    for function in source_code.parse(ROOT / "noxfile.py").body:
        if not isinstance(function, ast.FunctionDef) or not function.decorator_list:
            continue
        calls = [node for node in ast.walk(function) if isinstance(node, ast.Call)]
        (tool_call,) = [call for call in calls if ast.unparse(call.func) == "tool"]
        lock = ast.literal_eval(tool_call.args[1])
        assert (ROOT / lock).is_file(), f"the session {function.name} has no lock {lock}"
