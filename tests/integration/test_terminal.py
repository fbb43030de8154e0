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
DIGEST = "0" * 64

# A program that configures and builds the tree in the folders that it is told, side by side.
WORK = f"""
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from core import console, process

console.SCREEN.verbose = "--verbose" in sys.argv
tree = Path.cwd()

def build(name):
    log = tree / f"{{name}}.log"
    with console.group(f"build {{name}}"):
        process.run(["cmake", "-G", "Ninja", "-B", name, "."], cwd=tree, log=log)
        process.run(["cmake", "--build", name, "-j1"], cwd=tree, log=log)

with ThreadPoolExecutor() as pool:
    list(pool.map(build, sys.argv[-1].split(",")))
console.table(("file", "sha256"), [("{WHEEL}", "{DIGEST}")])
"""

STEP_COUNT = 12
STEP = "add_custom_command(OUTPUT {0} COMMAND sleep 0.1 COMMAND cmake -E touch {0} COMMENT made-{0})\n"

# What terminals are told.
ERASE_BELOW = "\x1b[J"
DIM = "\x1b[2m"
HIDE_CURSOR = "\x1b[?25l"


def child_variables(**changes: str | None) -> dict[str, str]:
    """Return the variables of a child that shows what it does on a terminal."""
    settings = {"GITHUB_ACTIONS": None, "PYTHONPATH": str(ROOT), "TERM": "xterm", **changes}
    return process.inherited(**settings)


def run_on_a_terminal(tree: Path, *arguments: str, stop_at: str | None = None, **changes: str) -> str:
    """Return what a terminal gets; at a text the user presses Ctrl-C."""
    child, terminal = pty.fork()
    if child == 0:
        os.chdir(tree)
        command = [sys.executable, "-c", WORK, *arguments]
        os.execve(sys.executable, command, child_variables(**changes))  # noqa: S606 - a pty

    output = read_terminal(terminal, stop_at=stop_at)
    os.waitpid(child, 0)
    return output


def read_terminal(descriptor: int, *, stop_at: str | None) -> str:
    """Return what comes to a terminal until its program ends; at a text the user presses Ctrl-C."""
    output = b""
    with open(descriptor, "r+b", buffering=0) as terminal:
        try:
            while part := terminal.read(1 << 16):
                output += part
                if stop_at is not None and stop_at.encode() in output:
                    terminal.write(b"\x03")
                    stop_at = None
        except OSError:
            # The other side is closed.
            pass
    return output.decode()


@dataclass(frozen=True, kw_only=True)
class Frame:
    """What was printed between two moments, and the lines that were live at the second one."""

    printed: list[str]
    live: list[str]


def frames_of(output: str) -> list[Frame]:
    """Return the frames of a terminal's output: each ends where the live lines were erased."""
    frames = []
    start = 0
    for erasure in re.finditer(r"\r\r((?:\x1b\[A)*)\x1b\[J", output):
        lines = output[start : erasure.start()].split("\r\n")
        # The cursor moves up from the last live line to the first.
        live_count = 1 + erasure[1].count("A")
        frames.append(Frame(printed=lines[:-live_count], live=lines[-live_count:]))
        start = erasure.end()

    lines = output[start:].split("\r\n")
    frames.append(Frame(printed=lines, live=[]))
    return frames


def printed_lines(output: str) -> list[str]:
    """Return the lines that stay on a terminal, without empty ones."""
    lines: list[str] = []
    for frame in frames_of(output):
        lines += [line for line in frame.printed if line]
    return lines


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """Return a tree whose build takes a second in a dozen steps."""
    names = [f"out{number}" for number in range(STEP_COUNT)]
    lines = ["cmake_minimum_required(VERSION 3.18)\n", "project(demo NONE)\n"]
    lines += map(STEP.format, names)
    lines.append(f"add_custom_target(all_of ALL DEPENDS {' '.join(names)})\n")
    (tmp_path / "CMakeLists.txt").write_text("".join(lines))
    return tmp_path


