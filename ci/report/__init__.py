"""The page of a run: one model of what its records say, shown as HTML, as text and as JSON.

The inside of builds and the results of tests, and wheels: what they are, from what sources, how they grew.
"""

from __future__ import annotations

import re
from collections import defaultdict
from dataclasses import replace
from typing import TYPE_CHECKING, Any, TypeAlias
from urllib.parse import quote

from pydantic import TypeAdapter, ValidationError

from ci.report import model
from ci.report.cells import cells_of, problems_of, runs_of, time_line, told_once
from ci.report.compare import compare
from core.console import counted
from core.junit import OUTCOMES
from core.wheel import CONTENTS
from pytorch_build.build.build import BORROWED
from pytorch_build.components import component_of
from pytorch_build.lock.source_lock import LockedProject, SourceLock
from pytorch_build.sources.git import is_commit
from rocm_packaging.packages.layouts import host_distribution

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from ci.report.facts import RunFacts
    from core.cell import GroupCell
    from core.run.records import FileRecord, Record
    from pytorch_build.test.summary import GroupEntry

SLOWEST, _SLOW = 50, 1.0
_WORSE: dict[str, int] = {outcome: at for at, outcome in enumerate(OUTCOMES)}
# a file of a record, and what it is a version of: what its cell makes of a distribution
_Found: TypeAlias = "tuple[tuple[GroupCell, str], FileRecord, Record]"
_HOSTED = re.compile(r"https://github\.com/[A-Za-z0-9._-]+/[A-Za-z0-9._-]+")


def page_of(facts: RunFacts, before: RunFacts | None = None) -> model.Page:
    """Make the page of a run."""
    wheels, gone = wheels_of(facts, before)
    tests = tests_of(facts)
    builds, odd = builds_of(facts)
    runs = runs_of(facts)
    line = time_line(run for found in runs.values() for run in found)
    stages_of_groups = _stages_of_groups(runs)
    groups: list[model.Group] = []
    for group in facts.groups:
        stages = stages_of_groups.get(group.name, ())
        groups.append(
            model.Group(
                name=group.name, find_links=group.find_links, stages=tuple(stages), line=time_line(stages)
            )
        )
    page = model.Page(
        run_id=facts.run_id,
        platform=facts.platform,
        against=before.run_id if before else "",
        started=line.started,
        busy=line.busy,
        elapsed=line.elapsed,
        problems=told_once([*problems_of(facts, tests), *odd]),
        groups=tuple(groups),
        cells=cells_of(facts, wheels, _failing_stages(tests)),
        wheels=wheels,
        gone=gone,
        builds=builds,
        tests=tests,
        sources=sources_of(facts, before),
    )
    return replace(page, changes=compare(page_of(before), page)) if before else page


def _stages_of_groups(
    runs: Mapping[GroupCell, Sequence[model.StageRun]],
) -> Mapping[str, Sequence[model.StageRun]]:
    """Return the stages that are of a whole artifact group, such as ROCm's, with their Python if any."""
    stages: dict[str, list[model.StageRun]] = defaultdict(list)
    for cell, stage_runs in runs.items():
        if cell.torch_ref is not None:
            continue
        for stage_run in stage_runs:
            stage = stage_run.stage if cell.python is None else f"{stage_run.stage} {cell.python_tag}"
            stages[cell.artifact_group or ""].append(replace(stage_run, stage=stage))
    return stages


def _failing_stages(tests: model.RunTests) -> dict[GroupCell, dict[str, str]]:
    """Return why tests of cells did not pass, by their stages."""
    failing: dict[GroupCell, dict[str, str]] = defaultdict(dict)
    for run in tests.runs:
        if run.passed or run.missing:
            continue
        reason = f"{run.stage} cannot be believed"
        if run.failed:
            reason = f"{counted(run.failed, 'test')} of {run.stage} failed"
        failing[run.cell][run.stage] = reason
    return failing


def builds_of(facts: RunFacts) -> tuple[tuple[model.Build, ...], tuple[model.Problem, ...]]:
    """Return the inside of builds, failed ones first, then the longest; and what makes no sense."""
    builds, problems = [], []
    read = TypeAdapter(model.Build).validate_python
    for group in facts.groups:
        for key, record in group.records:
            if not record.stage.startswith("build_") or BORROWED in record.details:
                continue
            known = {"cell": model.cell_of_record(group.name, record), "stage": record.stage}
            known |= {"seconds": record.seconds, "failed": record.status != "ok"}
            try:
                build = read({**record.details, **known})
            except ValidationError as problem:
                first = problem.errors()[0]
                path = ".".join(str(part) for part in first["loc"])
                problems.append(model.Problem(where=key, what=f"details.{path}: {first['msg']}."))
                build = read(known)
            builds.append(build)
    builds.sort(key=lambda one: (not one.failed, -one.seconds, one.cell, one.stage))
    return tuple(builds), tuple(problems)


