import argparse

import pytest

from core.errors import UsageError
from core.modes import refuse_options


def parse(*words: str) -> tuple[argparse.Namespace, list[argparse.Action]]:
    parser = argparse.ArgumentParser()
    actions = [
        parser.add_argument("folder", nargs="?", metavar="DIR"),
        parser.add_argument("-o", "--output"),
        parser.add_argument("-k", metavar="EXPR"),
        parser.add_argument("--jobs", type=int, default=8),
    ]
    return parser.parse_args(words), actions


def test_accepts_a_mode_without_options_of_the_other() -> None:
    arguments, actions = parse()

    refuse_options(arguments, actions, mode="with --check")


@pytest.mark.parametrize(
    ("words", "name"),
    [(["-o", "page"], "--output"), (["--jobs=1"], "--jobs"), (["here"], "DIR"), (["-k", "x"], "-k")],
)
def test_refuses_an_option_of_the_other_mode_by_its_name(words: list[str], name: str) -> None:
    arguments, actions = parse(*words)

    with pytest.raises(UsageError, match=f"^{name} has no effect with --check"):
        refuse_options(arguments, actions, mode="with --check")
