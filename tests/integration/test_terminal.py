"""What real builds show on a terminal: CMake and ninja behind a pseudo-terminal."""

import os
import pty  # noqa: TID251 - the terminal that a person would sit at
import re
import sys
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


def env(**changes: str | None) -> dict[str, str]:
    return process.inherited(**{"GITHUB_ACTIONS": None, "PYTHONPATH": str(ROOT), "TERM": "xterm", **changes})


def on_a_terminal(tree: Path, *words: str, stop: str = "", **changes: str) -> str:
    """Return what a terminal gets; at a text the user presses Ctrl-C."""
    child, master = pty.fork()
    if child == 0:
        os.chdir(tree)
        os.execve(sys.executable, [sys.executable, "-c", WORK, *words], env(**changes))  # noqa: S606 - a pty
    said = b""
    with open(master, "r+b", buffering=0) as terminal:  # noqa: PTH123 - a descriptor
        try:
            while part := terminal.read(1 << 16):
                said += part
                if stop and stop.encode() in said:
                    terminal.write(b"\x03")
                    stop = ""
        except OSError:  # the other side is closed
            pass
    os.waitpid(child, 0)
    return said.decode()


def frames(said: str) -> list[tuple[list[str], list[str]]]:
    """Return what was printed and what was live each time, up to where the live lines were erased."""
    text, *rest = re.split(r"\r\r((?:\x1b\[A)*)\x1b\[J", said)
    found = []
    for up, following in zip(rest[::2], rest[1::2], strict=True):
        lines, live = text.split("\r\n"), 1 + up.count("A")
        found.append((lines[:-live], lines[-live:]))
        text = following
    return [*found, (text.split("\r\n"), [])]


@pytest.fixture(name="tree")
def tree_fixture(tmp_path: Path) -> Path:
    names = [f"out{number}" for number in range(COUNT)]
    lines = ["cmake_minimum_required(VERSION 3.18)\nproject(demo NONE)\n", *map(COMMAND.format, names)]
    lines.append(f"add_custom_target(all_of ALL DEPENDS {' '.join(names)})\n")
    (tmp_path / "CMakeLists.txt").write_text("".join(lines))
    return tmp_path


@pytest.mark.parametrize("width", [40, 80])
def test_steps_side_by_side_have_a_line_each_and_leave_whole_ones(tree: Path, width: int) -> None:
    said = on_a_terminal(tree, "one,two", COLUMNS=str(width), NO_COLOR="1")
    seen = frames(said)
    live = [line for _, lines in seen for line in lines]
    assert {len(lines) for _, lines in seen} == {0, 1, 2}
    assert all(re.match(r"build (one|two)  \d", line) and len(line) < width for line in live)
    assert any(re.search(rf"  \[\d+/{COUNT}\]  about ", line) for line in live)
    printed = [line for lines, _ in seen for line in lines if line]
    assert sorted(line.partition(":")[0] for line in printed[:2]) == ["── build one", "── build two"]
    assert printed[2:] == [WHEEL, *(["  sha256", "0" * 64] if width < 70 else [f"  sha256 {'0' * 64}"])]
    assert "\x1b[?25l" not in said  # the cursor is there
    for name in ("one", "two"):
        log = (tree / f"{name}.log").read_text()
        assert f"+ cmake --build {name} -j1" in log
        assert log.count("made-out") == COUNT


def test_an_interrupt_leaves_a_clean_terminal(tree: Path) -> None:
    said = on_a_terminal(tree, "one", stop=f"/{COUNT}]", COLUMNS="80", NO_COLOR="1")
    ended = re.search(r"── build one: failed after [\d.]+ s\r\n", said)
    assert ended is not None
    assert "\x1b" not in said[ended.end() :]
    assert "\r^C\r\x1b[J" in said  # where it breaks no line


@pytest.mark.parametrize(
    ("word", "wish", "live", "colours"),
    [
        ("", {"TERM": "dumb"}, False, False),
        ("", {"TERM": "dumb", "FORCE_COLOR": "1"}, False, True),
        ("--verbose", {}, False, True),
        ("", {}, True, True),
    ],
)
def test_a_terminal_gets_what_is_wanted(
    tree: Path, word: str, wish: dict[str, str], *, live: bool, colours: bool
) -> None:
    said = on_a_terminal(tree, word, "one", COLUMNS="100", **wish)
    assert ("\x1b[J" in said, "\x1b[2m" in said) == (live, colours)
    assert ("] made-out3\r\n" in said) is (word == "--verbose")


def test_a_fold_of_github_has_all_that_a_log_has(tree: Path) -> None:
    run = [sys.executable, "-c", WORK]
    said = process.capture([*run, "one"], cwd=tree, env=env(GITHUB_ACTIONS="true")).stderr
    fold, _, rest = said.removeprefix("::group::build one\n").partition("::endgroup::\n")
    assert fold == (tree / "one.log").read_text()
    assert rest.startswith("build one: ")
    piped = process.capture([*run, "two"], cwd=tree, env=env()).stderr
    assert [line.split()[0] for line in piped.splitlines()] == ["+", "+", "──", "file", WHEEL]
