"""`bisect`: the first run, or version of an index, at which a command fails, and what differs in it."""

from __future__ import annotations

import json
import os
import shlex
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cached_property
from operator import attrgetter
from pathlib import Path
from typing import TYPE_CHECKING, Any

from packaging.specifiers import SpecifierSet
from packaging.utils import canonicalize_name

from ci import bisection, install
from ci.bisection import Facts, Point, Search, Verdict
from ci.report.facts import read_run, stored_runs
from ci.report.model import CellName
from core import console, files, process
from core.cli.options import Common, common_from
from core.data import AnyModel, parse_json
from core.env import interpreter
from core.errors import DataError, EnvironmentSetupError, MissingInputError, ProcessError, UsageError
from core.packages import RunGroup
from core.packages.sources import PackageSource, add_package_source, source_options
from core.parallel import each
from core.run import RunOutputs, is_local, records
from core.run.plan import Plan
from core.run.records import Cell, Record
from pytorch_build.lock.source_lock import SourceLock
from rocm_packaging.origin import has_rocm, named_source, release_index_url

if TYPE_CHECKING:
    import argparse
    from collections.abc import Mapping, Sequence

    from packaging.requirements import Requirement

    from ci.install import Wanted
    from core.env import Interpreter
    from core.stores import Store

_ROCM = "build_rocm"
_SAME = (  # options that make it another search
    *("good", "bad", "command", "repeat", "timeout", "packages", "rocm", "store", "release_type"),
    *("torch_ref", "gpu_family", "build_variant", "index_name", "index_url", "index_subdir", "find_links"),
)


def add_options(parser: argparse.ArgumentParser) -> None:
    """Declare the verb's own options."""
    add = parser.add_argument
    what = "where it {}: a run id, a version, a day (2026-11-20), or the file of a source lock"
    add("--good", required=True, metavar="RUN", help=what.format("still works"))
    add("--bad", required=True, metavar="RUN", help=what.format("fails"))
    what = "what is run, after --: it ends with 0 for good, 125 for skip, 1 to 127 for bad, more to stop"
    add("command", nargs="+", metavar="COMMAND", help=what)
    what = "what is installed (default: torch and what it requires; with --rocm rocm[libraries,devel])"
    add("--packages", action="append", metavar="NAMES", help=what)
    add("--rocm", action="store_true", help="search ROCm's own packages, without PyTorch")
    what = "search versions of these instead of a store's runs; with --store, where the runs' ROCm is"
    add_package_source(parser, what, "")
    add("--repeat", type=int, default=1, metavar="N", help="run it N times; one failure is bad (default: 1)")
    what = "what takes longer is bad (default: no limit)"
    add("--timeout", type=float, default=7 * 86400.0, metavar="SECONDS", help=what)
    add("--directory", type=Path, default=Path(), metavar="DIR", help="where it runs (default: here)")
    add("--no-verify", action="store_true", help="do not test first whether good is good and bad is bad")
    add("--state", type=Path, metavar="DIR", help="where the search is kept (default: .cache/bisect)")
    add("--reset", action="store_true", help="forget the search that was begun")
    add("--json", action="store_true", help="also print the result as JSON")
    parser.epilog = "The same command goes on where an interrupted one stopped."


def run(arguments: argparse.Namespace) -> None:
    """Search, from where the last call stopped."""
    # runs of CI are read where CI leaves them
    arguments.run_id = next(filter(str.isdecimal, (arguments.good, arguments.bad)), arguments.run_id)
    common, options = common_from(arguments), source_options(arguments)
    if arguments.repeat < 1:
        raise UsageError(f"--repeat {arguments.repeat} tests nothing.", hint="Give 1 or more.")
    source = named_source(options, common, common.gpu_family or options.index_subdir)
    over_index = options.named and "store" not in getattr(arguments, "given", ())
    kind = _Versions if over_index else _Runs
    place = kind(arguments=arguments, common=common, source=source or PackageSource())
    state = place.folder / "state.json"
    with files.locked(place.folder / ".lock", what=f"the search in {place.folder}"):
        search = _begun(arguments, place, state)
        bisection.tell_plan(search, whole=common.dry_run)
        while not common.dry_run and (point := search.next):
            left = console.counted(search.steps, "test")
            with console.group(f"{point.name} {point.started[:10]} ({left} left at most)"):
                verdict = _verdict(arguments, place, point)
                console.done(f"{point.name}: {verdict.result}, {verdict.why}")
            search = search.told(point, verdict)
            search.write(state)
    if not common.dry_run:
        bisection.tell(search)
        if arguments.json:
            console.result(json.dumps(search.result, indent=1))


