"""Runs that were never run, for tests of the page: any number of cells, every state, hostile names."""

import hashlib
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

from ci.report.facts import GroupFacts, RunFacts
from core.causes import Cause
from core.run.records import Cell, FileRecord, Record
from pytorch_build.lock.source_lock import LockedProject, SourceLock
from pytorch_build.test.summary import CaseEntry, GroupEntry

BEGAN = datetime(2026, 11, 20, 22, 0, tzinfo=UTC)
BUILDS = {
    "triton": ("triton", "3.6.0", 900),
    "torch": ("torch", "2.10.0", 7200),
    "audio": ("torchaudio", "2.10.0", 600),
    "vision": ("torchvision", "0.25.0", 800),
    "apex": ("apex", "1.10.0", 500),
}
AFTER = {"triton": 0, "torch": 1300, "audio": 11_000, "vision": 11_030, "apex": 11_060}
FAMILIES = tuple(f"gfx{number}" for number in range(900, 1000))
REFS = ("release/2.7", "release/2.8", "release/2.9", "release/2.10", "nightly")
PYTHONS = ("cp311", "cp312", "cp313")
ORIGIN = "https://github.com/pytorch/pytorch"
HIP = "caffe2/CMakeFiles/torch_hip.dir/aten/src/ATen/native/hip"


def digest(*words: object) -> str:
    return hashlib.sha256(" ".join(map(str, words)).encode()).hexdigest()


def number(most: int, *words: object) -> int:
    """Return the same number below `most` for the same words."""
    return int(digest(*words)[:8], 16) % most


def record(stage: str, group: str, ref: str = "", python: str = "", **facts: Any) -> Record:
    values: dict[str, Any] = {"run_id": "123", "platform": "linux", "started": BEGAN.isoformat()}
    cell = Cell(gpu_family=group, torch_ref=ref, python=python)
    return Record(stage=stage, cell=cell, **{**values, "seconds": 1.5, **facts})


def at(seconds: float) -> str:
    return (BEGAN + timedelta(seconds=seconds)).isoformat()


def wheel(group: str, distribution: str, version: str, python: str, size: int) -> FileRecord:
    name = f"{distribution}-{version}-{python}-{python}-linux_x86_64.whl"
    known = {"distribution": distribution, "version": version, "requires_python": ">=3.10", "size": size}
    place = f"123-linux/python/{group}/{name}"
    return FileRecord.model_validate(
        {"name": name, "key": place, "sha256": digest(name, group, size), **known}
    )


