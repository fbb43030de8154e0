"""A build's metrics for its record: memory in use, disk, what ninja did, how far a failed build came.

Format: ``.ninja_log`` of version 5, 6 and 7: a line an output, with start and end in milliseconds since
ninja began, the output's time, its path and its command's hash, separated by tabs
(https://ninja-build.org/manual.html#ref_log). ninja appends to it, and now and then writes it anew in
any order, so what a build did is what was not there before.
"""

import re
import sys
import threading
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from core import files, process

NAME, PEAK = ".ninja_log", ".peak"
VERSIONS = ("5", "6", "7")
MEMINFO = Path("/proc/meminfo")
# bounds of what a record keeps
MOST_SAMPLES, MOST_GRAPHS, MOST_SLOWEST, MOST_PARTS, MOST_LETTERS = 100, 4, 25, 100, 200

_HEADER = "# ninja log v"
_FIELDS = 5
_PERIOD = 1.0  # seconds between two samples of memory
_MOST_RESTARTS = 20  # more are a log that was written anew, in any order
_MILLISECONDS = 1000
_NUMBER = re.compile(r"\d{1,12}", re.ASCII)
_TAIL = 4 << 20  # bytes of a log's end: the last command's errors may be long


@dataclass
class Metrics:
    """What is known of a build, for its record."""

    details: dict[str, Any] = field(default_factory=dict)

    @contextmanager
    def followed(self, build: Path, log: Path) -> Iterator[None]:
        """Follow a build while the block runs, however it ends."""
        before = logs(build)
        known: dict[str, Any] = {}
        with watched() as memory:
            try:
                yield
            except BaseException:
                known["reached"] = reached(process.tail(log, lines=_TAIL, limit=_TAIL))
                raise
            finally:
                known |= {"ninja": summaries(build, before), "memory": memory_details(memory)}
                known["job"] = peak_of_one(build, begun=bool(before))
                self.details |= {name: value for name, value in known.items() if value}


def peak_of_one(build: Path, *, begun: bool) -> int:
    """Return the most bytes that a process took while a build folder was made; 0 for unknown."""
    kept = build / PEAK  # as later builds compile little; of a folder that was begun without, it is unknown
    before = kept.read_text(encoding="ascii") if kept.is_file() else ""
    if sys.platform == "win32" or (begun and not before):
        return 0
    import resource

    peak = max(resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss << 10, int(before or 0))
    files.write_text(kept, str(peak))
    return peak


def memory_details(samples: Sequence[tuple[int, int]]) -> dict[str, Any] | None:
    """Return what a record keeps of samples as ``details.memory``: at most `MOST_SAMPLES`; None of none."""
    step = 1 + len(samples) // MOST_SAMPLES
    # the highest of each part, because peaks decide how many jobs a machine can take
    used = [max(samples[at : at + step])[0] for at in range(0, len(samples), step)]
    return {"peak": max(used), "total": samples[-1][1], "used": used} if used else None


def memory_use(text: str) -> tuple[int, int] | None:
    """Read ``/proc/meminfo``: bytes in use and in total; None where they are not named."""
    found = re.findall(r"^(MemTotal|MemAvailable):\s+(\d+) kB$", text, re.MULTILINE)
    said = {name: int(count) << 10 for name, count in found}
    total, available = said.get("MemTotal"), said.get("MemAvailable")
    return None if total is None or available is None else (total - available, total)


@contextmanager
def watched(meminfo: Path = MEMINFO) -> Iterator[Sequence[tuple[int, int]]]:
    """Sample the machine's memory (`memory_use`) once a second while the block runs, where it can be read."""
    memory: list[tuple[int, int]] = []
    ended = threading.Event()

    def sample() -> None:
        if meminfo.is_file() and (found := memory_use(meminfo.read_text("ascii", errors="replace"))):
            memory.append(found)

    def samples() -> None:
        while not ended.wait(_PERIOD):
            sample()

    sample()  # here, so that the shortest build is seen however late the thread begins
    thread = threading.Thread(target=samples, name="memory", daemon=True)
    thread.start()
    try:
        yield memory
    finally:
        ended.set()
        thread.join()


class Edge(NamedTuple):
    """A command of ninja's, in milliseconds."""

    output: str
    start: int
    end: int


def logs(folder: Path) -> Mapping[str, Sequence[str]]:
    """Read the lines of every log below a build folder; path of the log's folder to its lines."""
    return {
        path.parent.relative_to(folder).as_posix(): path.read_text("utf-8", errors="replace").split("\n")
        for path in folder.rglob(NAME)
        if path.is_file()
    }


