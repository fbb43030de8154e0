"""Running upstream's unit tests of torch on installed wheels, for one shard of one configuration."""

from __future__ import annotations

import datetime as dt
import shlex
import shutil
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from core import console, files, parallel, process, temporary
from core.cli.sessions import command_again
from core.errors import CheckError, UsageError
from core.junit import Case, Document, Suite, counts
from core.run import records
from core.run.stage import Stage, StageResult, look, perform
from pytorch_build.test import file_run, plugin, reports, shards, skip_rules, upstream_tests
from pytorch_build.test.results import DEFAULT_CONFIG, EXISTING, LEFT_OUT, MAY_SKIP, Origin, Report
from pytorch_build.test.summary import expression

if TYPE_CHECKING:
    from core.env import Interpreter
    from core.status import Status
    from pytorch_build.context import Context
    from pytorch_build.test.gpus import Assignment

LOGS = "logs"
# a log among a run's outputs is for reading; of a longer one the beginning and the end are enough
_LOG_BYTES = 8 << 20


@dataclass(frozen=True, kw_only=True)
class TorchTests:
    """Which tests to run, and how."""

    config: str = DEFAULT_CONFIG
    shard: shards.Shard = field(default_factory=shards.Shard)
    include: tuple[str, ...] = ()
    exclude: tuple[str, ...] = ()
    expression: str = ""
    pytest_arguments: tuple[str, ...] = ()
    tree: Path | None = None
    allow_version_mismatch: bool = False
    other_gpu: bool = False
    workers: int = 1
    skips: tuple[Path, ...] = ()
    limits: upstream_tests.LimitsTable | None = None
    mirrors: Mapping[str, str] = field(default_factory=dict)

    @property
    def selection(self) -> list[str]:
        """What may choose among the tests."""
        words = [word for name in self.include for word in ("--include", name)]
        words += [word for name in self.exclude for word in ("--exclude", name)]
        return [*words, *(["-k", self.expression] if self.expression else []), *self.pytest_arguments]

    @property
    def replaced(self) -> list[str]:
        """What was put in the place of the tests and rules: no promotion rests on such results."""
        words = ["--pytorch-dir", str(self.tree)] if self.tree else []
        words += ["--allow-version-mismatch"] if self.allow_version_mismatch else []
        words += ["--other-gpu"] if self.other_gpu else []
        return words + [word for path in self.skips for word in ("--skips", str(path))]


@dataclass(frozen=True, kw_only=True)
class Bench:
    """Where tests run: wheels are installed, the tree and the GPUs are chosen."""

    context: Context
    target: Interpreter
    tests: upstream_tests.Tests
    torch: upstream_tests.Torch
    assignments: Sequence[Assignment]


def environment(bench: Bench, assigned: Assignment, folder: Path) -> Mapping[str, str]:
    """Return the environment of a test file's processes: GPUs, upstream's switches, caches of its own."""
    target, folders = bench.target, upstream_tests.load().folders
    separator = ";" if bench.context.common.outputs.platform == "windows" else ":"
    for name in set(folders.values()):
        (folder / name).mkdir(parents=True, exist_ok=True)
    changes: dict[str, str | None] = {
        # builds get these, and tests would be led to another ROCm
        **dict.fromkeys(("LD_LIBRARY_PATH", "ROCM_PATH", "ROCM_HOME", "HIP_PATH")),
        **{name: str(folder / below) for name, below in folders.items()},
        **assigned.env,
        "PATH": f"{target.scripts}{separator}{process.handed_on().get('PATH', '')}",
        "VIRTUAL_ENV": str(target.prefix),
        "PYTHONPATH": separator.join((str(bench.tests.tree / "test"), str(plugin.TARGET))),
        **process.byte_code(folder.parent / "bytecode"),
        "PYTHONUNBUFFERED": "1",
        "PYTORCH_TESTING_DEVICE_ONLY_FOR": "cuda" if assigned.devices else "cpu",
        "PYTORCH_PRINT_REPRO_ON_FAILURE": "0",
        "PYTORCH_TEST_WITH_ROCM": "1" if bench.torch.hip else "0",
        # one thread per process, because matrices of tests are small and machines are shared
        "OPENBLAS_NUM_THREADS": "1",
    }
    return process.handed_on(**changes)


def perform_tests(bench: Bench, request: TorchTests, inputs: Mapping[str, Any]) -> None:
    """Run a shard, keep its report, logs and record; do nothing where the same was tested before."""
    run, run_inputs = _run_of(bench, request, inputs)
    perform(
        reports.unless_incomplete(run.stage), run_inputs, lambda: StageResult(files=(), details=run.tested())
    )


def look_at_tests(bench: Bench, request: TorchTests, inputs: Mapping[str, Any]) -> Status:
    """Return whether a shard has to be run. Nothing is changed."""
    run, run_inputs = _run_of(bench, request, inputs)
    return look(reports.unless_incomplete(run.stage), run_inputs)


