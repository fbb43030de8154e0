"""Running upstream's unit tests of torch on installed wheels, for one shard of one configuration."""

from __future__ import annotations

import datetime as dt
import shutil
import tempfile
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from core import console, files, parallel, process
from core.env import supervision
from core.errors import CheckError
from core.junit import Document, Suite, counts
from core.run import records
from core.run.stage import Made, Stage, perform
from pytorch_build.test import (
    file_run,
    gpus,
    plugin,
    reports,
    shards,
    skip_review,
    skip_rules,
    upstream_tests,
)
from pytorch_build.test.file_run import FileRun, Setting
from pytorch_build.test.gpus import this_machine
from pytorch_build.test.results import DEFAULT_CONFIG, WHOLE, Origin, Report
from pytorch_build.test.shards import Shard

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from core.env.interpreters import Interpreter
    from pytorch_build.context import Context
    from pytorch_build.test.gpus import Assignment, Policy
    from pytorch_build.test.plugin import PlannedRule
    from pytorch_build.test.upstream_tests import LimitsTable, TestFile, Tests, Torch


# a log of a run is for reading; the beginning and the end of a longer one say what there is to say
_LOG_BYTES = 8 << 20
LOGS = "logs"


def perform_tests(bench: Bench, asked: TorchTests, inputs: Mapping[str, Any]) -> None:
    """Run a shard, keep its report, logs and record; nothing where the same was tested before."""
    context = bench.context
    upstream_tests.require_match(bench.torch, bench.tests, allowed=asked.allow_version_mismatch)
    _require_code(bench)
    origin = Origin(
        stage="test_torch",
        torch_ref=context.ref.name,
        python=bench.target.tag,
        gpu_family=context.gpu_family,
        group=context.cell(bench.target.tag).group,
        config=asked.config,
        run_id=context.common.outputs.run_id,
    )
    stage = Stage(
        name=reports.stage_name(origin, asked.shard),
        common=context.common,
        artifact_group=context.artifact_group,
        cell=context.cell(bench.target.tag),
    )
    rules = _rules(bench, asked)
    plan = _plan(bench, asked)
    found = {
        **inputs,
        "config": asked.config,
        "arguments": asked.choices,
        "tests": {"commit": bench.tests.commit, "version": bench.tests.version},
        "rules": {
            str(number): files.digest_of([one.model_dump() for one in group])
            for number, group in enumerate(rules)
        },
        "shard": str(asked.shard),
        "plan": plan.digest,
        "gpu": sorted({one.target for one in bench.assignments if one.target}),
    }
    perform(stage, found, lambda: Made(files=(), details=_tested(bench, asked, origin, plan, rules)))


def _require_code(bench: Bench) -> None:
    """Refuse GPUs that the wheel has no device code for: each test would say so in its own way."""
    known = {target.partition(":")[0] for target in bench.torch.targets}
    absent = sorted({one.target for one in bench.assignments if one.target and bench.torch.hip} - known)
    if known and absent:
        raise CheckError(
            f"torch {bench.torch.version} has device code for {', '.join(sorted(known))}, "
            f"and none for {', '.join(absent)}.",
            hint="Test the wheels of this GPU's family: --gpu-family.",
        )


def _rules(bench: Bench, asked: TorchTests) -> Sequence[tuple[PlannedRule, ...]]:
    """Give the skip rules that apply, for each assignment."""
    rules = skip_rules.load(asked.skips)
    return [
        skip_rules.planned(
            rules,
            skip_rules.UnderTest(
                gpu_targets=(one.target,) if one.target.startswith("gfx") else bench.context.gpu_targets,
                platform=bench.context.common.outputs.platform,
                python=bench.target.version,
                torch=bench.torch.version,
                torch_ref=bench.context.ref.name,
                config=asked.config,
            ),
            dt.datetime.now(dt.UTC).date(),
        )
        for one in bench.assignments
    ]


def _files(bench: Bench, asked: TorchTests) -> Mapping[str, TestFile]:
    configuration, tree = upstream_tests.configuration(asked.config), bench.tests.tree
    chosen = upstream_tests.chosen_files(
        configuration,
        (*upstream_tests.scripts_of(configuration, tree), *upstream_tests.modules_of(tree)),
        gpu=bench.gpu,
        scripts=not asked.expression,
        include=asked.include,
        exclude=asked.exclude,
    )
    return {one.file: one for one in chosen}


