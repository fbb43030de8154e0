"""Messages advise what there is: each option, session and flow that one names exists."""

import copy
import re
from collections.abc import Iterator
from importlib import import_module

from invoke.collection import Collection

from core.cli import verb_parser
from docs import messages
from docs.command_tables import PACKAGES, all_sessions, verbs

OPTION = re.compile(r"(?<![\w-])--[a-z][a-z0-9-]*")
# "build_…" stands for the session of any component.
SESSION = re.compile(r"nox -s ([a-z_0-9]+)(?!…)\b")
FLOW = re.compile(r"invoke ([a-z][a-z-]*)")

OPTIONS_OF_OTHER_TOOLS = {
    "git": {"--global", "--init", "--recursive"},
    "nox": {"--no-venv"},
    "patchelf": {"--set-rpath"},
    # containers
    "podman": {"--device"},
}


def options_of_verbs() -> Iterator[str]:
    """Yield the options that the verbs of the front doors take."""
    for package in PACKAGES:
        for verb in verbs(package):
            _module, parser = verb_parser(package, verb)
            # argparse has no public list of them.
            for action in parser._actions:
                yield from action.option_strings


def options_of_flows() -> Iterator[str]:
    """Yield the options that the flows of tasks.py take."""
    flows = Collection.from_module(import_module("tasks"))
    for name in flows.task_names:
        # A task forgets its help once it has been asked for its arguments.
        for argument in copy.deepcopy(flows[name]).get_arguments():
            option = argument.name.replace("_", "-")
            yield f"--{option}"


def test_every_option_that_a_message_names_exists() -> None:
    named_options = set(OPTION.findall(messages.message_tables()))

    known_options = {*options_of_verbs(), *options_of_flows()}.union(*OPTIONS_OF_OTHER_TOOLS.values())
    assert named_options
    assert named_options <= known_options


def test_every_session_that_a_message_names_exists() -> None:
    named_sessions = set(SESSION.findall(messages.message_tables()))

    assert named_sessions
    assert named_sessions <= {session.name for session in all_sessions()}


def test_every_flow_that_a_message_names_exists() -> None:
    named_flows = set(FLOW.findall(messages.message_tables()))

    assert named_flows
    assert named_flows <= set(Collection.from_module(import_module("tasks")).task_names)