def summaries(folder: Path, before: Mapping[str, Sequence[str]]) -> list[dict[str, Any]]:
    """Summarize what ninja did below a build folder since `before`."""
    found = []
    for name, lines in logs(folder).items():
        known = frozenset(before.get(name, ()))
        edges = parse_log(line for line in lines if line.startswith(_HEADER) or line not in known)
        if edges:
            found.append(summary(edges, folder=f"{folder.name}/{name}".removesuffix("/."), root=str(folder)))
    return sorted(found, key=lambda one: (-one["busy_seconds"], one["folder"]))[:MOST_GRAPHS]


def reached(output: str) -> dict[str, Any] | None:
    """Return how far ninja came, from what a build printed."""
    # unless NINJA_STATUS is set; since 1.13 a failure says its code
    printed = re.findall(r"^\[(\d{1,9})/(\d{1,9})\] ", output, re.MULTILINE)
    failed = tuple(dict.fromkeys(re.findall(r"^FAILED: (?:\[code=-?\d+\] )?(\S+)", output, re.MULTILINE)))
    counts = dict(zip(("done", "total"), map(int, printed[-1]), strict=True)) if printed else {}
    return {**counts, "failed": [_short(one, "") for one in failed[:5]]} if printed or failed else None


def parse_log(lines: Iterable[str]) -> tuple[Edge, ...]:
    """Read a log's commands, in its order; a line that was cut off is ignored."""
    edges: dict[tuple[int, int, str], Edge] = {}
    known = False
    for line in lines:
        if line.startswith(_HEADER):
            known = line.removeprefix(_HEADER).strip() in VERSIONS
            continue
        fields = line.split("\t")
        if not known or len(fields) != _FIELDS or not all(map(_NUMBER.fullmatch, fields[:2])):
            continue
        start, end = int(fields[0]), int(fields[1])
        if start <= end:
            edges.setdefault((start, end, fields[4]), Edge(fields[3], start, end))
    return tuple(edges.values())


def in_sequence(edges: Sequence[Edge]) -> tuple[Edge, ...]:
    """Put several calls of ninja one after the other: each counts from zero, in the order of its ends."""
    moved: list[Edge] = []
    offset = restarts = last = 0
    for edge in edges:
        if edge.end < last:
            offset, restarts = moved[-1].end, restarts + 1
        moved.append(Edge(edge.output, edge.start + offset, edge.end + offset))
        last = edge.end
    return tuple(moved if restarts < _MOST_RESTARTS else edges)


def summary(edges: Sequence[Edge], *, folder: str, root: str = "") -> dict[str, Any]:
    """Describe one log's commands; bounded, however long the log."""
    ordered = in_sequence(edges)
    milliseconds = max(edge.end for edge in ordered) - min(edge.start for edge in ordered)
    slowest = sorted(ordered, key=lambda edge: (edge.start - edge.end, edge.output))[:MOST_SLOWEST]
    return {
        "folder": folder[-MOST_LETTERS:],
        "edges": len(ordered),
        "seconds": milliseconds / _MILLISECONDS,
        "busy_seconds": sum(edge.end - edge.start for edge in ordered) / _MILLISECONDS,
        "slowest": [[_short(edge.output, root), (edge.end - edge.start) / _MILLISECONDS] for edge in slowest],
        "parallelism": parallelism(ordered),
    }


def _short(output: str, root: str) -> str:
    """Return a path without the machine's own folders, bounded in length."""
    output = output.replace("\\", "/")
    inside = root.replace("\\", "/").rstrip("/") + "/"
    if root and output.startswith(inside):
        output = output.removeprefix(inside)
    elif output.startswith("/") or output[1:3] == ":/":
        output = "/".join(["…", *output.split("/")[-3:]])
    return output if len(output) <= MOST_LETTERS else f"…{output[1 - MOST_LETTERS :]}"


def parallelism(edges: Sequence[Edge], parts: int = MOST_PARTS) -> list[float]:
    """Return how many commands ran at a time, on average, in each of equal parts of the time."""
    first, last = min(edge.start for edge in edges), max(edge.end for edge in edges)
    parts = min(parts, last - first)
    busy = [0.0] * parts
    for edge in edges if parts else ():
        start, end = ((moment - first) * parts / (last - first) for moment in (edge.start, edge.end))
        for part in range(int(start), min(int(end) + 1, parts)):
            busy[part] += max(0.0, min(end, part + 1) - max(start, part))
    return [round(total, 2) for total in busy]