def _plan(bench: Bench, asked: TorchTests) -> shards.Plan:
    common = bench.context.common
    if asked.durations:
        known = shards.read_durations(asked.durations)
    else:
        known = shards.for_run(
            common.open_store(), common.outputs, bench.context.artifact_group, asked.config
        )
    return shards.plan(_files(bench, asked), known, asked.shard.count)


def _tested(
    bench: Bench,
    asked: TorchTests,
    origin: Origin,
    plan: shards.Plan,
    rules: Sequence[tuple[PlannedRule, ...]],
) -> Mapping[str, Any]:
    """Run the shard's files on each GPU, and keep what they gave."""
    common, group = bench.context.common, bench.context.artifact_group
    if asked.shard.count > 1:
        shards.show(plan, asked.shard)
    started = records.now()
    with tempfile.TemporaryDirectory(prefix="pt-", ignore_cleanup_errors=True) as scratch:
        runs: list[FileRun] = []
        try:
            runs.extend(_runs(bench, asked, plan, rules, Path(scratch)))
        finally:
            # of a run that was interrupted, too
            _put_logs(bench, reports.stage_name(origin, asked.shard), Path(scratch) / LOGS)
        report = Report(
            origin=origin,
            document=Document(
                cases=tuple(case for one in runs for case in one.cases),
                suites={one.file: _suite(one) for one in runs},
                properties={"torch": bench.torch.version, "tests": bench.tests.commit or bench.tests.version},
                timestamp=started,
            ),
            shard=asked.shard if asked.shard.count > 1 else None,
            plan=plan.digest,
            collected=sum(len(one.collected) for one in runs),
        )
        store = common.open_store()
        details = reports.put_report(store, common.outputs, group, report)
    _show(runs)
    _warn_of_silent_rules(asked, rules, runs)
    reports.require_report_passed(report, hint=_hint(bench, asked))
    found = counts(report.document.cases)
    console.done(f"{reports.stage_name(origin, asked.shard)}: {found['passed'] + found['flaky']} passed")
    matched = {rule: len(tests) for one in runs for rule, tests in one.matched.items() if tests}
    return {**details, "rules": matched}


def _runs(
    bench: Bench,
    asked: TorchTests,
    plan: shards.Plan,
    rules: Sequence[tuple[PlannedRule, ...]],
    scratch: Path,
) -> Iterator[FileRun]:
    known = _files(bench, asked)
    parts = plan.parts(asked.shard)
    several = len(bench.assignments) > 1
    for number, assigned in enumerate(bench.assignments):
        console.say(f"{len(parts)} test files on {assigned.words}")
        setting = Setting(
            python=bench.target.executable,
            tree=bench.tests.tree,
            env={},
            folder=scratch / f"{number}",
            logs=scratch / LOGS,
            limits=asked.limits or upstream_tests.load().limits,
            rules=rules[number],
            expression=asked.expression,
            arguments=asked.pytest_arguments,
            workers=asked.workers,
        )
        for at, part in enumerate(parts, start=1):
            name = file_run.log_name(part.file) + (f"@{assigned.target}" if several else "")
            own = scratch / f"{number}-{at}"
            env = environment(bench, assigned, own)
            with console.group(f"{at}/{len(parts)} {part.file}"):
                made = file_run.run_file(known[part.file], replace(setting, env=env), part=part, name=name)
                _tell(made)
            yield made.on(assigned.target) if several else made
            shutil.rmtree(own, ignore_errors=True)


def _suite(run: FileRun) -> Suite:
    properties = {"processes": str(run.processes)}
    return Suite(
        seconds=run.seconds,
        properties=properties if run.whole is None else {**properties, WHOLE: str(run.whole)},
    )


