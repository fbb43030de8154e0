"""How far a transfer of many files is: a bar on a terminal, a line a file in logs."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, Protocol

from core import console

if TYPE_CHECKING:
    from collections.abc import Iterator

    from rich.progress import Progress, TaskID


class Transfer(Protocol):
    """A transfer that goes on; any thread may report to it."""

    def advance(self, count: int) -> None:
        """Report bytes that came; negative ones are to come again."""
        ...

    def finish(self, name: str, size: int, seconds: float) -> None:
        """Report a file that is done."""
        ...


class _Lines:
    def __init__(self, files: int) -> None:
        self._files = files
        self._done = 0

    def advance(self, count: int) -> None:
        """Say nothing: a log wants no line a second."""

    def finish(self, name: str, size: int, seconds: float) -> None:
        self._done += 1
        took = console.duration(seconds)
        console.say(f"[{self._done}/{self._files}] {name}  {console.size(size)}  {took}")


class _Bar:
    def __init__(self, progress: Progress, task: TaskID) -> None:
        self._progress = progress
        self._task = task

    def advance(self, count: int) -> None:
        self._progress.advance(self._task, count)

    def finish(self, name: str, size: int, seconds: float) -> None:  # noqa: ARG002 - the table will say
        self._progress.update(self._task, file=name)


@contextmanager
def transfer(title: str, *, files: int, size: int) -> Iterator[Transfer]:
    """Show a transfer while it goes on.

    Args:
        title: What is transferred.
        files: How many files.
        size: Their bytes.
    """
    if console.mode() != "terminal":
        with console.group(title):
            yield _Lines(files)
        return
    from rich.console import Console
    from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn
    from rich.progress import TransferSpeedColumn as Speed

    columns = (TextColumn("{task.description}", markup=False), BarColumn(), DownloadColumn(), Speed())
    last = TextColumn("{task.fields[file]}", markup=False, style="dim")
    with Progress(*columns, TimeRemainingColumn(), last, console=Console(stderr=True)) as shown:
        yield _Bar(shown, shown.add_task(title, total=size, file=""))
