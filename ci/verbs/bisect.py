"""`bisect`: the first run, or version of an index, at which a command fails, and what differs in it."""

import argparse
import json
import os
import shlex
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from functools import cached_property
from pathlib import Path
from typing import Any

from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet
from packaging.utils import canonicalize_name

from ci import bisection, flow, install
from ci.bisection import Facts, Point, Search, Verdict
from ci.jobs import Job, common_options, store_options
from ci.pipeline import STEPS, NoxCall
from ci.report.facts import read_run
from ci.report.names import cell_text, natural_key
from ci.report.stored_runs import built_cells, list_runs
from core import console, files, process
from core.cell import GroupCell
from core.cli.options import DEFAULT_STORE, Common, common_from, is_given
from core.cli.sessions import command_again
from core.data import AnyModel, parse_json
from core.env import Interpreter
from core.errors import DataError, EnvironmentSetupError, MissingInputError, ProcessError, UsageError
from core.families import group_families
from core.packages.groups import RunGroup
from core.packages.options import add_package_source, source_options
from core.packages.package_source import PackageSource
from core.packages.sources import CombinedSource, PackageIndex, combine_sources
from core.parallel import map_in_threads
from core.run import LOCAL_RUN, RunOutputs, is_local, records
from core.run.plan import Plan
from core.stores import Store
from core.wheel import distributions
from pytorch_build.components import COMPONENTS, needed_first
from pytorch_build.context import context
from pytorch_build.lock.source_lock import SourceLock
from rocm_packaging.origin import has_rocm, named_source, release_index_url

_ROCM = "build_rocm"


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
    what = "a command that takes longer is bad (default: no limit)"
    add("--timeout", type=float, default=7 * 86400.0, metavar="SECONDS", help=what)
    add("--directory", type=Path, default=Path(), metavar="DIR", help="where it runs (default: here)")
    add("--no-verify", action="store_true", help="do not verify first that good is good and bad is bad")
    add("--build", action="store_true", help="build the wheels that runs lack, instead of skipping them")
    add("--state", type=Path, metavar="DIR", help="where the search is kept (default: .cache/bisect)")
    add("--reset", action="store_true", help="forget the search in progress")
    add("--json", action="store_true", help="also print the result as JSON")
    parser.epilog = "Run the same command again to continue an interrupted search."


def run(arguments: argparse.Namespace) -> None:
    """Search, from where the last call stopped."""
    # runs of CI are read where CI leaves them
    arguments.run_id = next(filter(str.isdecimal, (arguments.good, arguments.bad)), arguments.run_id)
    common, rocm = common_from(arguments), arguments.rocm
    options = source_options(arguments)
    source = named_source(options, common, common.gpu_family or options.index_subdir)
    names = arguments.packages or ["rocm[libraries,devel]" if rocm else "torch"]
    what: dict[str, Any] = {
        "common": common,
        "folder": (arguments.state or common.cache / "bisect").absolute(),
        "packages": install.parse_requirements(names),
        "source": source or CombinedSource(parts=()),
        "good": _end(arguments.good),
        "bad": _end(arguments.bad),
    }
    over_index = options.named and not is_given(arguments, "store")
    wrong = {
        "--repeat takes 1 or more.": arguments.repeat < 1,
        "--timeout takes more than 0.": arguments.timeout <= 0,
        "--build is for runs of PyTorch in a store.": arguments.build and (rocm or over_index),
        f"--directory {arguments.directory}: there is no such folder.": not arguments.directory.is_dir(),
    }
    for said in (one for one, is_wrong in wrong.items() if is_wrong):
        raise UsageError(said, hint="Correct it, or leave it out.")
    place: _Versions | _Runs = _Versions(**what) if over_index else _Runs(**what, rocm=rocm)
    state = place.folder / "state.json"
    with files.locked(place.folder / ".lock", what=f"the search in {place.folder}"):
        search = _begun(arguments, place, state)
        bisection.tell_plan(search, whole=common.dry_run)
        while not common.dry_run and (point := search.next):
            at = 1 + sum(one.times > 0 for one in search.verdicts.values())
            of = f"test {at} of at most {at - 1 + search.steps}"
            with console.group(f"{point.name} of {point.started[:10]} ({of})"):
                verdict = _verdict(arguments, place, point)
                console.done(f"{point.name}: {verdict.result}, {verdict.why}")
            search = search.told(point, verdict)
            search.write(state)
    if not common.dry_run:
        bisection.tell(search)
        if arguments.json:
            console.result(json.dumps(search.result, indent=1))


