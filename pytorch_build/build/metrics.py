"""How a build goes: followed from its first command on, and known also where it ends early."""

from __future__ import annotations

import re
import threading
from contextlib import contextmanager
from dataclasses import dataclass, field
from operator import attrgetter
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence


_TAIL = 4 << 20  # bytes of a log's end: the last command's errors may be long


@dataclass
class Course:
    """What can be said of a build, for its record."""

    details: dict[str, Any] = field(default_factory=dict)

    @contextmanager
    def followed(self, build: Path, log: Path) -> Iterator[None]:
        """Follow a build while the block runs, however it ends."""
        before = logs(build)
        with watched() as used:
            try:
                yield
            except BaseException:
                self._keep("reached", reached(_end_of(log)))
                raise
            finally:
                self._keep("ninja", summaries(build, before))
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


MEMINFO = Path("/proc/meminfo")
MOST_SAMPLES = 100
_PERIOD = 1.0  # seconds between two looks, doubled whenever there are too many of them
_KIB = 1024
_FIELD = re.compile(r"^(MemTotal|MemAvailable):\s+(\d+) kB$", re.MULTILINE)


class Samples:
    """Memory in use, looked at from time to time; at most `MOST_SAMPLES` of them, evenly spread."""

    def __init__(self) -> None:
        self.total = 0
        self.peak = 0
        self.period = _PERIOD
        self._sums: list[int] = []

    def add(self, used: int, total: int) -> None:
        """Take a look's result, in bytes."""
        self.total, self.peak = total, max(self.peak, used)
        self._sums.append(used)
        if len(self._sums) >= 2 * MOST_SAMPLES:
            # the higher of two, because peaks are what is asked for
            self._sums = [max(pair) for pair in zip(self._sums[::2], self._sums[1::2], strict=True)]
            self.period *= 2

    @property
    def details(self) -> dict[str, Any] | None:
        """What a record keeps as ``details.memory``; None where nothing was seen."""
        if not self._sums:
            return None
        used = self._sums
        if len(used) > MOST_SAMPLES:
            used = [max(used[at : at + 2]) for at in range(0, len(used), 2)]
        return {"peak": self.peak, "total": self.total, "used": used}


def memory_use(text: str) -> tuple[int, int] | None:
    """Read ``/proc/meminfo``: bytes in use and bytes there are; None where it does not say."""
    said = {name: int(count) * _KIB for name, count in _FIELD.findall(text)}
    if said.keys() != {"MemTotal", "MemAvailable"}:
        return None
    return said["MemTotal"] - said["MemAvailable"], said["MemTotal"]


@contextmanager
def watched(meminfo: Path = MEMINFO) -> Iterator[Samples]:
    """Look at the machine's memory while the block runs; where it cannot be seen, there are no samples."""
    samples, ended = Samples(), threading.Event()

    def look() -> bool:
        try:
            found = memory_use(meminfo.read_text(encoding="ascii", errors="replace"))
        except OSError:
            return False
        if found is not None:
            samples.add(*found)
        return found is not None

    def look_on() -> None:
        while not ended.wait(samples.period) and look():
            pass

    look()  # so that the shortest build is seen
    thread = threading.Thread(target=look_on, name="memory", daemon=True)
    thread.start()
    try:
        yield samples
    finally:
        ended.set()
        thread.join()


NAME = ".ninja_log"
VERSIONS = ("5", "6", "7")
# bounds of what a record keeps
MOST_GRAPHS, MOST_SLOWEST, MOST_PARTS, MOST_LETTERS = 4, 25, 100, 200

_HEADER = "# ninja log v"
_FIELDS = 5
# more restarts than that are a log that was written anew, in any order
_MOST_RESTARTS = 20
_MILLISECONDS = 1000
# what ninja prints where nobody set NINJA_STATUS; since 1.13 a failure says its code
_STATUS = re.compile(r"^\[(\d{1,9})/(\d{1,9})\] ", re.MULTILINE)
_FAILED = re.compile(r"^FAILED: (?:\[code=-?\d+\] )?(\S+)", re.MULTILINE)
_MOST_FAILED = 5


@dataclass(frozen=True, kw_only=True, slots=True)
class Edge:
    """A command."""

    output: str
    start: int
    end: int


def logs(folder: Path) -> Mapping[str, frozenset[str]]:
    """Read the lines of every log below a build folder; path of the log's folder to its lines."""
    found = {}
    for path in sorted(folder.rglob(NAME)) if folder.is_dir() else ():
        if path.is_file():
            found[path.parent.relative_to(folder).as_posix()] = frozenset(_lines(path))
    return found