@pytest.mark.parametrize("width", [40, 80])
@pytest.mark.nightly
def test_builds_side_by_side_have_a_live_line_each(tree: Path, width: int) -> None:
    output = run_on_a_terminal(tree, "one,two", COLUMNS=str(width), NO_COLOR="1")

    frames = frames_of(output)
    assert {len(frame.live) for frame in frames} == {0, 1, 2}
    live_lines: list[str] = []
    for frame in frames:
        live_lines += frame.live
    for line in live_lines:
        assert re.match(r"build (one|two)  \d", line)
        assert len(line) < width
    assert [line for line in live_lines if re.search(rf"  \[\d+/{STEP_COUNT}\]  about ", line)]


@pytest.mark.parametrize(
    ("width", "digest_lines"),
    [
        pytest.param(40, ["  sha256", DIGEST], id="narrow"),
        pytest.param(80, [f"  sha256 {DIGEST}"], id="wide"),
    ],
)
def test_builds_side_by_side_leave_whole_lines(tree: Path, width: int, digest_lines: list[str]) -> None:
    output = run_on_a_terminal(tree, "one,two", COLUMNS=str(width), NO_COLOR="1")

    first_end, second_end, *table = printed_lines(output)
    builds = {first_end.partition(":")[0], second_end.partition(":")[0]}
    assert builds == {"── build one", "── build two"}
    assert table == [WHEEL, *digest_lines]
    assert HIDE_CURSOR not in output


def test_logs_of_builds_side_by_side_are_whole(tree: Path) -> None:
    run_on_a_terminal(tree, "one,two", COLUMNS="80", NO_COLOR="1")

    for name in ("one", "two"):
        log = (tree / f"{name}.log").read_text()
        assert f"+ cmake --build {name} -j1" in log
        assert log.count("made-out") == STEP_COUNT


def test_an_interrupt_leaves_a_clean_terminal(tree: Path) -> None:
    output = run_on_a_terminal(tree, "one", stop_at=f"/{STEP_COUNT}]", COLUMNS="80", NO_COLOR="1")

    failure = re.search(r"── build one: failed after [\d.]+ s\r\n", output)
    assert failure is not None
    assert "\x1b" not in output[failure.end() :]
    # The terminal's echo of Ctrl-C breaks no line.
    assert f"\r^C\r{ERASE_BELOW}" in output


@pytest.mark.parametrize(
    ("variables", "has_colours"),
    [
        pytest.param({}, False, id="without colours"),
        pytest.param({"FORCE_COLOR": "1"}, True, id="in colours"),
    ],
)
def test_a_dumb_terminal_has_no_live_lines(
    tree: Path, variables: dict[str, str], *, has_colours: bool
) -> None:
    output = run_on_a_terminal(tree, "one", COLUMNS="100", TERM="dumb", **variables)

    assert ERASE_BELOW not in output
    assert (DIM in output) is has_colours
    assert "] made-out3\r\n" not in output


def test_a_verbose_build_prints_its_steps_in_the_place_of_live_lines(tree: Path) -> None:
    output = run_on_a_terminal(tree, "--verbose", "one", COLUMNS="100")

    assert ERASE_BELOW not in output
    assert DIM in output
    assert "] made-out3\r\n" in output


def test_a_terminal_gets_live_lines_and_colours(tree: Path) -> None:
    output = run_on_a_terminal(tree, "one", COLUMNS="100")

    assert ERASE_BELOW in output
    assert DIM in output
    assert "] made-out3\r\n" not in output


def print_to_a_pipe(tree: Path, **changes: str) -> str:
    """Return what a pipe gets of a build."""
    command = [sys.executable, "-c", WORK, "one"]
    return process.capture(command, cwd=tree, env=child_variables(**changes)).stderr


def test_a_fold_of_github_has_all_that_a_log_has(tree: Path) -> None:
    printed = print_to_a_pipe(tree, GITHUB_ACTIONS="true")

    opened_fold, _, result = printed.partition("::endgroup::\n")
    log = (tree / "one.log").read_text()
    assert opened_fold == f"::group::build one\n{log}"
    assert result.startswith("build one: ")


def test_a_pipe_gets_commands_and_results_alone(tree: Path) -> None:
    printed = print_to_a_pipe(tree)

    first_words = [line.split()[0] for line in printed.splitlines()]
    assert first_words == ["+", "+", "──", "file", WHEEL]
