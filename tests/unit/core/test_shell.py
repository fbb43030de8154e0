import json
import subprocess  # noqa: TID251 - a line for cmd.exe, and no list of words
import sys
from collections.abc import Sequence

import pytest

from core.shell import posix_command_line, windows_command_line

CELL = "build_torch(gfx1151, sample, Python 3.13)"


def test_writes_a_command_for_a_posix_shell() -> None:
    words = ["nox", "-s", CELL]

    assert posix_command_line(words, variables={"MATRIX": "my plan"}) == f"MATRIX='my plan' nox -s '{CELL}'"


def test_writes_a_command_for_the_shell_of_windows() -> None:
    words = ["nox", "-s", CELL]

    line = windows_command_line(words, variables={"MATRIX": "ci"})

    assert line == f'set "MATRIX=ci" && nox -s "{CELL}"'


@pytest.mark.parametrize("word", ["release/2.10", r"C:\wheels", "--torch-ref=sample", "torch==2.10+rocm7"])
def test_leaves_plain_words_without_quotation_marks(word: str) -> None:
    assert windows_command_line([word]) == word


@pytest.mark.parametrize("word", ["gfx1100;gfx942", "numpy>=2", "a,b", "a&b", "", "$HOME", "@file", "a|b"])
def test_quotes_what_means_something_to_the_shell_of_windows(word: str) -> None:
    assert windows_command_line([word]) == f'"{word}"'


@pytest.mark.processes
@pytest.mark.skipif(sys.platform != "win32", reason="cmd.exe is on Windows")
@pytest.mark.parametrize(
    "words",
    [
        ["a b", "c"],
        ["numpy>=2", "a&b"],
        [r"C:\my folder\\", "x"],
        [r"C:\a;b" + "\\"],
        ["", "^", "(a)"],
        ['say "hi"'],
    ],
    ids=["space", "operators", "backslashes", "last backslash", "empty", "quotation marks"],
)
def test_the_shell_of_windows_gives_a_program_the_same_words(words: Sequence[str]) -> None:
    program = ["python", "-c", "import json, sys; print(json.dumps(sys.argv[1:]))"]
    # cmd.exe takes the first and the last quotation mark of its line away.
    line = windows_command_line([*program, *words])

    output = subprocess.check_output(f'cmd.exe /d /s /c "{line}"', text=True)

    assert json.loads(output) == words