def summaries(folder: Path, before: Mapping[str, frozenset[str]]) -> list[dict[str, Any]]:
    """Say what ninja did below a build folder since `before`."""
    found = []
    for path in sorted(folder.rglob(NAME)) if folder.is_dir() else ():
        if not path.is_file():
            continue
        name = path.parent.relative_to(folder).as_posix()
        known = before.get(name, frozenset())
        edges = parse_log(line for line in _lines(path) if line.startswith(_HEADER) or line not in known)
        if edges:
            found.append(summary(edges, folder=f"{folder.name}/{name}".removesuffix("/."), root=str(folder)))
    found.sort(key=lambda one: (-one["busy_seconds"], one["folder"]))
    return found[:MOST_GRAPHS]


def reached(output: str) -> dict[str, Any] | None:
    """Say how far ninja came, from what a build printed."""
    spoken = _STATUS.findall(output)
    failed = tuple(dict.fromkeys(found.group(1) for found in _FAILED.finditer(output)))
    if not spoken and not failed:
        return None
    counts = dict(zip(("done", "total"), map(int, spoken[-1]), strict=True)) if spoken else {}
    return {**counts, "failed": [_short(one, "") for one in failed[:_MOST_FAILED]]}


def _lines(path: Path) -> list[str]:
    return path.read_text(encoding="utf-8", errors="replace").split("\n")


def parse_log(lines: Iterable[str]) -> tuple[Edge, ...]:
    """Read a log's commands, in its order; a line that was cut off is no command."""
    edges: dict[tuple[int, int, str], Edge] = {}
    known = False
    for line in lines:
        if line.startswith(_HEADER):
            known = line.removeprefix(_HEADER).strip() in VERSIONS
            continue
        fields = line.split("\t")
        if not known or len(fields) != _FIELDS or not all(map(_is_number, fields[:2])):
            continue
        start, end = int(fields[0]), int(fields[1])
        if start <= end:
            edges.setdefault((start, end, fields[4]), Edge(output=fields[3], start=start, end=end))
    return tuple(edges.values())


def _is_number(text: str) -> bool:
    return text.isascii() and text.isdigit() and len(text) < len("1000000000000")


def in_sequence(edges: Sequence[Edge]) -> tuple[Edge, ...]:
    """Put the commands of several calls of ninja one after the other: each call counts from zero.

    A call's commands stand in the order of their ends.
    """
    calls: list[list[Edge]] = [[]]
    for edge in edges:
        if calls[-1] and edge.end < calls[-1][-1].end:
            calls.append([])
        calls[-1].append(edge)
    if len(calls) > _MOST_RESTARTS:
        return tuple(edges)
    moved, offset = [], 0
    for call in calls:
        moved += [Edge(output=edge.output, start=edge.start + offset, end=edge.end + offset) for edge in call]
        offset = moved[-1].end if moved else offset
    return tuple(moved)


def summary(edges: Sequence[Edge], *, folder: str, root: str = "") -> dict[str, Any]:
    """Describe one log's commands; bounded, however long the log."""
    ordered = in_sequence(edges)
    first, last = min(map(attrgetter("start"), ordered)), max(map(attrgetter("end"), ordered))
    slowest = sorted(ordered, key=lambda edge: (edge.start - edge.end, edge.output))[:MOST_SLOWEST]
    return {
        "folder": folder[-MOST_LETTERS:],
        "edges": len(ordered),
        "seconds": (last - first) / _MILLISECONDS,
        "busy_seconds": sum(edge.end - edge.start for edge in ordered) / _MILLISECONDS,
        "slowest": [[_short(edge.output, root), (edge.end - edge.start) / _MILLISECONDS] for edge in slowest],
        "parallelism": parallelism(ordered),
    }


def _short(output: str, root: str) -> str:
    """Tell a path without the machine's own folders, and no longer than is read."""
    output = output.replace("\\", "/")
    inside = root.replace("\\", "/").rstrip("/") + "/"
    if root and output.startswith(inside):
        output = output.removeprefix(inside)
    elif output.startswith("/") or output[1:3] == ":/":
        output = "/".join(["…", *output.split("/")[-3:]])
    return output if len(output) <= MOST_LETTERS else f"…{output[1 - MOST_LETTERS :]}"


def parallelism(edges: Sequence[Edge], parts: int = MOST_PARTS) -> list[float]:
    """Say how many commands ran at a time, on average, in each of equal parts of the time."""
    first, last = min(edge.start for edge in edges), max(edge.end for edge in edges)
    parts = min(parts, last - first)
    if not parts:
        return []
    width = (last - first) / parts
    busy = [0.0] * parts
    for edge in edges:
        at = min(int((edge.start - first) / width), parts - 1)
        start = float(edge.start - first)
        while at < parts and start < edge.end - first:
            end = min((at + 1) * width, edge.end - first) if at < parts - 1 else edge.end - first
            busy[at] += max(0.0, end - start)
            start, at = max(start, end), at + 1
    return [round(total / width, 2) for total in busy]