def tests_of(facts: RunFacts) -> model.RunTests:
    """Put the results of all groups together; a test that fails in ten cells is one line."""
    entries = [(group.name, one) for group in facts.groups for one in group.tests]
    runs = {(run.cell, run.stage): run for run in (_run(group, one) for group, one in entries)}
    missing = {key: why for group in facts.groups for key, why in group.missing.items()}
    missing |= {(name, stage.partition("-")[0]): why for (name, stage), why in missing.items()}
    runs |= {key: replace(runs[key], missing=why) for key, why in missing.items() if key in runs}
    slow = [line for line in _lines(entries, "slowest") if line.seconds >= _SLOW]
    return model.RunTests(
        runs=tuple(runs[key] for key in sorted(runs)),
        failures=_lines(entries, "failures"),
        flaky=_lines(entries, "flaky"),
        slowest=tuple(sorted(slow, key=lambda line: (-line.seconds, line.test))[:SLOWEST]),
    )


def _stage(one: GroupEntry) -> str:
    return f"{one.stage}_{one.config}" if one.config else one.stage


def _run(group: str, one: GroupEntry) -> model.StageTests:
    same = one.model_dump(include={"passed", "seconds", "problems"})
    order = dict.fromkeys((*OUTCOMES, *sorted(one.totals)))
    totals = tuple((name, count) for name in order if (count := one.totals.get(name)))
    return model.StageTests(cell=model.cell_of_tests(group, one), stage=_stage(one), totals=totals, **same)


def _lines(entries: Iterable[tuple[str, GroupEntry]], chosen: str) -> tuple[model.CaseLine, ...]:
    """Put the same test of several cells together, with its worst outcome."""
    found: dict[str, list[model.CaseLine]] = defaultdict(list)
    for group, entry in entries:
        place = f"{_stage(entry)} {model.cell_text(model.cell_of_tests(group, entry))}".strip()
        for one in getattr(entry, chosen):
            line = model.CaseLine(**one.model_dump(exclude={"shard", "attempts"}), cells=(place,))
            found[one.test].append(line)
    lines = (
        replace(
            max(same, key=lambda line: _WORSE.get(line.outcome, 0)),
            cells=tuple(dict.fromkeys(cell for line in same for cell in line.cells)),
            seconds=max(line.seconds for line in same),
        )
        for same in found.values()
    )
    return tuple(sorted(lines, key=lambda line: (-len(line.cells), line.test)))


def wheels_of(
    facts: RunFacts, before: RunFacts | None = None
) -> tuple[tuple[model.Wheel, ...], tuple[str, ...]]:
    """List a run's wheels and sdists, and the names of those of the run before that have gone."""
    old = {found[0]: found for found in (_files(before) if before else ())}
    ours = {(key[0].artifact_group, one.name): (key, one, record) for key, one, record in _files(facts)}
    made = [_wheel(facts, found, old.get(found[0])) for found in ours.values()]
    known = {key for key, _, _ in ours.values()}
    cells = {cell for cell, _ in known}
    gone = sorted({one.name for key, one, _ in old.values() if key not in known and key[0] in cells})
    made.sort(key=_order_of_wheel)
    split = {(one.cell, one.part_of) for one in made if one.part_of}
    whole = ((one, (one.cell, one.distribution) in split) for one in made)
    return tuple(replace(one, extra="device-all") if apart else one for one, apart in whole), tuple(gone)


def _order_of_wheel(wheel: model.Wheel) -> tuple[str, str, bool, str]:
    """Return what wheels are sorted by: device wheels follow the wheel that they are parts of."""
    host = wheel.part_of or wheel.distribution
    return wheel.cell.artifact_group or "", host, wheel.part_of != "", wheel.name


def _files(facts: RunFacts) -> Iterator[_Found]:
    """Yield what stages made; a cell's stage comes last, after an upload that names the same file."""

    def order(keyed: tuple[str, Record]) -> tuple[bool, str]:
        key, record = keyed
        return record.cell.torch_ref is not None, key

    for group in facts.groups:
        for _, record in sorted(group.records, key=order):
            for one in record.files if record.status == "ok" else ():
                name = one.distribution or one.name.partition("-")[0]
                yield (model.cell_of_record(group.name, record), name), one, record