def _run_of(bench: Bench, request: TorchTests, inputs: Mapping[str, Any]) -> tuple[_Run, Mapping[str, Any]]:
    """Return the run of a shard, and what makes it unchanged."""
    upstream_tests.require_match(bench.torch, bench.tests, allowed=request.allow_version_mismatch)
    _require_code(bench)
    context, tests, common = bench.context, bench.tests, bench.context.common
    cell = context.cell(bench.target.tag)
    origin = Origin.of("test_torch", cell, config=request.config, run_id=common.outputs.run_id)
    if not (chosen := _files(bench, request)):
        raise UsageError("No test file is left to run.", hint="See --include, --exclude and --config.")
    every = _files(bench, replace(request, include=(), exclude=(), expression=""))
    absent = len(every.keys() - chosen)
    left_out = f"{absent} of {len(every)} test files did not run" if absent else ""
    known = shards.for_run(common.open_store(), common.outputs, context.artifact_group, request.config)
    rules = skip_rules.load(request.skips)
    name = reports.stage_name(origin, request.shard)
    stage = Stage(name=name, common=common, artifact_group=context.artifact_group, cell=cell)
    run = _Run(
        bench=bench,
        request=request,
        origin=origin,
        stage=stage,
        rules=rules,
        applied=_applied(bench, request, rules),
        files=chosen,
        plan=shards.plan(chosen, known, request.shard.count),
        left_out=left_out if every else "the tree has no test file of the configuration",
    )
    run_inputs = {
        **inputs,
        "config": request.config,
        "arguments": request.replaced,
        "selection": request.selection,
        "tests": {"commit": tests.commit, "version": tests.version},
        "rules": {
            str(number): files.digest_of([one.model_dump() for one in group])
            for number, group in enumerate(run.applied)
        },
        "shard": str(request.shard),
        "plan": run.plan.digest,
        "gpu": sorted({one.target for one in bench.assignments if one.target}),
    }
    return run, run_inputs


def _require_code(bench: Bench) -> None:
    """Refuse GPUs that the wheel has no device code for: each test would fail in its own way."""
    known = {target.partition(":")[0] for target in bench.torch.targets}
    absent = sorted({one.target for one in bench.assignments if one.target and bench.torch.hip} - known)
    if known and absent:
        raise CheckError(
            f"torch {bench.torch.version} has device code for {', '.join(sorted(known))}, "
            f"and none for {', '.join(absent)}.",
            hint="Test the wheels of this GPU's family: --gpu-family.",
        )


def _files(bench: Bench, request: TorchTests) -> Mapping[str, upstream_tests.TestFile]:
    configuration, tree = upstream_tests.configuration(request.config), bench.tests.tree
    chosen = upstream_tests.choose_files(
        configuration,
        (*upstream_tests.scripts_of(configuration, tree), *upstream_tests.modules_of(tree)),
        gpu=any(one.devices for one in bench.assignments),
        scripts=not request.expression,
        include=request.include,
        exclude=request.exclude,
    )
    return {one.file: one for one in chosen}


def _applied(
    bench: Bench, request: TorchTests, rules: Sequence[skip_rules.Rule]
) -> Sequence[tuple[plugin.PlannedRule, ...]]:
    tested = skip_rules.UnderTest(
        gpu_targets=bench.context.gpu_targets,
        platform=bench.context.common.outputs.platform,
        python=bench.target.version,
        torch=bench.torch.version,
        torch_ref=bench.context.ref.name,
        config=request.config,
    )
    amd = [(one.target,) if one.target.startswith("gfx") else tested.gpu_targets for one in bench.assignments]
    today = dt.datetime.now(dt.UTC).date()
    return [skip_rules.planned(rules, replace(tested, gpu_targets=one), today) for one in amd]


