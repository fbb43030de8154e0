"""Results of all shards of a stage on one cell: merged without loss, and compared with what was planned.

A test run passes when its tests ran and none failed. Everything else is a problem, and a problem is a
failure: a report that is cut off or missing, a shard that is missing or there twice, shards that were planned
differently, a test that ran in two of them or in none, no test at all, or none that passed.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace

from core.cell import GroupCell, python_of_tag
from core.errors import UsageError
from core.junit import NO_TEST, Case, Document, Suite, counts
from core.run.records import record_name
from pytorch_build.check import some
from pytorch_build.test.shards import Shard, parse_shard

DEFAULT_CONFIG = "default"
# property of a test file: how many tests it has before anything chooses among them
EXISTING = "existing_tests"
# properties of a report: what else there was to run, and the percentage that may skip itself by no rule
LEFT_OUT, MAY_SKIP = "left_out", "may_skip"
TAKEN_OUT = "skipped or tried again by no rule and for no known reason"


@dataclass(frozen=True, kw_only=True, order=True)
class Origin:
    """What was tested, by which stage, where; "" for what a report does not contain."""

    stage: str = ""
    torch_ref: str = ""
    python: str = ""
    gpu_family: str = ""
    group: str = ""
    config: str = ""
    run_id: str = ""
    folder: str = ""

    def __str__(self) -> str:
        config = self.config.removeprefix(DEFAULT_CONFIG)
        parts = (self.stage, self.torch_ref, self.gpu_family, self.python, config, self.folder)
        return " ".join(filter(None, parts)) or "tests"

    @classmethod
    def of(cls, stage: str, cell: GroupCell, *, config: str, run_id: str) -> Origin:
        """Return that of a stage on a cell."""
        return cls(
            stage=stage,
            config=config,
            run_id=run_id,
            torch_ref=cell.torch_ref or "",
            python=cell.python_tag or "",
            gpu_family=cell.gpu_family or "",
            group=cell.artifact_group or "",
        )

    @property
    def cell(self) -> GroupCell:
        """What its stage ran on."""
        return GroupCell(
            torch_ref=self.torch_ref or None,
            python=python_of_tag(self.python) if self.python else None,
            gpu_family=self.gpu_family or None,
            artifact_group=self.group or None,
        )

    @property
    def name(self) -> str:
        """The name of its reports: ``torch-release-2.10-cp312-distributed``."""
        config = self.config.removeprefix(DEFAULT_CONFIG)
        return record_name(self.stage.removeprefix("test_"), self.cell) + (f"-{config}" if config else "")


# properties of a report that say what it is about
_ABOUT = tuple(one.name for one in fields(Origin) if one.name != "folder")


@dataclass(frozen=True, kw_only=True)
class Report:
    """What one shard, or a stage without shards, reported."""

    origin: Origin
    document: Document
    shard: Shard | None = None
    plan: str = ""
    where: str = ""


@dataclass(frozen=True, kw_only=True)
class Tested:
    """All results of a stage on one cell, each with its shard."""

    origin: Origin
    cases: tuple[tuple[Case, str], ...] = ()
    problems: tuple[str, ...] = ()
    seconds: float = 0.0
    suites: Mapping[str, Suite] = field(default_factory=dict)
    chosen: Mapping[str, str] = field(default_factory=dict)
    shards: int = 1

    @property
    def failing(self) -> tuple[tuple[Case, str], ...]:
        """What counts against the wheels."""
        return tuple((case, shard) for case, shard in self.cases if case.failing)

    @property
    def counts(self) -> dict[str, int]:
        """Results by outcome."""
        return counts(case for case, _ in self.cases)

    @property
    def passed(self) -> bool:
        """Whether the tests ran, all of them, and none failed."""
        return not self.problems and not self.failing


def last_attempt(cases: Sequence[Case]) -> Case:
    """Make one result of the attempts of a test, the first one first: flaky if it failed and then passed."""
    last = cases[-1]
    failed = next((case for case in cases if case.failing), None)
    attempts, seconds = sum(case.attempts for case in cases), sum(case.seconds for case in cases)
    if last.outcome == "passed" and failed is not None:
        last = replace(last, outcome="flaky", line=failed.line, text=failed.text)
    elif not last.failing and failed is not None:
        last = failed  # skipped after a failure: it was never seen to pass
    return replace(last, attempts=attempts, seconds=seconds)


def last_attempts(cases: Iterable[Case]) -> Sequence[Case]:
    """Make one result per test, in their order; of several of one test the first comes first."""
    found: dict[str, list[Case]] = {}
    for case in cases:
        found.setdefault(case.test, []).append(case)
    return [last_attempt(attempts) for attempts in found.values()]


def report_of(document: Document, origin: Origin, *, where: str = "") -> Report:
    """Read from a report's own properties what it is about; `origin` is what is known beside them."""
    said, problems = document.properties, document.problems
    # a report that names no stage is ROCm's, whose `python` is a whole version
    named = _ABOUT if said.get("stage") else ()
    known = replace(origin, **{name: said[name] for name in named if said.get(name)})
    known = replace(known, config=known.config.removeprefix(DEFAULT_CONFIG))
    shard = None
    if text := said.get("shard"):
        try:
            shard = parse_shard(text)
        except UsageError:
            problems = (*problems, f"it names {text[:40]!r} as its shard")
    if shard and MAY_SKIP in said:
        # a shard for which nothing is left, as others took it all
        problems = tuple(one for one in problems if one != NO_TEST)
    return Report(
        origin=replace(known, folder="") if known.stage else known,
        document=replace(document, problems=problems),
        shard=shard,
        plan=said.get("plan", ""),
        where=where,
    )


