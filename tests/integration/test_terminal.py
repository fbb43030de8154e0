"""What real builds show on a terminal, as it draws it: CMake and ninja behind a pseudo-terminal."""

from __future__ import annotations

import os
import pty
import re
import sys
from typing import TYPE_CHECKING

import pytest

from core import process
from core.cli.options import ROOT

if TYPE_CHECKING:
    from pathlib import Path

WORK = """
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from core import console, process
console.SCREEN.verbose = "--verbose" in sys.argv
tree = Path.cwd()
def build(name):
    with console.group(f"build {name}"):
        process.run(["cmake", "-G", "Ninja", "-B", name, "."], cwd=tree, log=tree / f"{name}.log")
        process.run(["cmake", "--build", name, "-j1"], cwd=tree, log=tree / f"{name}.log")
with ThreadPoolExecutor() as pool:
    [*pool.map(build, sys.argv[-1].split(","))]
console.table(("file", "sha256"), [("WHEEL", "0" * 64)])
"""
WHEEL = "torch-2.10.0a0+devrocm7.99.0.dev0.sample-cp311-cp311-linux_x86_64.whl"
COMMAND = "add_custom_command(OUTPUT {0} COMMAND sleep 0.1 COMMAND cmake -E touch {0} COMMENT made-{0})\n"
COUNT = 12


class Terminal:
    """As much of a terminal as is drawn on: lines that wrap, up a line, what is below cleared."""

    def __init__(self, width: int) -> None:
        self.width, self.rows, self.row, self.column = width, [""], 0, 0

    def feed(self, text: str) -> None:
        for part in re.findall(r"\033\[[0-9;?]*[A-Za-z]|[\s\S]", text):
            if part == "\r":
                self.column = 0
            elif part == "\033[A":
                self.row -= 1
            elif part == "\033[J":
                self.rows = [*self.rows[: self.row], self.rows[self.row][: self.column]]
            elif part == "\n" or (self.column == self.width and part[0] != "\033"):
                self.row, self.column = self.row + 1, self.column if part == "\n" else 0
                self.rows += [""] * (self.row + 1 - len(self.rows))
            if part >= " ":
                row = self.rows[self.row].ljust(self.column)
                self.rows[self.row] = f"{row[: self.column]}{part}{row[self.column + 1 :]}"
                self.column += 1


def command(*words: str) -> list[str]:
    return [sys.executable, "-c", WORK.replace("WHEEL", WHEEL), *words]


def env(**changes: str | None) -> dict[str, str]:
    return process.inherited(**{"GITHUB_ACTIONS": None, "PYTHONPATH": str(ROOT), "TERM": "xterm", **changes})


def seen(tree: Path, *words: str, stop: str = "", **changes: str) -> tuple[list[list[str]], str]:
    """Run it behind a terminal, up to a text; return the screens over time, and all bytes."""
    child, master = pty.fork()
    if child == 0:
        os.chdir(tree)
        os.execve(sys.executable, command(*words), env(**changes))  # noqa: S606 - core.process opens no pty
    screen, said, screens = Terminal(int(changes["COLUMNS"])), "", [[""]]
    while part := _read(master):
        said += part
        screen.feed(part)
        screens.append([*screen.rows])
        if stop and stop in said:
            os.write(master, b"\x03")  # Ctrl-C
            stop = ""
    os.close(master)
    os.waitpid(child, 0)
    return screens, said


def _read(master: int) -> str:
    try:
        return os.read(master, 1 << 16).decode(errors="replace")
    except OSError:  # the other side is closed
        return ""


@pytest.fixture(name="tree")
def tree_fixture(tmp_path: Path) -> Path:
    names = [f"out{number}" for number in range(COUNT)]
    lines = ["cmake_minimum_required(VERSION 3.18)\nproject(demo NONE)\n", *map(COMMAND.format, names)]
    (tmp_path / "CMakeLists.txt").write_text(
        f"{''.join(lines)}add_custom_target(all_of ALL DEPENDS {' '.join(names)})\n"
    )
    return tmp_path


@pytest.mark.parametrize("width", [40, 60, 80, 120])
def test_steps_side_by_side_have_a_line_each_and_leave_whole_ones(tree: Path, width: int) -> None:
    screens, said = seen(tree, "one,two", COLUMNS=str(width))
    live = [[line for line in rows if re.match("build (one|two)  ", line)] for rows in screens]
    assert max(map(len, live)) == 2
    assert all(len(line) < width and not re.search("  build ...  ", line) for lines in live for line in lines)
    assert any(re.search(rf"  \[\d+/{COUNT}\]  about ", line) for lines in live for line in lines)
    end = screens[-1]
    assert sorted(line.partition(":")[0] for line in end[:2]) == ["── build one", "── build two"]
    assert f"\r\n{WHEEL}\r\n  sha256 {'0' * 64}\r\n" in said
    assert (end[-1], "\033[?25l" in said) == ("", False)  # no half line, and the cursor is there
    for name in ("one", "two"):
        log = (tree / f"{name}.log").read_text()
        assert f"+ cmake --build {name} -j1" in log
        assert log.count("made-out") == COUNT


def test_an_interrupt_leaves_a_clean_terminal(tree: Path) -> None:
    screens, said = seen(tree, "one", stop=f"/{COUNT}]", COLUMNS="80")
    end = screens[-1]
    assert "── build one: failed after" in "\n".join(end)
    assert not any(line.startswith("build one  ") for line in end)
    assert (end[-1], "\033[?25l" in said) == ("", False)


@pytest.mark.parametrize(
    ("word", "wish", "live", "colours"),
    [
        ("", {"NO_COLOR": "1"}, True, False),
        ("", {"TERM": "dumb"}, False, False),
        ("", {"TERM": "dumb", "FORCE_COLOR": "1"}, False, True),
        ("--verbose", {}, False, True),
    ],
)
def test_a_terminal_gets_what_is_wanted(
    tree: Path, word: str, wish: dict[str, str], *, live: bool, colours: bool
) -> None:
    screens, said = seen(tree, word, "one", COLUMNS="100", **wish)
    assert ("\033[J" in said, "\033[2m" in said) == (live, colours)
    assert any("made-out3" in line for line in screens[-1]) is (word == "--verbose")


def test_a_fold_of_github_has_all_that_a_log_has(tree: Path) -> None:
    said = process.capture(command("one"), cwd=tree, env=env(GITHUB_ACTIONS="true")).stderr
    fold, _, rest = said.removeprefix("::group::build one\n").partition("::endgroup::\n")
    log = (tree / "one.log").read_text()
    assert fold.replace(f"  (in {tree})", "") == log.replace(f"  (in {tree})", "")
    assert rest.startswith("build one: ")
    piped = process.capture(command("two"), cwd=tree, env=env()).stderr
    assert [line.split()[0] for line in piped.splitlines()] == ["+", "+", "──", "file", WHEEL]