def _begun(arguments: argparse.Namespace, place: _Versions | _Runs, state: Path) -> Search:
    """Return the search that is kept, or a new one; another one that is not at its end is kept."""
    question = {name: getattr(arguments, name) for name in _SAME} | {"python": str(arguments.python)}
    kept = Search.read(state) if state.is_file() and not arguments.reset else None
    if kept and kept.question == question:
        return kept
    if kept and kept.next and len(kept.verdicts) > 1:
        old = kept.question
        words = shlex.join(["--good", old["good"], "--bad", old["bad"], "--", *old["command"]])
        raise UsageError(
            f"Another search was begun, and is not at its end:\n{words}",
            hint="Go on with all of its options, or begin this one: --reset, or beside it --state DIR.",
        )
    # the file of a lock is named by its digest
    named = ((word, Path(word)) for word in place.ends)
    ends = (SourceLock.read(path).digest() if path.is_file() else word for word, path in named)
    points = bisection.between(place.points(), *ends)
    search = Search(question=question, points=points)
    if arguments.no_verify:
        for point in (points[0], points[-1]):
            result: Any = "good" if point == points[0] else "bad"
            search = search.told(point, Verdict(result=result, why="not tested", facts=place.facts(point)))
    if not place.common.dry_run:
        search.write(state)
    return search


def _verdict(arguments: argparse.Namespace, place: _Versions | _Runs, point: Point) -> Verdict:
    """Install a point's packages and run the command; what cannot be installed is skipped."""
    if point.lacks:
        return Verdict(result="skip", why=point.lacks)
    try:
        target, facts = _installed(place, point)
    except (MissingInputError, EnvironmentSetupError) as problem:
        return Verdict(result="skip", why=problem.message.splitlines()[0])
    path = f"{target.scripts}{os.pathsep}{process.handed_on().get('PATH', '')}"
    env = process.handed_on(PATH=path, VIRTUAL_ENV=str(target.prefix), BISECT_RUN=point.name)
    codes: list[int] = []
    log = place.folder / "logs" / f"{point.name}.log"
    log.unlink(missing_ok=True)
    how = {"cwd": arguments.directory, "seconds": arguments.timeout}
    while len(codes) < arguments.repeat:
        ended = process.supervise(arguments.command, env=env, log=log, **how)
        codes.append(1 if ended.late else ended.returncode)
        if not 0 <= codes[-1] < bisection.STOP:
            raise ProcessError(
                f"The command {ended.words} at {point.name}, which is neither good nor bad: {log}",
                hint="Where that is what you search for, give it another status: -- sh -c '… || exit 1'.",
            )
    return bisection.judged(codes).model_copy(update={"log": str(log), "facts": facts})


def _installed(place: _Versions | _Runs, point: Point) -> tuple[Interpreter, Facts]:
    """Make an environment of a point's packages, and nothing else."""
    wanted = place.wanted(point)
    group = wanted.source.group
    with install.others_index(group, "") as theirs:
        chosen = install.choose(wanted, theirs, place.base)
        for one in chosen.ours:
            if group and one.key and group.store.find(one.key) is None:
                raise MissingInputError(f"{one.name} is no longer there.")
        with (
            wanted.source.opened(chosen.ours) as ours,
            install.environment(place.folder / "venv", python=place.python, clean=True) as target,
        ):
            install.install_chosen(target, wanted, chosen, ours, theirs)
    known = place.facts(point)
    packages = {one.distribution: one.version for one in chosen.ours}
    packages |= {one.name: one.version for one in chosen.theirs}
    commits = {**bisection.commits_in(target.purelib), **known.commits}
    return target, known.model_copy(update={"packages": packages, "commits": commits})


