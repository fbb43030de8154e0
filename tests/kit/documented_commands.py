"""The commands of a page of docs, read in their order and run in a clone."""

import re
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from core import process
from tests.kit.clones import Clone, printed_by

BLOCK = re.compile(r"^```(bash|console)\n(.*?)^```$", re.MULTILINE | re.DOTALL)


@dataclass(frozen=True, kw_only=True)
class Command:
    """A command of a page; one that is refused has the lines of the answer that follow it there."""

    line: str
    refusal: Sequence[str] | None = None


def read_commands(page: str) -> Iterator[Command]:
    """Read a page's commands in their order; those of a console block are refused."""
    for kind, block in BLOCK.findall(page):
        if kind == "bash":
            yield from (Command(line=line) for line in block.splitlines())
            continue
        for dialogue in block.removeprefix("$ ").split("\n$ "):
            line, *refusal = dialogue.strip().splitlines()
            yield Command(line=line, refusal=refusal)


def run_page(clone: Clone, page: str) -> str:
    """Run every command of a page in a clone, and require what the page says; return what they print."""
    path = f"{Path(sys.executable).parent}:{clone.variables()['PATH']}"
    whole_output = ""
    for command in read_commands(page):
        completed = process.capture(
            ["bash", "-c", command.line], cwd=clone.path, env=clone.variables(PATH=path), check=False
        )
        printed = printed_by(completed)
        is_refused = completed.returncode != 0
        assert is_refused == (command.refusal is not None), f"{command.line}\n{printed[-4000:]}"
        for line in command.refusal or ():
            assert line in printed, f"{command.line}\n{printed[-4000:]}"
        whole_output += printed
    return whole_output
