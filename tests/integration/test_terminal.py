"""What real builds show on a terminal: CMake and ninja behind a pseudo-terminal."""

import os
import pty  # noqa: TID251 - the terminal that a person would sit at
import re
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest

from core import process
from core.cli.options import ROOT

WHEEL = "torch-2.10.0a0+devrocm7.99.0.dev0.sample-cp311-cp311-linux_x86_64.whl"
WORK = f"""
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from core import console, process
console.SCREEN.verbose = "--verbose" in sys.argv
tree = Path.cwd()
def build(name):
    with console.group(f"build {{name}}"):
        for words in (["-G", "Ninja", "-B", name, "."], ["--build", name, "-j1"]):
            process.run(["cmake", *words], cwd=tree, log=tree / f"{{name}}.log")
with ThreadPoolExecutor() as pool:
    [*pool.map(build, sys.argv[-1].split(","))]
console.table(("file", "sha256"), [("{WHEEL}", "0" * 64)])
"""
COMMAND = "add_custom_command(OUTPUT {0} COMMAND sleep 0.1 COMMAND cmake -E touch {0} COMMENT made-{0})\n"
COUNT = 12


def child_variables(**changes: str | None) -> dict[str, str]:
    """Return the variables of a child that shows what it does on a terminal."""
    settings = {"GITHUB_ACTIONS": None, "PYTHONPATH": str(ROOT), "TERM": "xterm", **changes}
    return process.inherited(**settings)


def run_on_a_terminal(tree: Path, *arguments: str, stop_at: str | None = None, **changes: str) -> str:
    """Return what a terminal gets; at a text the user presses Ctrl-C."""
    child, master = pty.fork()
    if child == 0:
        os.chdir(tree)
        os.execve(  # noqa: S606 - a pty
            sys.executable, [sys.executable, "-c", WORK, *arguments], child_variables(**changes)
        )

    output = b""
    with open(master, "r+b", buffering=0) as terminal:  # noqa: PTH123 - a descriptor
        try:
            while part := terminal.read(1 << 16):
                output += part
                if stop_at is not None and stop_at.encode() in output:
                    terminal.write(b"\x03")
                    stop_at = None
        except OSError:
            # The other side is closed.
            pass
    os.waitpid(child, 0)
    return output.decode()


@dataclass(frozen=True)
class Frame:
    """What was printed between two moments, and the lines that were live at the second one."""

    printed: list[str]
    live: list[str]


def frames_of(output: str) -> list[Frame]:
    """Return the frames of a terminal's output: each ends where the live lines were erased."""
    first, *marks_and_texts = re.split(r"\r\r((?:\x1b\[A)*)\x1b\[J", output)
    frames = []
    text = first
    # Each mark says by moving up how many lines were live.
    for mark, following in zip(marks_and_texts[::2], marks_and_texts[1::2], strict=True):
        lines = text.split("\r\n")
        live_count = 1 + mark.count("A")
        frames.append(Frame(printed=lines[:-live_count], live=lines[-live_count:]))
        text = following
    return [*frames, Frame(printed=text.split("\r\n"), live=[])]


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """Return a tree whose build takes a second in a dozen steps."""
    names = [f"out{number}" for number in range(COUNT)]
    lines = ["cmake_minimum_required(VERSION 3.18)\nproject(demo NONE)\n", *map(COMMAND.format, names)]
    lines.append(f"add_custom_target(all_of ALL DEPENDS {' '.join(names)})\n")
    (tmp_path / "CMakeLists.txt").write_text("".join(lines))
    return tmp_path


@pytest.mark.parametrize("width", [40, 80])
@pytest.mark.nightly
def test_builds_side_by_side_have_a_live_line_each(tree: Path, width: int) -> None:
    frames = frames_of(run_on_a_terminal(tree, "one,two", COLUMNS=str(width), NO_COLOR="1"))

    assert {len(frame.live) for frame in frames} == {0, 1, 2}
    live_lines = [line for frame in frames for line in frame.live]
    for line in live_lines:
        assert re.match(r"build (one|two)  \d", line)
        assert len(line) < width
    assert [line for line in live_lines if re.search(rf"  \[\d+/{COUNT}\]  about ", line)]


@pytest.mark.parametrize(
    ("width", "digest_lines"),
    [(40, ["  sha256", "0" * 64]), (80, [f"  sha256 {'0' * 64}"])],
)
def test_builds_side_by_side_leave_whole_lines(tree: Path, width: int, digest_lines: list[str]) -> None:
    output = run_on_a_terminal(tree, "one,two", COLUMNS=str(width), NO_COLOR="1")

    printed = [line for frame in frames_of(output) for line in frame.printed if line]
    assert sorted(line.partition(":")[0] for line in printed[:2]) == ["── build one", "── build two"]
    assert printed[2:] == [WHEEL, *digest_lines]
    # The cursor is there.
    assert "\x1b[?25l" not in output
    for name in ("one", "two"):
        log = (tree / f"{name}.log").read_text()
        assert f"+ cmake --build {name} -j1" in log
        assert log.count("made-out") == COUNT


def test_an_interrupt_leaves_a_clean_terminal(tree: Path) -> None:
    output = run_on_a_terminal(tree, "one", stop_at=f"/{COUNT}]", COLUMNS="80", NO_COLOR="1")

    failure = re.search(r"── build one: failed after [\d.]+ s\r\n", output)
    assert failure is not None
    assert "\x1b" not in output[failure.end() :]
    # The terminal's echo of Ctrl-C breaks no line.
    assert "\r^C\r\x1b[J" in output


@pytest.mark.parametrize(
    ("option", "variables", "is_live", "has_colours"),
    [
        ("", {"TERM": "dumb"}, False, False),
        ("", {"TERM": "dumb", "FORCE_COLOR": "1"}, False, True),
        ("--verbose", {}, False, True),
        ("", {}, True, True),
    ],
    ids=["dumb", "dumb in colours", "verbose", "plain"],
)
def test_a_terminal_gets_what_is_wanted(
    tree: Path, option: str, variables: dict[str, str], *, is_live: bool, has_colours: bool
) -> None:
    output = run_on_a_terminal(tree, option, "one", COLUMNS="100", **variables)

    assert ("\x1b[J" in output) is is_live
    assert ("\x1b[2m" in output) is has_colours
    assert ("] made-out3\r\n" in output) is (option == "--verbose")


def test_a_fold_of_github_has_all_that_a_log_has(tree: Path) -> None:
    command = [sys.executable, "-c", WORK, "one"]

    printed = process.capture(command, cwd=tree, env=child_variables(GITHUB_ACTIONS="true")).stderr

    fold, _, text_behind = printed.removeprefix("::group::build one\n").partition("::endgroup::\n")
    assert fold == (tree / "one.log").read_text()
    assert text_behind.startswith("build one: ")


def test_a_pipe_gets_commands_and_results_alone(tree: Path) -> None:
    command = [sys.executable, "-c", WORK, "one"]

    printed = process.capture(command, cwd=tree, env=child_variables()).stderr

    assert [line.split()[0] for line in printed.splitlines()] == ["+", "+", "──", "file", WHEEL]
