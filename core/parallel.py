"""One action over many items, and transfers in progress: for work that waits on a network or a disk."""

import threading
import time
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import FIRST_COMPLETED, FIRST_EXCEPTION, Future, ThreadPoolExecutor, wait
from contextlib import contextmanager
from typing import TypeVar

from core import console
from core.errors import REFUSALS, STOPPING, FatalError, raise_refusals

JOBS = 16
# Before Python 3.14, Ctrl-C does not end a wait on Windows (https://github.com/python/cpython/issues/125541).
_LOOK_SECONDS = 0.2
_LOCK = threading.Lock()
Item = TypeVar("Item")
Result = TypeVar("Result")


def map_in_threads(
    action: Callable[[Item], Result], items: Iterable[Item], *, jobs: int = JOBS
) -> list[Result]:
    """Call `action` for every item, `jobs` at a time; return its results in the order of the items.

    The first error of an item, in their order, is raised; what has not begun by then is left out.
    """
    items = list(items)
    # A single item needs no thread, which would take longer than many an action.
    if jobs <= 1 or len(items) <= 1:
        return [action(item) for item in items]

    with ThreadPoolExecutor(max_workers=jobs) as pool:
        try:
            futures = [pool.submit(action, item) for item in items]
            wait_for_futures(futures, return_when=FIRST_EXCEPTION)
        except KeyboardInterrupt:
            STOPPING.set()
            raise
        finally:
            pool.shutdown(wait=False, cancel_futures=True)

    for future in futures:
        # An error comes before the results of any: what it left out has none.
        if not future.cancelled():
            future.result()
    return [future.result() for future in futures]


def wait_for_futures(futures: Iterable[Future[Result]], *, return_when: str) -> set[Future[Result]]:
    """Wait as `concurrent.futures.wait` does, and let Ctrl-C end it on every system; return what is done."""
    running = set(futures)
    done: set[Future[Result]] = set()
    while running:
        newly_done, running = wait(running, timeout=_LOOK_SECONDS, return_when=return_when)
        done |= newly_done
        has_failure = any(future.exception() is not None for future in newly_done)
        if has_failure or (newly_done and return_when == FIRST_COMPLETED):
            break
    return done


def judge_in_threads(
    action: Callable[[Item], Result], items: Iterable[Item], *, jobs: int = JOBS
) -> list[Result]:
    """Call `action` for every file, as `map_in_threads` does, and go on where one is refused.

    Where some are, the error names each of them.
    """

    def judge(item: Item) -> Result | FatalError:
        try:
            return action(item)
        except REFUSALS as refusal:
            return refusal

    results: list[Result] = []
    refusals: list[FatalError] = []
    for result in map_in_threads(judge, items, jobs=jobs):
        if isinstance(result, FatalError):
            refusals.append(result)
        else:
            results.append(result)
    raise_refusals(refusals)
    return results


class Transfer(console.Step):
    """A transfer in progress; any thread may report to it."""

    @property
    def progress(self) -> str:
        """How much has come, and how fast."""
        seconds = max(time.monotonic() - self.started, 1.0)
        done = console.size(self._done_count)
        total = console.size(self._total_count)
        return f"{done} of {total}  {console.size(self._done_count / seconds)}/s"

    def advance(self, count: int) -> None:
        """Report bytes that came; negative ones are to come again."""
        with _LOCK:
            self._done_count += count

    def finish(self, name: str, length: int) -> None:
        """Report a file that is done."""
        self._last_line = name
        if console.echoes():
            console.detail(f"{name}  {console.size(length)}")


@contextmanager
def transfer(title: str, *, size: int) -> Iterator[Transfer]:
    """Show a transfer while it goes on."""
    progress = Transfer(title)
    progress.reach(0, size)
    with console.group(title, progress):
        yield progress