def _end(word: str) -> str:
    """Return a run's id, a version or a day as it is, and the digest of a lock's file."""
    return SourceLock.read(Path(word)).digest() if Path(word).is_file() else word


def _begun(arguments: argparse.Namespace, place: "_Versions | _Runs", state: Path) -> Search:
    """Return the search that is kept, or a new one; another one that is not at its end is kept."""
    same = ("good", "bad", "command", "repeat", "timeout", "build")
    question = {name: getattr(arguments, name) for name in same}
    question |= {"packages": [*map(str, place.packages)], "where": place.where}
    kept = Search.read(state) if state.is_file() and not arguments.reset else None
    if kept and kept.question == question:
        return kept
    if kept and kept.next and len(kept.verdicts) > 1:
        raise UsageError(
            f"Another search was begun, and is not finished:\n{kept.again}",
            hint="Continue it, or start anew: --reset, or --state DIR to keep both.",
        )
    points = bisection.between(place.points(), place.good, place.bad)
    again = command_again().replace(" --reset", "", arguments.reset)
    search = Search(question=question, points=points, build=arguments.build, again=again)
    for point, result in ((points[0], "good"), (points[-1], "bad")) if arguments.no_verify else ():
        known = {"result": result, "why": "not tested", "facts": place.facts(point)}
        search = search.told(point, Verdict.model_validate(known))
    if not place.common.dry_run:
        search.write(state)
    return search


def _verdict(arguments: argparse.Namespace, place: "_Versions | _Runs", point: Point) -> Verdict:
    """Install a point's packages and run the command; what cannot be installed is skipped."""
    if point.lacks and not arguments.build:
        return Verdict(result="skip", why=point.lacks)
    with ExitStack() as stack:
        try:
            target, facts = stack.enter_context(_installed(place, point))
        except (MissingInputError, EnvironmentSetupError) as problem:
            lost = isinstance(problem, MissingInputError)
            return Verdict(result="skip", why=problem.message.splitlines()[0], lost=lost)
        path = f"{target.scripts}{os.pathsep}{process.handed_on().get('PATH', '')}"
        word, *words = arguments.command
        program = process.which(str(arguments.directory / word) if os.sep in word else word, path=path)
        if not program:
            raise UsageError(
                f"There is no {word} in the environment, nor on this machine.",
                hint=f"Where a package has it: --packages '{' '.join(map(str, place.packages))} {word}'.",
            )
        env = process.handed_on(PATH=path, VIRTUAL_ENV=str(target.prefix), BISECT_RUN=point.name)
        codes, said, log = list[int](), "", place.folder / "logs" / f"{point.name}.log"
        log.unlink(missing_ok=True)
        how = {"cwd": arguments.directory, "seconds": arguments.timeout}
        while len(codes) < arguments.repeat:
            console.echo(f"+ {shlex.join(arguments.command)}  (output: {log})")
            ended = process.supervise([program.absolute(), *words], env=env, log=log, **how)
            codes, said = [*codes, 1 if ended.late else ended.returncode], ended.words
            if not 0 <= codes[-1] < bisection.STOP:
                raise ProcessError(
                    f"The command {said} at {point.name}, which is neither good nor bad: {log}",
                    hint="To search for exactly that, give it another status: -- sh -c '… || exit 1'.",
                )
        return bisection.judged(codes, said).model_copy(update={"log": str(log), "facts": facts})


@contextmanager
def _installed(place: "_Versions | _Runs", point: Point) -> Iterator[tuple[Interpreter, Facts]]:
    """Make an environment of a point's packages, and nothing else."""
    venv = place.folder / "venv"
    wanted = place.wanted(point)
    with install.opened_dependency_index(wanted.source.stored, "") as theirs:
        chosen = install.choose(wanted, theirs, place.planned())
        for candidate in chosen.our_files:
            if candidate.key is None or wanted.source.stored is None:
                continue
            if wanted.source.stored.store.find(candidate.key) is None:
                raise MissingInputError(f"{candidate.name} is no longer there.")
        with (
            wanted.source.opened(chosen.our_files) as ours,
            install.environment(venv, python=place.python, clean=True) as target,
        ):
            install.install_chosen(target, wanted, chosen, ours, theirs)
            known = place.facts(point)
            packages = {one.distribution: one.version for one in chosen.our_files}
            packages |= {one.name: one.version for one in chosen.other_packages}
            commits = {**bisection.commits_in(target.purelib), **known.commits}
            yield target, known.model_copy(update={"packages": packages, "commits": commits})


