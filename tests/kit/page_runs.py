"""Runs that were never run, for tests of the page: any number of cells, every state, hostile names.

Numbers that differ from cell to cell follow from the cell's name, so that every run of a test sees the same.
"""

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any, Literal

from ci.report.facts import GroupFacts, RunFacts
from core.causes import Cause
from core.run.records import FileRecord, Record
from pytorch_build.lock.source_lock import LockedProject, SourceLock
from pytorch_build.test.summary import CaseData, CellData
from tests.kit.group_cells import group_cell

RUN_ID = "123"
BEGAN = datetime(2026, 11, 20, 22, 0, tzinfo=UTC)

FAMILIES = tuple(f"gfx{number}" for number in range(900, 1000))
REFS = ("release/2.7", "release/2.8", "release/2.9", "release/2.10", "nightly")
PYTHONS = ("cp311", "cp312", "cp313")

ORIGIN = "https://github.com/pytorch/pytorch"


@dataclass(frozen=True, kw_only=True)
class Build:
    """What is the same in every build of a component: its wheel, how long it takes, and when it starts."""

    distribution: str
    version: str
    seconds: int
    starts_after: int


BUILDS: Mapping[str, Build] = {
    "triton": Build(distribution="triton", version="3.6.0", seconds=900, starts_after=0),
    "torch": Build(distribution="torch", version="2.10.0", seconds=7200, starts_after=1300),
    "audio": Build(distribution="torchaudio", version="2.10.0", seconds=600, starts_after=11_000),
    "vision": Build(distribution="torchvision", version="0.25.0", seconds=800, starts_after=11_030),
    "apex": Build(distribution="apex", version="1.10.0", seconds=500, starts_after=11_060),
}

GIB = 1 << 30


def digest(*parts: object) -> str:
    """Return a SHA-256 that is the same for the same parts."""
    return hashlib.sha256(" ".join(map(str, parts)).encode()).hexdigest()


def pick_number(limit: int, *parts: object) -> int:
    """Return a number that is the same for the same parts."""
    return int(digest(*parts)[:8], 16) % limit


def moment(seconds: float) -> str:
    """Return the time so many seconds after the run began."""
    return (BEGAN + timedelta(seconds=seconds)).isoformat()


def make_record(
    step: str,
    group: str,
    ref: str = "",
    python: str = "",
    *,
    started: str = BEGAN.isoformat(),
    seconds: float = 1.5,
    status: Literal["ok", "failed"] = "ok",
    exit_code: int = 0,
    error: str = "",
    cause: Cause | None = None,
    log: str = "",
    repeat_command: str = "",
    files: Sequence[FileRecord] = (),
    inputs: Mapping[str, Any] | None = None,
    details: Mapping[str, Any] | None = None,
) -> Record:
    """Return the record of a step for a cell."""
    return Record(
        stage=step,
        run_id=RUN_ID,
        platform="linux",
        cell=group_cell(gpu_family=group, torch_ref=ref, python_tag=python),
        started=started,
        seconds=seconds,
        status=status,
        exit_code=exit_code,
        error=error,
        cause=cause,
        log=log,
        again=repeat_command,
        files=tuple(files),
        inputs=dict(inputs or {}),
        details=dict(details or {}),
    )


def wheel_record(group: str, distribution: str, version: str, python: str, size: int) -> FileRecord:
    """Return what a record says of a wheel."""
    name = f"{distribution}-{version}-{python}-{python}-linux_x86_64.whl"
    return FileRecord(
        name=name,
        key=f"{RUN_ID}-linux/python/{group}/{name}",
        size=size,
        sha256=digest(name, group, size),
        distribution=distribution,
        version=version,
        requires_python=">=3.10",
    )