@dataclass(frozen=True, kw_only=True)
class _Place:
    arguments: argparse.Namespace
    common: Common
    source: PackageSource

    @property
    def folder(self) -> Path:
        return (self.arguments.state or self.common.cache / "bisect").absolute()

    @property
    def ends(self) -> tuple[str, str]:
        return self.arguments.good, self.arguments.bad

    @property
    def python(self) -> str:
        return str(self.common.python or "")

    @cached_property
    def base(self) -> Interpreter:
        """What environments are made from."""
        return interpreter(install.base_python(self.python))

    @property
    def requirements(self) -> Sequence[Requirement]:
        """What is to be installed, anew each time, as versions are written into it."""
        default = "rocm[libraries,devel]" if self.arguments.rocm else "torch"
        return install.parse_requirements(self.arguments.packages or [default])

    def chosen(self, source: PackageSource, pins: Mapping[str, str], family: str) -> Wanted:
        """Say what is to be installed of a source, some of it in exact versions."""
        requirements = self.requirements
        for one in requirements:
            if (version := pins.get(canonicalize_name(one.name))) and not one.specifier:
                one.specifier = SpecifierSet(f"=={version}")
        return install.wanted_of(self.common, source, requirements, family, self.base)

    def facts(self, _point: Point) -> Facts:
        return Facts()  # the packages say it, once they are installed


@dataclass(frozen=True, kw_only=True)
class _Versions(_Place):
    """The versions of the first package in an index, a page or a folder."""

    @property
    def subject(self) -> str:
        return canonicalize_name(self.requirements[0].name)

    def points(self) -> Sequence[Point]:
        """List them by the days that they name; of branches that go on side by side, those of the ends'."""
        held = [*reversed(self.source.versions(self.subject, self.base.tag))]
        if not held:
            raise self.source.lacks(self.subject)
        series = {one.partition("+")[0] for one in held if "+" in one and one in self.ends}
        fitting = [one for one in held if not series or one.partition("+")[0] in series]
        day = bisection.day_in
        return [Point(name=one, started=day(one)) for one in sorted(fitting, key=day)]

    def wanted(self, point: Point) -> Wanted:
        return self.chosen(self.source, {self.subject: point.name}, self.common.gpu_family)