def _wheel(facts: RunFacts, found: _Found, before: _Found | None) -> model.Wheel:
    (cell, distribution), one, record = found
    origin, commit = _source(record, one, facts.locks)
    old = contents_of(before[2], before[1].name) if before else {}
    return model.Wheel(
        **one.model_dump(include={"name", "version", "requires_python", "size", "sha256"}),
        path=f"../python/{quote(cell.artifact_group or '', safe='')}/{quote(one.name, safe='')}",
        cell=cell,
        stage=record.stage,
        seconds=record.seconds,
        distribution=distribution,
        origin=origin,
        commit=commit,
        edited=record.edited,
        borrowed=str(record.details.get(BORROWED) or ""),
        folders=_folders(contents_of(record, one.name), old),
        before=before[1].size if before else None,
        part_of=host_distribution(one.distribution),
    )


def _source(record: Record, one: FileRecord, locks: Mapping[str, SourceLock]) -> tuple[str, str]:
    """Find the commit: the one that the build's record names, else the source lock's."""
    match record.details.get("source"):
        case {"commit": str(commit), **more}:
            return str(more.get("origin") or ""), commit
    lock = locks.get(record.cell.torch_ref or "")
    component = component_of(host_distribution(one.distribution) or one.distribution)
    locked = lock.projects.get(component.name) if lock and component else None
    return (locked.origin, locked.commit) if locked else ("", "")


def contents_of(record: Record, name: str) -> Mapping[str, tuple[int, int, int]]:
    """Read the folders of a wheel from its record: path -> files, bytes, bytes in the wheel."""
    contents: Any = record.details.get(CONTENTS)
    folders = contents.get(name) if isinstance(contents, dict) else None
    found = {}
    for path, numbers in folders.items() if isinstance(folders, dict) else ():
        match numbers:
            case [int(files), int(size), int(packed)]:
                found[str(path)] = (files, size, packed)
    return found


def _folders(
    now: Mapping[str, tuple[int, int, int]], old: Mapping[str, tuple[int, int, int]]
) -> tuple[model.Folder, ...]:
    none, found = (0, 0, 0), []
    for name in {*now, *old} if now else ():
        files, size, packed = now.get(name, none)
        grown = packed - old.get(name, none)[2] if old else None
        found.append(model.Folder(path=name, files=files, size=size, packed=packed, grown=grown))
    return tuple(sorted(found, key=lambda folder: (-folder.packed, folder.path)))


def sources_of(facts: RunFacts, before: RunFacts | None = None) -> tuple[model.Source, ...]:
    """List every project of every ref, with the commit of the run before."""
    found = []
    no_lock = SourceLock(torch_ref="", release_type="", projects={})
    for ref, lock in sorted(facts.locks.items()):
        old = before.locks.get(ref, no_lock) if before else no_lock
        versions = {"version": lock.rocm_version, "version_before": old.rocm_version}
        if any(versions.values()):
            found.append(model.Source(torch_ref=ref, project="rocm", **versions))
        for name in dict.fromkeys((*lock.projects, *old.projects)):
            absent = LockedProject.model_construct(project=name)  # which no lock would have
            now, was = (one.projects.get(name, absent) for one in (lock, old))
            source = model.Source(
                **now.model_dump(include={"project", "ref", "commit"}),
                torch_ref=ref,
                origin=now.origin or was.origin,
                version=now.prebuilt or now.base_version,
                commit_before=was.commit,
                version_before=was.prebuilt or was.base_version,
                compare=_compare(now, was),
            )
            found.append(source)
    return tuple(found)


def commit_url(origin: str, commit: str) -> str:
    """Return the address that shows a commit, where the repository's host is known; else ""."""
    base = origin.removesuffix("/").removesuffix(".git")
    return f"{base}/commit/{commit}" if _HOSTED.fullmatch(base) and is_commit(commit) else ""


def _compare(now: LockedProject, old: LockedProject) -> str:
    """Return the address of the changes between two commits of one repository."""
    if now.origin != old.origin or now.commit == old.commit or not commit_url(old.origin, old.commit):
        return ""
    shown = commit_url(now.origin, now.commit)
    return shown.replace(f"/commit/{now.commit}", f"/compare/{old.commit}...{now.commit}")
