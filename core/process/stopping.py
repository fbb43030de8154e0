"""How this program stops: at Ctrl-C, SIGTERM or a closed terminal, in the same way."""

import signal
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import NoReturn

from core.errors import STOPPING

# A signal to a group and the one that its members hand on are one stop. A later one gives up what is still
# being tidied.
_ONE_STOP_SECONDS = 2.0

# Windows knows no closed terminal, and sends SIGBREAK for it: at Ctrl-Break, and when the console closes.
_STOPPING_SIGNALS = [
    getattr(signal, name) for name in ("SIGINT", "SIGTERM", "SIGHUP", "SIGBREAK") if hasattr(signal, name)
]


@contextmanager
def stopped_by_signals() -> Iterator[None]:
    """End the block with KeyboardInterrupt at a signal that stops programs.

    Children are stopped, locks released and the failure recorded on the way, by whoever has begun them. A
    signal that is ignored when the block begins, as under `nohup`, stays so.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    stopped_at = float("-inf")

    def stop(_number: int, _frame: object) -> None:
        nonlocal stopped_at
        if time.monotonic() - stopped_at > _ONE_STOP_SECONDS:
            stopped_at = time.monotonic()
            _interrupt()

    previous_handlers = {}
    for number in _STOPPING_SIGNALS:
        if signal.getsignal(number) is not signal.SIG_IGN:
            previous_handlers[number] = signal.signal(number, stop)
    try:
        yield
    finally:
        for number, handler in previous_handlers.items():
            signal.signal(number, handler)


def _interrupt() -> NoReturn:
    STOPPING.set()
    raise KeyboardInterrupt