def build(project: str, group: str, ref: str, python: str, *, grown: int = 0) -> Record:
    """Make a build's record with all that a build can say."""
    distribution, version, seconds = BUILDS[project]
    base, torch = f"{version}.dev{REFS.index(ref)}" if ref in REFS else version, project == "torch"
    size = 40_000_000 + 900_000_000 * torch + number(9_000_000, project, group, ref) + grown
    one = wheel(group, distribution, f"{base}+rocm7.1.0", python, size)
    took = seconds + number(seconds // 3, project, group, ref, python)
    edges, ran = 6000 if torch else 120, took * 0.9
    lib = [30, 3 * size, size * 8 // 10 + grown]
    cache: dict[str, Any] = {"kind": "sccache", "uncacheable": 12, "errors": 0, "access": "read-write"}
    cache |= {"hits": number(edges, group, ref), "misses": number(edges // 3, python, group)}
    cache |= {"storage": "s3://runs/compiler-cache/ci/sccache"}
    cache |= {"lost": "it stopped to answer while the build ran" if project == "vision" else ""}
    graph = {"folder": "build", "edges": edges, "seconds": ran, "busy_seconds": ran * 14.2}
    graph |= {"slowest": [[f"{HIP}/Kernel{n}.hip.o", 400 - 9 * n] for n in range(25)]}
    graph |= {"parallelism": [16 - 14 * abs(part - 40) / 60 for part in range(100)]}
    used = [(20 + number(76, part, group)) << 30 for part in range(100)]
    details = {
        "source": {"origin": ORIGIN, "commit": digest(ref, project)[:40]},
        "contents": {one.name: {f"{distribution}/lib": lib, distribution: [900, size, size // 5]}},
        "compiler_cache": cache,
        "ninja": [graph],
        "memory": {"peak": 96 << 30, "total": 128 << 30, "used": used},
    }
    began = at(300 + AFTER[project] + number(60, group, ref, python))
    made: dict[str, Any] = {"started": began, "seconds": took, "files": (one,), "details": details}
    return record(f"build_{project}", group, ref, python, **made)


def cell_records(group: str, ref: str, python: str, *, grown: int = 0) -> Iterator[Record]:
    """Make a cell's records; one cell in eleven failed, one in thirteen was interrupted."""
    cell, lot = (group, ref, python), number(143, group, ref, python)
    said = "apex does not compile: error: no member named 'foo' in namespace 'c10'\nSee the log."
    ended: dict[str, dict[str, Any]] = {
        "apex": {"exit_code": 8, "seconds": 212, "error": said} if lot % 11 == 0 else {},
        "vision": {"exit_code": 130, "seconds": 40, "error": "interrupted"} if lot % 13 == 0 else {},
    }
    for project in BUILDS:
        if failed := ended.get(project):
            yield record(f"build_{project}", *cell, status="failed", started=at(11_400), **failed)
        else:
            yield build(project, *cell, grown=grown)
    if lot % 11 and lot % 13:
        yield smoke(*cell, grown=grown, started=at(12_700), seconds=90)


def smoke(group: str, ref: str, python: str, *, grown: int = 0, **facts: Any) -> Record:
    """Make the record of smoke tests on what `build` makes."""
    files = [one for name in BUILDS for one in build(name, group, ref, python, grown=grown).files]
    tests = {"tests": 27, "existing": 27, "skipped": 3, "unexplained": 0}
    details = {"tests": tests, "outcomes": {"passed": 24, "skipped": 3}}
    said = {"details": details, "inputs": {"files": {one.name: one.sha256 for one in files}}, **facts}
    return record("test_smoke", group, ref, python, **said)


def broken() -> RunFacts:
    """Make a run of one cell, in three invocations 29 s and 3 min apart; the last met a compiler's error."""
    cell, logs = (FAMILIES[0], "nightly", "cp312"), "123-linux/logs/gfx900"
    said = "error: 'no_such_function' is not a member of 'c10'"
    code, mark = (
        "   25 |   at::Tensor out = c10::no_such_function(1);",
        "      |                         ^~~~~~~~~~~~~~~~",
    )
    cause = Cause(tool="compiler", file="aten/ops.cpp", line=25, message=said, around=(code, mark))
    ended: dict[str, Any] = {"status": "failed", "exit_code": 5, "error": "It ended with status 1."}
    ended["log"] = f"{logs}/build_torch.log"
    ended["again"] = "nox -s build_torch -P 3.12 -- --torch-ref nightly --gpu-family gfx900 --run-id 123"
    found = [
        record("build_rocm", cell[0], started=at(0), seconds=20),
        record("build_triton", *cell, started=at(49), seconds=20, log=f"{logs}/build_triton.log"),
        record("build_torch", *cell, started=at(0), seconds=9, files=build("torch", *cell).files),
        record("build_torch", *cell, started=at(249), seconds=20, cause=cause, **ended),
    ]
    group = GroupFacts(name=cell[0], records=tuple((str(key), one) for key, one in enumerate(found)))
    return RunFacts(run_id="123", platform="linux", groups=(group,), locks={"nightly": lock("nightly")})


def tested(group: str, ref: str, python: str) -> GroupEntry:
    def case(name: str, outcome: str, seconds: float, line: str = "") -> CaseEntry:
        command = f"nox -s test_torch -- --run-id 123 -k {name.rpartition('::')[2]}" if line else ""
        text = f"Traceback:\n  {line}\n" * 3 if line else ""
        return CaseEntry(test=name, outcome=outcome, seconds=seconds, line=line, text=text, command=command)

    failing, why = number(7, group, ref, python) == 0, "AssertionError: Tensors differ"
    failures = (case(f"test_nn.py::TestNN::test_conv{n}", "failed", 3.1, why) for n in range(2 * failing))
    slowest = (case(f"test_linalg.py::TestLinalg::test_svd{n}", "passed", 300 - n) for n in range(10))
    return GroupEntry(
        stage="test_torch",
        torch_ref=ref,
        python=python,
        gpu_family=group,
        passed=not failing,
        shards=6,
        seconds=5400 + number(900, group, ref),
        totals={"passed": 61_234, "skipped": 4_321, "flaky": 2, "failed": 2 * failing},
        failures=tuple(failures),
        flaky=(case("test_ops.py::TestOps::test_sum", "flaky", 9, "RuntimeError: HIP error: timeout"),),
        slowest=tuple(slowest),
    )


def lock(ref: str, *, seed: str = "") -> SourceLock:
    projects = {}
    for project, (_, version, _) in BUILDS.items():
        other = [seed] if seed and project == "torch" else []
        known = {"project": project, "origin": ORIGIN, "ref": "main", "base_version": version}
        known["commit"] = digest(ref, project, *other)[:40]
        projects[project] = LockedProject(**known, versions={"rocm": f"{version}+rocm7.1.0"})
    return SourceLock(torch_ref=ref, release_type="nightly", rocm_version="7.1.0", projects=projects)


def run(
    families: Sequence[str] = FAMILIES[:20],
    refs: Sequence[str] = REFS,
    pythons: Sequence[str] = PYTHONS,
    *,
    run_id: str = "123",
    grown: int = 0,
    seed: str = "",
) -> RunFacts:
    """Make a run of every family, ref and Python; 300 cells without arguments."""
    cells, groups = [(ref, python) for ref in refs for python in pythons], []
    for group in families:
        found = [record("build_rocm", group, started=at(0), seconds=240)]
        found += [one for cell in cells for one in cell_records(group, *cell, grown=grown)]
        keyed = tuple((f"{run_id}-linux/manifests/{group}/{one.name}.json", one) for one in found)
        tests = tuple(tested(group, *cell) for cell in cells)
        groups.append(GroupFacts(name=group, records=keyed, tests=tests))
    locks = {ref: lock(ref, seed=seed) for ref in refs}
    return RunFacts(run_id=run_id, platform="linux", groups=tuple(groups), locks=locks)
