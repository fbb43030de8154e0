"""One action over many items, and transfers in progress: for work that waits on a network or a disk."""

import threading
import time
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import FIRST_EXCEPTION, ThreadPoolExecutor, wait
from contextlib import contextmanager
from typing import TypeVar

from core import console
from core.errors import STOPPING

JOBS = 16
_LOCK = threading.Lock()
Item = TypeVar("Item")
Result = TypeVar("Result")


def each(action: Callable[[Item], Result], items: Iterable[Item], *, jobs: int = JOBS) -> list[Result]:
    """Call `action` for every item, `jobs` at a time; return its results in the order of the items.

    The first error of an item, in their order, is raised; what has not begun by then is left out.
    """
    items = list(items)
    # A single item needs no thread, which would take longer than many an action.
    if jobs <= 1 or len(items) <= 1:
        return [action(item) for item in items]

    with ThreadPoolExecutor(max_workers=jobs) as pool:
        started = [pool.submit(action, item) for item in items]
        try:
            wait(started, return_when=FIRST_EXCEPTION)
        except KeyboardInterrupt:
            STOPPING.set()
            raise
        finally:
            pool.shutdown(wait=False, cancel_futures=True)
    for one in started:
        if not one.cancelled():
            one.result()  # an error before the results of any
    return [one.result() for one in started]


class Transfer(console.Step):
    """A transfer in progress; any thread may report to it."""

    @property
    def reached(self) -> str:
        """How much has come, and how fast."""
        speed = console.size(self._done / max(time.monotonic() - self.started, 1.0))
        return f"{console.size(self._done)} of {console.size(self._total)}  {speed}/s"

    def advance(self, count: int) -> None:
        """Report bytes that came; negative ones are to come again."""
        with _LOCK:
            self._done += count

    def finish(self, name: str, length: int) -> None:
        """Report a file that is done."""
        self._heard = name
        if console.echoes():
            console.detail(f"{name}  {console.size(length)}")


@contextmanager
def transfer(title: str, *, size: int) -> Iterator[Transfer]:
    """Show a transfer while it goes on."""
    shown = Transfer(title)
    shown.reach(0, size)
    with console.group(title, shown):
        yield shown