def _tell(run: FileRun) -> None:
    """Say how a file went; of one that failed, what it said last."""
    found = {name: count for name, count in counts(run.cases).items() if count}
    said = ", ".join(f"{count} {name}" for name, count in found.items()) or "no test of this shard"
    console.say(f"{run.file}: {said} in {console.duration(run.seconds)}")
    for case in [one for one in run.cases if one.failing][:20]:
        console.say(f"  {case.test} {case.outcome}: {case.line}")
    if run.log and any(case.outcome in {"crashed", "timeout", "error"} for case in run.cases):
        console.detail(supervision.tail(run.log, lines=30))


def _warn_of_silent_rules(
    asked: TorchTests, rules: Sequence[tuple[PlannedRule, ...]], runs: Sequence[FileRun]
) -> None:
    """Name rules that took no test of the files that they name: the test was renamed, or never was there."""
    applied = {one.name for group in rules for one in group}
    took = {rule for one in runs for rule, tests in one.matched.items() if tests}
    collected = {one.file.partition("@")[0] for one in runs if one.collected}
    known = [rule for rule in skip_rules.load(asked.skips) if rule.name in applied]
    for rule in skip_review.silent(known, collected, took):
        console.warn(
            f"Skip rule {rule.name} matches no test of the files that it names: nox -s skips -- check"
        )


def _put_logs(bench: Bench, stage: str, folder: Path) -> None:
    """Keep the files' logs among the run's outputs, the middle of very long ones left out."""
    common = bench.context.common
    store, prefix = common.open_store(), common.outputs.logs_prefix(bench.context.artifact_group)
    cell = bench.context.cell(bench.target.tag)
    target = f"{prefix}/{records.record_name(stage, cell)}"

    def put(path: Path) -> None:
        # what was collected is read again, and so never shortened
        store.put_bytes(
            f"{target}/{path.name}", _shortened(path) if path.suffix == ".log" else path.read_bytes()
        )

    parallel.each(put, sorted(path for path in folder.glob("*") if path.is_file()))


def _shortened(path: Path) -> bytes:
    size = path.stat().st_size
    if size <= _LOG_BYTES:
        return path.read_bytes()
    half = _LOG_BYTES // 2
    with path.open("rb") as stream:
        start = stream.read(half)
        stream.seek(size - half)
        left_out = f"\n… {size - 2 * half} bytes left out …\n".encode()
        return start + left_out + stream.read()


def _show(runs: Sequence[FileRun]) -> None:
    rows = []
    for one in runs:
        found = counts(one.cases)
        failing = sum(case.failing for case in one.cases)
        shown = (
            found["passed"] + found["flaky"],
            failing,
            found["skipped"] + found["xfailed"],
            one.processes,
        )
        rows.append((one.file, *map(str, shown), console.duration(one.seconds)))
    console.table(("test file", "passed", "failed", "skipped", "processes", "time"), rows)


def _hint(bench: Bench, asked: TorchTests) -> str:
    ref, family = bench.context.ref.name, bench.context.gpu_family
    config = "" if asked.config == DEFAULT_CONFIG else f" --config {asked.config}"
    return (
        "The logs are among the run's outputs (logs/). One test again: nox -s test_torch -- "
        f"--torch-ref {ref} --gpu-family {family}{config} --include MODULE -k EXPR"
    )


# what of the caller's own could change what is tested, or where it writes
_OTHERS = (
    *("PYTHONPATH", "PYTHONHOME", "PYTHONSTARTUP", "PYTHONWARNINGS", "PYTEST_ADDOPTS", "PYTEST_PLUGINS"),
    *("CI", "GITHUB_ACTIONS", "TEST_CONFIG", "PYTORCH_TEST_WITH_INDUCTOR", "PYTORCH_TEST_WITH_DYNAMO"),
    *("LD_LIBRARY_PATH", "ROCM_PATH", "ROCM_HOME", "HIP_PATH"),
)


