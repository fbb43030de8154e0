"""How a build goes: followed from its first command on, and known also where it ends early."""

from __future__ import annotations

from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from pytorch_build.build import memory_use, ninja_log

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

_TAIL = 4 << 20  # bytes of a log's end: the last command's errors may be long


@dataclass
class Course:
    """What can be said of a build, for its record."""

    details: dict[str, Any] = field(default_factory=dict)

    @contextmanager
    def followed(self, build: Path, log: Path) -> Iterator[None]:
        """Follow a build while the block runs, however it ends."""
        before = ninja_log.logs(build)
        with memory_use.watched() as used:
            try:
                yield
            except BaseException:
                self._keep("reached", ninja_log.reached(_end_of(log)))
                raise
            finally:
                self._keep("ninja", ninja_log.summaries(build, before))
                self._keep("memory", used.details)

    def _keep(self, name: str, said: object) -> None:
        if said:
            self.details[name] = said


def _end_of(log: Path) -> str:
    if not log.is_file():
        return ""
    with log.open("rb") as stream:
        stream.seek(max(0, log.stat().st_size - _TAIL))
        return stream.read().decode("utf-8", "replace")