@dataclass(frozen=True, kw_only=True)
class _Run:
    bench: Bench
    request: TorchTests
    origin: Origin
    stage: Stage
    rules: Sequence[skip_rules.Rule]
    applied: Sequence[tuple[plugin.PlannedRule, ...]]
    files: Mapping[str, upstream_tests.TestFile]
    plan: shards.Plan
    left_out: str

    def tested(self) -> Mapping[str, Any]:
        bench, request, stage = self.bench, self.request, self.stage
        if request.shard.count > 1:
            shards.show(self.plan, request.shard)
        started = records.now()
        runs: list[file_run.FileRun] = []
        with temporary.folder("pt") as scratch:
            try:
                runs.extend(self._runs(scratch))
            finally:
                # of a run that was interrupted, too
                self._put_logs(scratch / LOGS)
        report = Report(
            origin=self.origin,
            document=Document(
                cases=tuple(case for one in runs for case in one.cases),
                suites={
                    one.file: Suite(
                        seconds=one.seconds,
                        properties={"processes": str(one.processes)}
                        | ({} if one.whole is None else {EXISTING: str(one.whole)}),
                    )
                    for one in runs
                },
                properties={
                    "torch": bench.torch.version,
                    "tests": bench.tests.commit or bench.tests.version,
                    MAY_SKIP: str(upstream_tests.configuration(request.config).may_skip),
                }
                | ({LEFT_OUT: self.left_out} if self.left_out else {}),
                timestamp=started,
            ),
            shard=request.shard if request.shard.count > 1 else None,
            plan=self.plan.digest,
        )
        details = reports.put_report(stage.store, stage.outputs, stage.artifact_group, report)
        _show(runs)
        if bench.context.ref.has_whole_tests:
            self._warn_of_silent_rules(runs)
        reports.require_passed(report, hint=_hint(report.document.cases))
        found = counts(report.document.cases)
        console.done(f"{stage.name}: {found['passed'] + found['flaky']} passed")
        return details

    def _runs(self, scratch: Path) -> Iterator[file_run.FileRun]:
        bench, request, parts = self.bench, self.request, self.plan.parts(self.request.shard)
        several = len(bench.assignments) > 1
        for number, assigned in enumerate(bench.assignments):
            if several:
                console.say(f"{console.counted(len(parts), 'test file')} on {assigned.description}")
            setting = file_run.Setting(
                python=bench.target.executable,
                tree=bench.tests.tree,
                env={},
                folder=scratch / f"{number}",
                logs=scratch / LOGS,
                limits=request.limits or upstream_tests.load().limits,
                rules=self.applied[number],
                expression=request.expression,
                arguments=request.pytest_arguments,
                workers=request.workers,
            )
            for at, part in enumerate(parts, start=1):
                name = file_run.log_name(part.file) + (f"@{assigned.target}" if several else "")
                own = scratch / f"{number}-{at}"
                with console.group(f"{at}/{len(parts)} {part.file}"):
                    here = replace(setting, env=environment(bench, assigned, own))
                    made = file_run.run_file(self.files[part.file], here, part=part, name=name)
                    _report(made, self.stage.log)
                yield made.on(assigned.target) if several else made
                shutil.rmtree(own, ignore_errors=True)

    def _warn_of_silent_rules(self, runs: Sequence[file_run.FileRun]) -> None:
        """Name rules that took no test of the files that they name: it was renamed, or never there."""
        applied = {one.name for group in self.applied for one in group}
        took = {rule for one in runs for rule in one.matched}
        collected = {one.file.partition("@")[0] for one in runs if one.collected}
        applied_rules = [rule for rule in self.rules if rule.name in applied]
        silent = skip_rules.silent_rules(applied_rules, collected, took)
        if silent:
            names = ", ".join(rule.name for rule in silent)
            console.warn(f"Skip rules that match no test of the files that they name: {names}")

    def _put_logs(self, folder: Path) -> None:
        target = f"{self.stage.outputs.logs_prefix(self.stage.artifact_group)}/{self.stage.log.stem}"

        def put(path: Path) -> None:
            self.stage.store.put_bytes(f"{target}/{path.name}", _shortened(path))

        parallel.map_in_threads(put, sorted(path for path in folder.glob("*") if path.is_file()))


def _hint(cases: Sequence[Case]) -> str:
    if not (failed := next((one for one in cases if one.failing), None)):
        return "The logs are among the run's outputs (logs/)."
    file = upstream_tests.module_name(failed.file)
    return f"One test again: {command_again()} --include {file} -k {shlex.quote(expression(failed))}"


def _report(run: file_run.FileRun, log: Path) -> None:
    failing = [one for one in run.cases if one.failing]
    for case in failing[:20]:
        console.say(f"  {case.test} {case.outcome}: {case.line}")
    if run.log and failing:
        with (files.made(log.parent) / log.name).open("ab") as stream:
            stream.write(_shortened(run.log))
    if run.log and any(case.outcome in {"crashed", "timeout", "error"} for case in run.cases):
        console.detail(process.tail(run.log, lines=30))


def _shortened(path: Path) -> bytes:
    size, half = path.stat().st_size, _LOG_BYTES // 2
    if size <= _LOG_BYTES:
        return path.read_bytes()
    with path.open("rb") as stream:
        start = stream.read(half)
        stream.seek(size - half)
        return start + f"\n… {size - 2 * half} bytes left out …\n".encode() + stream.read()


def _show(runs: Sequence[file_run.FileRun]) -> None:
    rows = []
    for one in runs:
        found, failing = counts(one.cases), sum(case.failing for case in one.cases)
        passed, skipped = found["passed"] + found["flaky"], found["skipped"] + found["xfailed"]
        numbers = map(str, (passed, failing, skipped, one.processes))
        rows.append((one.file, *numbers, console.duration(one.seconds)))
    console.table(("test file", "passed", "failed", "skipped", "processes", "time"), rows)
