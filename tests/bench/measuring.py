"""How figures are taken: each work in a process of its own, all in turn, medians with their spread."""

import datetime as dt
import json
import os
import platform
import re
import statistics
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import KW_ONLY, dataclass, field
from pathlib import Path
from typing import NamedTuple

from core import console, files, process
from core.cli.options import ROOT
from core.env import installer
from core.errors import CheckError, DataError
from docs.markdown import table

Words = Sequence[str | Path]
LOCK, BASELINES = ROOT / "requirements" / "baselines.txt", ROOT / ".cache" / "baselines"
COLUMNS = ("", "wall, s", "CPU, s", "MiB", "ratio by wall", "by CPU", "")
TIMED = Path(__file__).with_name("timed.py")


class Sample(NamedTuple):
    """What a work took: seconds of the clock; of processors, children's too; bytes of its largest process."""

    wall: float
    cpu: float
    memory: int = 0


@dataclass(frozen=True)
class Work:
    """What is timed: a program's words, or a call, made in a fork of this process: its start does not count.

    `before` is not timed. Of a part of the whole, the seconds count `times`.
    """

    name: str
    does: Words | Callable[[], object]
    _: KW_ONLY
    note: str = ""
    cwd: Path = ROOT
    env: Mapping[str, str | None] = field(default_factory=dict)
    before: Callable[[], object] = str
    times: int = 1

    def take(self) -> Sample:
        self.before()
        one = _forked(self.does) if callable(self.does) else self._started(self.does)
        console.say(f"  {self.name}: {one.wall:.2f} s, CPU {one.cpu:.2f} s")
        return Sample(one.wall * self.times, one.cpu * self.times, one.memory)

    def _started(self, words: Words) -> Sample:
        # users' checkouts are compiled once
        env = process.inherited(**{"PYTHONDONTWRITEBYTECODE": None, **self.env})
        timed = [sys.executable, "-IS", TIMED, *words]
        return Sample(**json.loads(process.capture(timed, cwd=self.cwd, env=env).stdout))


@dataclass(frozen=True)
class Series:
    """A work's samples."""

    name: str
    samples: Sequence[Sample]
    note: str = ""

    @property
    def cells(self) -> tuple[str, str, str]:
        walls, cpus, memory = zip(*self.samples, strict=True)
        return spread(walls), spread(cpus), f"{max(memory) / 2**20:.0f}" if any(memory) else ""

    @property
    def middles(self) -> list[float]:
        return [*map(statistics.median, zip(*self.samples, strict=True))]


@dataclass(frozen=True)
class Figure:
    """A subject, the baselines that it was measured with in turn, and what there is to say of both."""

    subject: Series
    baselines: Sequence[Series] = ()
    note: str = ""

    def rows(self, *, busy: bool) -> Iterator[tuple[str, ...]]:
        """Write the table's rows; of two ratios the one that counts is bold: on a `busy` machine, by CPU."""
        notes = "; ".join(filter(None, (self.note, self.subject.note)))
        yield (f"**{self.subject.name}**", *self.subject.cells, "", "", notes)
        for one in self.baselines:
            both = [*zip(self.subject.middles, one.middles, strict=True)][:2]
            ratios = [f"{ours / theirs:.2f}" for ours, theirs in both]
            ratios[busy] = f"**{ratios[busy]}**"
            yield (one.name, *one.cells, *ratios, one.note)


def spread(values: Sequence[float]) -> str:
    """Write the median, and the least and the most of several."""
    digits = 2 if max(values) < 10 else 1
    middle, *ends = (f"{one:.{digits}f}" for one in (statistics.median(values), min(values), max(values)))
    return middle if len(values) == 1 else f"{middle} ({' to '.join(ends)})"


def in_turn(
    works: Sequence[Work] | Callable[[], Sequence[Work]], *, runs: int, warm: bool = True
) -> list[Series]:
    """Do all works in each run, after one to warm up; works that are made by a call are new for each."""
    taken: list[list[Sample]] = []
    named: Sequence[Work] = ()
    for _ in range(runs + warm):
        named = works() if callable(works) else works
        taken.append([one.take() for one in named])
    columns = zip(named, zip(*taken[warm:], strict=True), strict=True)
    return [Series(work.name, samples, work.note) for work, samples in columns]


