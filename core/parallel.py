"""One action over many items, side by side: for work that waits on a network or a disk."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from concurrent.futures import FIRST_EXCEPTION, ThreadPoolExecutor, wait
from typing import TypeVar

JOBS = 16
Item = TypeVar("Item")
Result = TypeVar("Result")


def each(action: Callable[[Item], Result], items: Iterable[Item], *, jobs: int = JOBS) -> list[Result]:
    """Call `action` for every item, `jobs` at a time; return its results in the order of the items.

    The first error of an item, in their order, is raised; what has not begun by then is left out.
    """
    with ThreadPoolExecutor(max_workers=max(1, jobs)) as pool:
        started = [pool.submit(action, item) for item in items]
        try:
            wait(started, return_when=FIRST_EXCEPTION)
        finally:
            # also when the user interrupts the wait
            pool.shutdown(wait=False, cancel_futures=True)
    for one in started:
        if not one.cancelled():
            one.result()  # an error before the results of any
    return [one.result() for one in started]