@dataclass(frozen=True, kw_only=True)
class _Runs(_Place):
    """The runs of a store that built one cell: a torch ref, GPU family and Python, or a family's ROCm."""

    @property
    def stage(self) -> str:
        return _ROCM if self.arguments.rocm else "build_torch"

    @cached_property
    def store(self) -> Store:
        return self.common.open_for_reading()

    @property
    def python(self) -> str:
        return super().python or self.cell.python.replace("cp3", "3.")

    @cached_property
    def ids(self) -> Sequence[str]:
        """The runs there are, the last one last; this machine's own only where they are named."""
        runs = reversed(stored_runs(self.store, self.common.outputs))
        return [one for one in runs if one in self.ends or not is_local(one)]

    @cached_property
    def cell(self) -> CellName:
        """The cell that both ends have, by the options."""
        ends = [one for one in self.ends if one in self.ids] or self.ids[-1:]
        if not ends:
            raise MissingInputError(
                f"{self.store.url} has no run.", hint="Name a store of runs with --store."
            )
        tags = {"", self.base.tag} if self.common.python else ()
        common = set.intersection(*(self._cells(one) for one in ends))
        held = sorted(one for one in common if not tags or one.python in tags)
        if len(held) != 1:
            listed = "".join(f"\n  {one}" for one in held)
            raise UsageError(
                f"One cell is searched, and {' and '.join(ends)} built {len(held) or 'none'} alike.{listed}",
                hint="Choose with --torch-ref, --gpu-family and --python, or name other runs.",
            )
        return held[0]

    def _cells(self, run_id: str) -> set[CellName]:
        facts = read_run(replace(self.common, run_id=run_id), tests=False)
        every = ((group.name, record) for group in facts.groups for _, record in group.records)
        return {CellName.of(name, one.cell) for name, one in every if one.stage == self.stage}

    def points(self) -> Sequence[Point]:
        """List the runs of the cell and of the last one's release type, by their records' time.

        A lock and a record are read of each; of CI's runs, whose ids are numbers, only between the ends.
        """
        ids = self.ids
        if all(one in ids and one.isdecimal() for one in self.ends):
            low, high = sorted(map(int, self.ends))
            ids = [one for one in ids if one.isdecimal() and low <= int(one) <= high]
        found = sorted(filter(None, each(self._point, ids)), key=attrgetter("started"))
        last = [one for one in found if one.name == self.ends[1]] or found[-1:]
        return [one for one in found if one.release_type == last[0].release_type]

    def _outputs(self, run_id: str) -> RunOutputs:
        return replace(self.common.outputs, run_id=run_id)

    def _read(self, key: str, model: type[AnyModel]) -> AnyModel | None:
        """Read a document; None where there is none that can be read."""
        with suppress(MissingInputError, DataError):
            return parse_json(self.store.read(key).decode(errors="replace"), model, where=key)
        return None

    def _lock(self, run_id: str) -> SourceLock | None:
        return self._read(self._outputs(run_id).source_lock_key(self.cell.torch_ref), SourceLock)

    def _point(self, run_id: str) -> Point | None:
        """Return a run that built the cell, or tried to; None for any other one."""
        outputs, cell, lock = self._outputs(run_id), self.cell, self._lock(run_id)
        name = records.record_name(self.stage, Cell(torch_ref=cell.torch_ref, python=cell.python))
        keys = [outputs.record_key(cell.group, f"{name}{end}") for end in ("", ".failed")]
        record = self._read(keys[0], Record) or self._read(keys[1], Record)
        if record is None:
            return None
        names, failed = {one.version for one in record.files}, record.error.partition("\n")[0] or "failed"
        if lock:
            made = (version for one in lock.projects.values() for version in one.versions.values())
            names |= {lock.digest(), lock.rocm_version, *made}
        return Point(
            name=run_id,
            started=record.started,
            release_type=lock.release_type if lock else "",
            names=tuple(sorted(names)),
            lacks=f"{name}: {failed}" if record.status != "ok" else "",
        )

    def _made(self, point: Point) -> Sequence[Record]:
        """Read what builds of the cell, and of its ROCm, recorded."""
        found = records.read_all(self.store, self._outputs(point.name), self.cell.group)
        builds = (one for one in found if one.status == "ok" and one.stage.startswith("build_"))
        here = self.cell
        return [one for one in builds if one.stage == _ROCM or CellName.of(here.group, one.cell) == here]

    def wanted(self, point: Point) -> Wanted:
        """Take what the run built; a ROCm that it lacks is an index's."""
        group = RunGroup(store=self.store, outputs=self._outputs(point.name), name=self.cell.group)
        source, other = PackageSource(group=group), self.source
        family = self.common.gpu_family or group.family
        pins = {file.distribution: file.version for one in self._made(point) for file in one.files}
        if family and self.stage != _ROCM and not has_rocm(source):
            urls = other.index_urls or (() if other.find_links else (release_index_url("", family),))
            source = replace(other, group=group, index_urls=urls)
        return self.chosen(source, pins, family)

    def facts(self, point: Point) -> Facts:
        """Return what the run's lock, plan and records say."""
        plan = self._read(self._outputs(point.name).plan_key, Plan)
        key = self.common.platform, self.cell.group
        found = plan.rocm.origins if plan else ()
        origins = (one for one in found if (one.platform, one.artifact_group) == key)
        return bisection.facts_of(self._lock(point.name), origins, self._made(point))