@dataclass(frozen=True, kw_only=True)
class TorchTests:
    """What is asked for."""

    config: str = DEFAULT_CONFIG
    shard: Shard = field(default_factory=Shard)
    include: tuple[str, ...] = ()
    exclude: tuple[str, ...] = ()
    expression: str = ""
    pytest_arguments: tuple[str, ...] = ()
    tree: Path | None = None
    allow_version_mismatch: bool = False
    allow_no_gpu: bool = False
    other_gpu: bool = False
    gpus: Policy | None = None
    workers: int = 1
    skips: tuple[Path, ...] = ()
    durations: Path | None = None
    limits: LimitsTable | None = None
    mirrors: Mapping[str, str] = field(default_factory=dict)

    @property
    def choices(self) -> list[str]:
        """What was chosen among the tests, or put in their place: no promotion rests on such results."""
        words = [word for name in self.include for word in ("--include", name)]
        words += [word for name in self.exclude for word in ("--exclude", name)]
        words += ["-k", self.expression] if self.expression else []
        words += ["--pytorch-dir", str(self.tree)] if self.tree else []
        words += ["--allow-version-mismatch"] if self.allow_version_mismatch else []
        words += ["--other-gpu"] if self.other_gpu else []
        words += [word for path in self.skips for word in ("--skips", str(path))]
        return [*words, *self.pytest_arguments]


def assignments(context: Context, asked: TorchTests, env: Mapping[str, str]) -> Sequence[Assignment]:
    """Choose the GPUs; one without any for family ``cpu``, and where that is allowed."""
    if not context.gpu and not asked.other_gpu:
        return [gpus.without_gpu()]
    try:
        return gpus.select(
            this_machine(),
            env,
            gpu_family=context.gpu_family,
            targets=context.gpu_targets,
            policy=asked.gpus or upstream_tests.configuration(asked.config).gpus,
            any_vendor=asked.other_gpu,
        )
    except CheckError as problem:
        # the sample's device code is none that a GPU could run
        if not (asked.allow_no_gpu or context.ref.local_label):
            raise
        console.say(f"{problem.message} Tests run without a GPU.")
        return [gpus.without_gpu()]


@dataclass(frozen=True, kw_only=True)
class Bench:
    """Where tests run: wheels are installed, the tree and the GPUs are chosen."""

    context: Context
    target: Interpreter
    tests: Tests
    torch: Torch
    assignments: Sequence[Assignment]

    @property
    def gpu(self) -> bool:
        """Whether there is a GPU to run on."""
        return any(one.devices for one in self.assignments)


def environment(bench: Bench, assigned: Assignment, folder: Path) -> Mapping[str, str]:
    """Give the environment of a test file's processes: the GPUs, upstream's switches, caches of its own."""
    target, tree = bench.target, bench.tests.tree
    folders = {
        "HOME": "home",
        "USERPROFILE": "home",
        "XDG_CACHE_HOME": "cache",
        "TMPDIR": "tmp",
        "TEMP": "tmp",
        "TMP": "tmp",
        "TORCHINDUCTOR_CACHE_DIR": "inductor",
        "TRITON_CACHE_DIR": "triton",
        "TRITON_HOME": "home",
        "TORCH_HOME": "torch",
        "TORCH_EXTENSIONS_DIR": "extensions",
        "MIOPEN_CUSTOM_CACHE_DIR": "miopen",
        "MIOPEN_USER_DB_PATH": "miopen",
    }
    for name in set(folders.values()):
        (folder / name).mkdir(parents=True, exist_ok=True)
    changes: dict[str, str | None] = {
        **dict.fromkeys(_OTHERS),
        **{name: str(folder / below) for name, below in folders.items()},
        **assigned.env,
        "PATH": f"{target.scripts}{_separator(bench)}{process.inherited().get('PATH', '')}",
        "VIRTUAL_ENV": str(target.prefix),
        "PYTHONPATH": _separator(bench).join((str(tree / "test"), str(plugin.TARGET))),
        "PYTHONUNBUFFERED": "1",
        "PYTORCH_TESTING_DEVICE_ONLY_FOR": "cuda" if assigned.devices else "cpu",
        "PYTORCH_PRINT_REPRO_ON_FAILURE": "0",
        "PYTORCH_TEST_WITH_ROCM": "1" if bench.torch.hip else "0",
        # one thread a process, because matrices of tests are small and machines are shared
        "OPENBLAS_NUM_THREADS": "1",
    }
    return process.inherited(**changes)


def _separator(bench: Bench) -> str:
    return ";" if bench.context.common.outputs.platform == "windows" else ":"