@dataclass(frozen=True, kw_only=True)
class _Place:
    common: Common
    folder: Path
    packages: tuple[Requirement, ...]
    source: PackageSource
    good: str
    bad: str

    @property
    def python(self) -> str:
        return str(self.common.python or "")

    def planned(self) -> Interpreter:
        return install.planned(self.folder / "venv", python=self.python, clean=True)

    def chosen(self, source: PackageSource, pins: Mapping[str, str], family: str) -> install.InstallRequest:
        """Say what is to be installed of a source, some of it in exact versions."""
        requirements = install.parse_requirements([*map(str, self.packages)])
        for one in requirements:
            if (version := pins.get(canonicalize_name(one.name))) and not one.specifier:
                one.specifier = SpecifierSet(f"=={version}")
        return install.request_packages(self.common, source, requirements, family, self.planned())


@dataclass(frozen=True, kw_only=True)
class _Versions(_Place):
    """The versions of the first package in an index, a page or a folder."""

    @property
    def where(self) -> str:
        return f"{self.source.description} {self.python}".strip()

    def points(self) -> Sequence[Point]:
        """List them by the days that they name; of branches that go on side by side, those of the ends'."""
        subject = self.packages[0].name
        held = [*reversed(self.source.versions(canonicalize_name(subject), self.planned().tag))]
        if not held:
            raise self.source.missing_error(subject)
        day = bisection.day_in
        points = [Point(name=one, started=day(one)) for one in sorted(held, key=day)]
        ends = [bisection.end_of(points, word).name for word in (self.good, self.bad)]
        series = {one.partition("+")[0] for one in ends if day(one)}
        fitting = [one for one in points if not series or one.name.partition("+")[0] in series]
        if len(fitting) < len(points):
            console.say(f"Searched is {' to '.join(sorted(series))}; for others name versions, not days.")
        return fitting

    def wanted(self, point: Point) -> install.InstallRequest:
        pins: dict[str, str] = {canonicalize_name(self.packages[0].name): point.name}
        return self.chosen(self.source, pins, self.common.gpu_family)

    def facts(self, _point: Point) -> Facts:
        return Facts()  # the packages say it, once they are installed


def _names_of_run(lock: SourceLock | None, record: records.Record | None) -> set[str]:
    """Return what else a run may be called: its lock's digest, the versions of that and of its files."""
    names: set[str] = set()
    if lock is not None:
        names |= {lock.digest(), lock.rocm_version}
        for project in lock.projects.values():
            names.update(project.versions.values())
    if record is not None:
        names.update(file.version for file in record.files)
    return names