def build_record(component: str, group: str, ref: str, python: str, *, grown: int = 0) -> Record:
    """Return a build's record with all that a build can say; its wheel is `grown` bytes larger than usual."""
    build = BUILDS[component]
    is_torch = component == "torch"

    base_version = f"{build.version}.dev{REFS.index(ref)}" if ref in REFS else build.version
    size = 40_000_000 + pick_number(9_000_000, component, group, ref) + grown
    if is_torch:
        size += 900_000_000
    wheel = wheel_record(group, build.distribution, f"{base_version}+rocm7.1.0", python, size)

    seconds = build.seconds + pick_number(build.seconds // 3, component, group, ref, python)
    commands = 6000 if is_torch else 120
    details = {
        "source": {"origin": ORIGIN, "commit": digest(ref, component)[:40]},
        "contents": {
            wheel.name: {
                f"{build.distribution}/lib": [30, 3 * size, size * 8 // 10 + grown],
                build.distribution: [900, size, size // 5],
            }
        },
        "compiler_cache": compiler_cache(component, group, ref, python, commands=commands),
        "memory": {"peak": 3 * GIB, "total": 128 * GIB},
    }
    return make_record(
        f"build_{component}",
        group,
        ref,
        python,
        started=moment(300 + build.starts_after + pick_number(60, group, ref, python)),
        seconds=seconds,
        files=[wheel],
        details=details,
    )


def compiler_cache(component: str, group: str, ref: str, python: str, *, commands: int) -> dict[str, Any]:
    """Return what a record says of the compiler cache; that of vision was lost."""
    return {
        "kind": "sccache",
        "hits": pick_number(commands, group, ref),
        "misses": pick_number(commands // 3, python, group),
        "uncacheable": 12,
        "errors": 0,
        "access": "read-write",
        "storage": "s3://runs/compiler-cache/ci/sccache",
        "lost": "it stopped to answer while the build ran" if component == "vision" else "",
    }


def cell_records(group: str, ref: str, python: str, *, grown: int = 0) -> Iterator[Record]:
    """Yield a cell's records; one cell in eleven failed, one in thirteen was interrupted."""
    lot = pick_number(143, group, ref, python)
    apex_fails = lot % 11 == 0
    vision_stops = lot % 13 == 0

    for component in BUILDS:
        if component == "apex" and apex_fails:
            yield make_record(
                "build_apex",
                group,
                ref,
                python,
                status="failed",
                started=moment(11_400),
                seconds=212,
                exit_code=8,
                error="apex does not compile: error: no member named 'foo' in namespace 'c10'\nSee the log.",
            )
        elif component == "vision" and vision_stops:
            yield make_record(
                "build_vision",
                group,
                ref,
                python,
                status="failed",
                started=moment(11_400),
                seconds=40,
                exit_code=130,
                error="interrupted",
            )
        else:
            yield build_record(component, group, ref, python, grown=grown)

    if not apex_fails and not vision_stops:
        yield smoke_record(group, ref, python, grown=grown, started=moment(12_700), seconds=90)


def smoke_record(
    group: str,
    ref: str,
    python: str,
    *,
    grown: int = 0,
    started: str = BEGAN.isoformat(),
    seconds: float = 1.5,
    status: Literal["ok", "failed"] = "ok",
    error: str = "",
    inputs: Mapping[str, Any] | None = None,
    details: Mapping[str, Any] | None = None,
) -> Record:
    """Return the record of smoke tests on the wheels that `build_record` has, all of which passed."""
    digests: dict[str, str] = {}
    for component in BUILDS:
        for wheel in build_record(component, group, ref, python, grown=grown).files:
            digests[wheel.name] = wheel.sha256
    passed = {
        "tests": {"tests": 27, "existing": 27, "skipped": 3, "unexplained": 0},
        "outcomes": {"passed": 24, "skipped": 3},
    }
    return make_record(
        "test_smoke",
        group,
        ref,
        python,
        started=started,
        seconds=seconds,
        status=status,
        error=error,
        inputs={"files": digests} if inputs is None else inputs,
        details=passed if details is None else details,
    )


def broken_run() -> RunFacts:
    """Return a run of one cell, in three invocations 29 s and 3 min apart; the last met an error."""
    group = FAMILIES[0]
    cell = (group, "nightly", "cp312")
    logs = f"{RUN_ID}-linux/logs/{group}"
    options = f"--torch-ref nightly --gpu-family {group} --run-id {RUN_ID}"
    cause = Cause(
        tool="compiler",
        file="aten/ops.cpp",
        line=25,
        message="error: 'no_such_function' is not a member of 'c10'",
        around=(
            "   25 |   at::Tensor out = c10::no_such_function(1);",
            "      |                         ^~~~~~~~~~~~~~~~",
        ),
    )
    records = [
        make_record("build_rocm", group, started=moment(0), seconds=20),
        make_record("build_triton", *cell, started=moment(49), seconds=20, log=f"{logs}/build_triton.log"),
        make_record(
            "build_torch",
            *cell,
            started=moment(0),
            seconds=9,
            files=build_record("torch", *cell).files,
        ),
        make_record(
            "build_torch",
            *cell,
            status="failed",
            started=moment(249),
            seconds=20,
            exit_code=5,
            error="It ended with status 1.",
            cause=cause,
            log=f"{logs}/build_torch.log",
            repeat_command=f"nox -s build_torch -P 3.12 -- {options}",
        ),
    ]
    facts = GroupFacts(name=group, records=tuple(records))
    locks = {"nightly": source_lock("nightly")}
    return RunFacts(run_id=RUN_ID, platform="linux", groups=(facts,), locks=locks)


def case_entry(name: str, outcome: str, seconds: float, *, line: str = "") -> CaseData:
    """Return one test; where it has a line that says what is wrong, it has a traceback and a command, too."""
    method = name.rpartition("::")[2]
    return CaseData(
        test=name,
        outcome=outcome,
        seconds=seconds,
        line=line,
        text=f"Traceback:\n  {line}\n" * 3 if line else "",
        command=f"nox -s test_torch -- --run-id {RUN_ID} -k {method}" if line else "",
    )


def group_of_tests(group: str, ref: str, python: str) -> CellData:
    """Return the results of a cell's tests; of one cell in seven two failed."""
    failing = 2 if pick_number(7, group, ref, python) == 0 else 0
    reason = "AssertionError: Tensors differ"
    failures = [
        case_entry(f"test_nn.py::TestNN::test_conv{number}", "failed", 3.1, line=reason)
        for number in range(failing)
    ]
    slowest = [
        case_entry(f"test_linalg.py::TestLinalg::test_svd{number}", "passed", 300 - number)
        for number in range(10)
    ]
    flaky = case_entry("test_ops.py::TestOps::test_sum", "flaky", 9, line="RuntimeError: HIP error: timeout")
    return CellData(
        stage="test_torch",
        torch_ref=ref,
        python=python,
        gpu_family=group,
        passed=failing == 0,
        shards=6,
        seconds=5400 + pick_number(900, group, ref),
        totals={"passed": 61_234, "skipped": 4_321, "flaky": 2, "failed": failing},
        failures=tuple(failures),
        flaky=(flaky,),
        slowest=tuple(slowest),
    )


def source_lock(ref: str, *, torch_seed: str = "") -> SourceLock:
    """Return the source lock of a torch ref; with another seed, torch has another commit."""
    projects: dict[str, LockedProject] = {}
    for component, build in BUILDS.items():
        seeds = [ref, component]
        if torch_seed and component == "torch":
            seeds.append(torch_seed)
        projects[component] = LockedProject(
            project=component,
            origin=ORIGIN,
            ref="main",
            commit=digest(*seeds)[:40],
            base_version=build.version,
            versions={"rocm": f"{build.version}+rocm7.1.0"},
        )
    return SourceLock(torch_ref=ref, release_type="nightly", rocm_version="7.1.0", projects=projects)


def make_run(
    families: Sequence[str] = FAMILIES[:20],
    refs: Sequence[str] = REFS,
    pythons: Sequence[str] = PYTHONS,
    *,
    run_id: str = RUN_ID,
    grown: int = 0,
    seed: str = "",
) -> RunFacts:
    """Return a run of every family, ref and Python; 300 cells without arguments."""
    groups: list[GroupFacts] = []
    for family in families:
        records = [make_record("build_rocm", family, started=moment(0), seconds=240)]
        tests: list[CellData] = []
        for ref in refs:
            for python in pythons:
                records += cell_records(family, ref, python, grown=grown)
                tests.append(group_of_tests(family, ref, python))

        in_order_of_keys = sorted(records, key=lambda record: record.name)
        groups.append(GroupFacts(name=family, records=tuple(in_order_of_keys), tests=tuple(tests)))

    locks = {ref: source_lock(ref, torch_seed=seed) for ref in refs}
    return RunFacts(run_id=run_id, platform="linux", groups=tuple(groups), locks=locks)