def document_of(report: Report) -> Document:
    """Return a report's document with what it is about among its properties: `report_of` backwards."""
    said = {name: getattr(report.origin, name) for name in _ABOUT}
    said |= {"shard": str(report.shard or ""), "plan": report.plan}
    own = {name: value for name, value in said.items() if value}
    return replace(report.document, properties={**report.document.properties, **own})


def merged(reports: Iterable[Report]) -> tuple[Tested, ...]:
    """Merge reports, by what they are about, sorted."""
    found: dict[Origin, list[Report]] = defaultdict(list)
    for report in reports:
        found[report.origin].append(report)
    return tuple(_tested(origin, found[origin]) for origin in sorted(found))


def _tested(origin: Origin, reports: Sequence[Report]) -> Tested:
    by_shard: dict[Shard | None, list[Report]] = defaultdict(list)
    for report in sorted(reports, key=lambda one: (one.document.timestamp, one.where)):
        by_shard[report.shard].append(report)
    problems = []
    for one in reports:
        where = f"shard {one.shard}: " if one.shard else f"{one.where}: " if one.where else ""
        problems += [f"{where}{said}" for said in one.document.problems]
    problems += _shard_problems(by_shard)
    cases: list[tuple[Case, str]] = []
    ran_in: dict[str, list[str]] = defaultdict(list)
    for shard in sorted(by_shard, key=lambda one: (one.count, one.index) if one else (0, 0)):
        # of several reports of one shard the later ones are further attempts
        for case in last_attempts(case for report in by_shard[shard] for case in report.document.cases):
            cases.append((case, str(shard or "")))
            ran_in[case.test].append(str(shard or ""))
    if twice := sorted(test for test, shards in ran_in.items() if len(shards) > 1):
        problems.append(f"{some(twice)} ran in more than one shard ({', '.join(ran_in[twice[0]])})")
    said = [(name, one.document.properties.get(name)) for one in reports for name in (LEFT_OUT, MAY_SKIP)]
    chosen = {name: value for name, value in said if value}
    problems += [*_existing_problems(reports), *filter(None, [chosen.get(LEFT_OUT)])]
    found = counts(case for case, _ in cases)
    if not problems and not cases:
        problems = ["no test ran"]
    elif not problems and found["skipped"] + found["xfailed"] == len(cases):
        problems = [f"all {len(cases)} tests were skipped"]
    elif why := unexplained([case for case, _ in cases], chosen):
        problems.append(f"{len(why)} tests were {TAKEN_OUT}, such as {why[0].test}: {why[0].line}")
    return Tested(
        origin=origin,
        cases=tuple(cases),
        problems=tuple(dict.fromkeys(problems)),
        seconds=sum(suite.seconds for one in reports for suite in one.document.suites.values()),
        suites={name: suite for one in reports for name, suite in one.document.suites.items()},
        chosen=chosen,
        shards=max((shard.count for shard in by_shard if shard), default=1),
    )


def unexplained(cases: Sequence[Case], properties: Mapping[str, str]) -> Sequence[Case]:
    """List tests of a report of ours that were skipped, or tried again, for no reason that is known."""
    if not (share := properties.get(MAY_SKIP, "")).isdecimal():
        return ()
    bare = [case for case in cases if not case.rule]
    skipped = [case for case in bare if case.outcome in {"skipped", "xfailed"}]
    flaky = [case for case in bare if case.outcome == "flaky"]
    return [*(skipped if len(skipped) * 100 > int(share) * len(cases) else ()), *flaky]


def _shard_problems(by_shard: Mapping[Shard | None, Sequence[Report]]) -> list[str]:
    shards = sorted(shard for shard in by_shard if shard is not None)
    if not shards:
        return []
    problems = []
    if None in by_shard:
        problems.append(f"{some(one.where for one in by_shard[None])} names no shard, and others do")
    totals = sorted({shard.count for shard in shards})
    if len(totals) > 1:
        problems.append(f"there are shards of {' and of '.join(map(str, totals))}: some are of another run")
    for count in totals:
        absent = {Shard(index=at, count=count) for at in range(1, count + 1)} - set(shards)
        problems += [f"no report of shard {some(map(str, sorted(absent)))}"] if absent else []
    numbers = {shard: len(by_shard[shard]) for shard in shards}
    problems += [f"shard {shard} reported {number} times" for shard, number in numbers.items() if number > 1]
    if len({one.plan for shard in shards for one in by_shard[shard]}) > 1:
        problems.append("the shards were planned from different durations, so tests may be in none of them")
    return problems


def _existing_problems(reports: Sequence[Report]) -> list[str]:
    said: dict[str, set[str]] = defaultdict(set)
    ran: dict[str, int] = defaultdict(int)
    for report in reports:
        for name, suite in report.document.suites.items():
            if EXISTING in suite.properties:
                said[name].add(suite.properties[EXISTING])
        for case in report.document.cases:
            # a file by itself is not a test: it is there when the whole of it failed
            ran[case.file] += case.test != case.file
    return [
        f"{name} has {' or '.join(sorted(numbers))} tests, and {ran[name]} are reported"
        for name, numbers in sorted(said.items())
        if numbers != {str(ran[name])}
    ]