@dataclass(frozen=True, kw_only=True)
class _Runs(_Place):
    """The runs of a store that built one cell: a torch ref, GPU family and Python, or a family's ROCm."""

    rocm: bool

    @cached_property
    def store(self) -> Store:
        return self.common.open_for_reading()

    @property
    def where(self) -> str:
        # A search that is continued knows its cell by this text.
        return f"{self.store.url}, {cell_text(self.cell)}"

    @property
    def python(self) -> str:
        return super().python or self.cell.python or ""

    @cached_property
    def ids(self) -> Sequence[str]:
        """The runs there are, the last one last; this machine's own only where they are named."""
        found, ends = reversed(list_runs(self.store, self.common.outputs)), {self.good, self.bad}
        return [one for one in found if one in ends or not is_local(one)]

    @cached_property
    def cell(self) -> GroupCell:
        """The cell that both ends have, by the options."""
        ends = [run_id for run_id in (self.good, self.bad) if run_id in self.ids] or self.ids[-1:]
        cells_of_ends: list[set[GroupCell]] = []
        for run_id in ends:
            # An end may have built nothing; the other one says then what is searched.
            with suppress(MissingInputError):
                cells_of_ends.append(self._cells_of_run(run_id))
        if not cells_of_ends:
            raise MissingInputError(
                f"{self.store.url} has no run {self.good} or {self.bad} with records of builds.",
                hint="Name a store of runs with --store, or runs that built something.",
            )

        common_cells = sorted(set.intersection(*cells_of_ends))
        requested_cells = [cell for cell in common_cells if self._is_requested(cell)]
        if len(requested_cells) != 1:
            listed_cells = requested_cells or common_cells
            raise UsageError(
                f"One cell is searched, and the options leave {len(requested_cells) or 'none'} of those that "
                f"{' and '.join(ends)} have in common:" + "".join(f"\n  {cell}" for cell in listed_cells),
                hint="Choose with --torch-ref, --gpu-family and --python, or name other runs.",
            )
        return requested_cells[0]

    def _cells_of_run(self, run_id: str) -> set[GroupCell]:
        """Return the cells that a run built, or the artifact groups whose ROCm it packaged."""
        facts = read_run(replace(self.common, run_id=run_id, torch_ref="", gpu_family=""), tests=False)
        if not self.rocm:
            return set(built_cells(facts))
        return {
            GroupCell(artifact_group=group.name)
            for group in facts.groups
            if any(record.stage == _ROCM for _, record in group.records)
        }

    def _is_requested(self, cell: GroupCell) -> bool:
        """Return whether a cell is one that the options name; what they leave out is any."""
        if self.common.artifact_group not in {"", cell.artifact_group}:
            return False
        return self.rocm or (
            self.common.torch_ref in {"", cell.torch_ref} and self._python_tag in {None, cell.python_tag}
        )

    @cached_property
    def _python_tag(self) -> str | None:
        """The ABI tag of the Python that the options name."""
        if not self.common.python:
            return None
        return install.planned(self.folder / "venv", python=str(self.common.python), clean=True).tag

    def points(self) -> Sequence[Point]:
        """List the runs of the cell and of the last one's release type, by their records' time.

        A lock and a record are read of each; of CI's runs, whose ids are numbers, only between the ends.
        """
        ids, ends = self.ids, (self.good, self.bad)
        if all(one in ids and one.isdecimal() for one in ends):
            low, high = sorted(map(int, ends))
            ids = [one for one in ids if one.isdecimal() and low <= int(one) <= high]
        found = [one for one in map_in_threads(self._point, ids) if one]
        found.sort(key=lambda one: (one.started, natural_key(one.name)))
        kind = bisection.end_of(found, self.bad).kind
        return [one for one in found if one.kind == kind]

    @property
    def _artifact_group(self) -> str:
        return self.cell.artifact_group or ""

    @property
    def _torch_ref(self) -> str:
        return self.cell.torch_ref or ""

    def _outputs(self, run_id: str) -> RunOutputs:
        return replace(self.common.outputs, run_id=run_id)

    def _read(self, key: str, model: type[AnyModel]) -> AnyModel | None:
        """Read a document; None where there is none that can be read."""
        with suppress(MissingInputError, DataError):
            return parse_json(self.store.read(key).decode(errors="replace"), model, where=key)
        return None

    def _lock(self, run_id: str) -> SourceLock | None:
        """Read the source lock of a run; ROCm alone has none."""
        key = self._outputs(run_id).source_lock_key(self._torch_ref)
        return None if self.rocm else self._read(key, SourceLock)

    def _point(self, run_id: str) -> Point | None:
        """Return a run; None for one of other cells."""
        outputs = self._outputs(run_id)
        lock = self._lock(run_id)
        if lock is None and not self.rocm:
            return None
        recorded_cell = GroupCell(torch_ref=self.cell.torch_ref, python=self.cell.python)
        name = records.record_name(_ROCM if self.rocm else "build_torch", recorded_cell)
        key = outputs.record_key(self._artifact_group, name)
        failed_key = outputs.record_key(self._artifact_group, f"{name}.failed")
        record = self._read(key, records.Record) or self._read(failed_key, records.Record)
        if lock is None and record is None:
            return None

        lacks = f"it has no {name}"
        if record is not None:
            error = record.error.partition("\n")[0] or "failed"
            lacks = "" if record.status == "ok" else f"{name}: {error}"
        return Point(
            name=run_id,
            started=self._resolved(outputs, lock) if record is None else record.started,
            names=tuple(sorted(_names_of_run(lock, record))),
            lacks=lacks,
            kind="" if lock is None else lock.release_type,
        )

    def _resolved(self, outputs: RunOutputs, lock: SourceLock | None) -> str:
        """Return when the lock of a run was resolved, in ISO 8601."""
        if lock is not None and lock.resolved is not None:
            return lock.resolved
        # Locks of older runs do not say it, and a copied run has the modification times of its copy.
        stored = self.store.find(outputs.source_lock_key(self._torch_ref))
        seconds = 0 if stored is None else stored.modified
        return datetime.fromtimestamp(seconds, UTC).isoformat(timespec="seconds")

    def _group(self, point: Point) -> RunGroup:
        """Return where the packages of a run are: of one that lacks them, in a run of this machine."""
        outputs, store = self._outputs(point.name), self.store
        if point.lacks:
            here = self._here(point)
            outputs, store = here.outputs, here.open_store()
        return RunGroup(store=store, outputs=outputs, name=self._artifact_group)

    def _made(self, group: RunGroup) -> Sequence[records.Record]:
        """Read what builds of the cell, and of its ROCm, recorded."""
        cell = self.cell.torch_ref, self.cell.python
        found = records.read_all(group.store, group.outputs, group.name)
        builds = (one for one in found if one.status == "ok" and one.stage.startswith("build_"))
        return [one for one in builds if one.stage == _ROCM or (one.cell.torch_ref, one.cell.python) == cell]

    def wanted(self, point: Point) -> install.InstallRequest:
        """Take what the run built, built first where it lacks it; a ROCm that it lacks is an index's."""
        if point.lacks:
            self._build(point)
        group = self._group(point)
        source: PackageSource = group
        family = group.family and (self.common.gpu_family or group.family)
        pins = {file.distribution: file.version for one in self._made(group) for file in one.files}
        if family and not self.rocm and not has_rocm(source):
            rocm_source = self.source
            if not rocm_source.index_urls and not rocm_source.find_links:
                rocm_source = PackageIndex(url=release_index_url("", family))
            source = combine_sources([group, rocm_source])
        return self.chosen(source, pins, family)

    def _here(self, point: Point) -> Common:
        """Return the run of this machine in which what another one lacks is built, from its lock."""
        ref, family = self._torch_ref, self.common.gpu_family or group_families(self._artifact_group)
        lock = self._lock(point.name)
        own: dict[str, Any] = {"store": DEFAULT_STORE, "read_store": "", "external_repo": ""}
        own |= {"release_type": lock.release_type} if lock else {}
        named = f"{LOCAL_RUN}-bisect-{point.name}"
        return replace(self.common, run_id=named, torch_ref=ref, gpu_family=family, **own)

    def _build(self, point: Point) -> None:
        """Build what a run lacks, on its ROCm."""
        common = self._here(point)
        own = common.open_store()
        outputs = common.outputs
        artifact_group = self._artifact_group
        lender = RunGroup(store=self.store, outputs=self._outputs(point.name), name=artifact_group)
        for one in self._made(lender):
            if one.stage == _ROCM:
                paths = (self.store.fetch(file.key, common.cache / "fetched") for file in one.files)
                held = tuple(distributions.publish(own, outputs, artifact_group, path) for path in paths)
                records.write(own, outputs, artifact_group, one.model_copy(update={"files": held}))
        chosen, names = context(common), {canonicalize_name(one.name) for one in self.packages}
        projects = {name for name, component in COMPONENTS.items() if component.distribution in names}
        below = {one for name in projects for one in needed_first(name, gpu=chosen.gpu)}
        projects |= below & {*chosen.ref.components}
        if lock := self._lock(point.name):
            # its commits stand, whatever the refs data names by now, unless they are of elsewhere
            kept = {name: one.model_copy(update={"chosen": True}) for name, one in lock.projects.items()}
            now = {name: one for name, one in chosen.ref.projects.items() if name in kept and not one.pin}
            if odd := [name for name, one in now.items() if one.origin != kept[name].origin]:
                which = ", ".join(odd)
                raise MissingInputError(f"Its lock has another origin of {which} than the refs data.")
            text = lock.model_copy(update={"projects": kept}).model_dump_json()
            own.put_bytes(outputs.source_lock_key(self._torch_ref), text.encode(), replace=True)
        call = NoxCall(
            sessions=tuple(step.session for step in STEPS if step.component in projects),
            python=self.python or None,
            options=(*common_options(common), *store_options(common)),
        )
        try:
            flow.run_jobs([Job(name=common.run_id, kind="build_pytorch", calls=(call,))], root=common.root)
        except ProcessError as problem:
            # the stage's own words and its tool's first error, if any
            why = " ".join(problem.message.splitlines()[1:3]) or problem.message
            raise MissingInputError(f"It could not be built: {why}") from problem

    def facts(self, point: Point) -> Facts:
        """Return what the run's lock, plan and records say."""
        outputs = self._outputs(point.name)
        lock = self._lock(point.name)
        plan = self._read(outputs.plan_key, Plan)
        key = outputs.platform, self._artifact_group
        found = plan.rocm.origins if plan else ()
        origins = (one for one in found if (one.platform, one.artifact_group) == key)
        return bisection.facts_of(lock, origins, self._made(self._group(point)))