def program(name: str, python: str = sys.executable) -> Path:
    """Give one of others' programs; their environment is made again when its lock changed."""
    place = BASELINES / Path(python).name
    done, made_of = place / "made_of", f"{files.sha256(LOCK)} {python}"
    if not done.is_file() or done.read_text(encoding="utf-8") != made_of:
        uv, into = installer.uv_program(), ("--python", place / "bin" / "python")
        process.capture([uv, "venv", "--no-python-downloads", "--clear", "--python", python, place])
        process.capture([uv, "pip", "sync", *into, "--require-hashes", LOCK])
        files.write_text(done, made_of)
    return place / "bin" / name


def removing(*paths: Path) -> Callable[[], object]:
    return lambda: process.capture(["rm", "-rf", *paths])


def _forked(call: Callable[[], object]) -> Sample:
    started = time.perf_counter()
    child = os.fork()  # noqa: TID251 - measured without the start of an interpreter
    if not child:
        try:
            call()
        except BaseException:  # noqa: BLE001 - a fork ends here, whatever happens
            traceback.print_exc()
            os._exit(1)
        os._exit(0)
    _, status, used = os.wait4(child, 0)
    if status:
        raise CheckError("What was to be measured failed.")
    return Sample(time.perf_counter() - started, used.ru_utime + used.ru_stime)


class Conditions:
    """What else the machine does while figures are taken (Linux)."""

    def __init__(self) -> None:
        self.load = os.getloadavg()[0]
        self._began, self._others = time.monotonic(), self._elsewhere()
        self.cores = os.cpu_count() or 1

    def _elsewhere(self) -> float:
        """Return the seconds that processors gave to others so far."""
        user, nice, system, _idle, _waiting, *rest = Path("/proc/stat").read_text("ascii").split()[1:9]
        ticks = sum(map(int, (user, nice, system, *rest)))
        return ticks / os.sysconf("SC_CLK_TCK") - sum(os.times()[:4])

    def others(self) -> float:
        """Return how many cores other work has taken since."""
        return max((self._elsewhere() - self._others) / (time.monotonic() - self._began), 0.0)

    def told(self, figures: Sequence[Figure], taken: float) -> str:
        """Say when, where and how figures were taken."""
        model = re.search(r"^model name\s*: (.*)$", Path("/proc/cpuinfo").read_text("utf-8"), re.MULTILINE)
        runs = max(len(one.subject.samples) for one in figures)
        now = dt.datetime.now(dt.UTC)
        return (
            f"{now.day} {now:%B %Y}, {self.cores} cores ({model[1] if model else platform.machine()}), "
            f"Python {platform.python_version()}; load {self.load:.1f} before, {os.getloadavg()[0]:.1f} "
            f"after, other work took {taken:.1f} cores; "
            + (f"medians of {runs} runs in turn (least to most)." if runs > 1 else "once each.")
        )


@contextmanager
def scratch() -> Iterator[Path]:
    """Make a folder on the disk that the checkout is on: /tmp may be memory."""
    (ROOT / ".cache").mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory(dir=ROOT / ".cache") as folder:
        yield Path(folder)


def put(page: str, name: str, rows: Sequence[Sequence[str]], told: str) -> str:
    """Replace a part's table on the page, and the line that says how it was measured."""
    mark = re.compile(rf"(<!-- bench: {re.escape(name)} -->\n).*?(<!-- end -->)", re.DOTALL)
    if len(mark.findall(page)) != 1:
        hint = f"<!-- bench: {name} --> begins it, <!-- end --> ends it."
        raise DataError(f"The page has no place for {name}.", hint=hint)
    text = "\n".join(["", *table(COLUMNS, rows), "", told, "", ""])
    return mark.sub(lambda found: f"{found[1]}{text}{found[2]}", page)
