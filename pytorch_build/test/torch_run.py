"""Running upstream's unit tests of torch on installed wheels, for one shard of one configuration."""

from __future__ import annotations

import json
import shutil
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from core import console, files, parallel, process, temporary
from core.cli.sessions import command_again
from core.data import validated
from core.errors import CheckError, UsageError
from core.run import records
from core.run.stage import Stage, StageResult, look, perform
from core.shell import command_line
from pytorch_build.test import file_run, plugin, shards, skip_rules, upstream_tests
from pytorch_build.test.junit.document import Case, Document, Suite, count_outcomes, failure_line
from pytorch_build.test.record_validity import force_if_incomplete
from pytorch_build.test.report import (
    DEFAULT_CONFIG,
    EXISTING_TESTS,
    MAY_SKIP,
    REQUIRED_FILES,
    Report,
    ReportOrigin,
)
from pytorch_build.test.stored_reports import put_report
from pytorch_build.test.summary import pytest_expression
from pytorch_build.test.verdict import require_passed

if TYPE_CHECKING:
    from core.env import Interpreter
    from core.status import Status
    from pytorch_build.context import Context
    from pytorch_build.test.file_run import FileResults
    from pytorch_build.test.gpus import Assignment
    from pytorch_build.test.plugin import AppliedRule
    from pytorch_build.test.skip_rules import Rule
    from pytorch_build.test.upstream_tests import TestFile

TORCH = "torch"  # where a record's details have what the tested torch said of itself
_LOGS = "logs"
# A log among a run's outputs is for reading; of a longer one the beginning and the end are enough.
_LOG_BYTES = 8 << 20
_MOST_SHOWN_FAILURES = 20
_COLUMNS = (
    "test file",
    "passed",
    "failed",
    "skipped",
    "processes",
    "time",
)
# Outcomes whose reason stands at the end of a log.
_BROKEN_OFF = frozenset({"crashed", "timeout", "error"})
# Builds get these, and tests would be led to another ROCm.
_VARIABLES_OF_BUILDS = ("LD_LIBRARY_PATH", "ROCM_PATH", "ROCM_HOME", "HIP_PATH")


@dataclass(frozen=True, kw_only=True)
class TorchTestRequest:
    """Which tests to run, and how.

    Attributes:
        config: The configuration of upstream's tests.
        shard: The part of them.
        include: Test files in the place of the configuration's.
        exclude: Test files to leave out.
        expression: pytest's ``-k``.
        pytest_arguments: Other arguments of pytest.
        tree: A source tree of the user's with the tests.
        allow_version_mismatch: Whether the tests may be of another version than torch.
        other_gpu: Whether NVIDIA's GPUs stand for the family's.
        workers: How many processes may share the tests of a file.
        skips: Files or folders with skip rules of the user's.
        limits: What a test and a file may take; None for the limits of the data.
        mirrors: Where repositories are cloned from instead.
    """

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
    def selecting_options(self) -> list[str]:
        """The options that may choose among the tests."""
        options: list[str] = []
        for name in self.include:
            options += ["--include", name]
        for name in self.exclude:
            options += ["--exclude", name]
        if self.expression:
            options += ["-k", self.expression]
        return [*options, *self.pytest_arguments]

    @property
    def replacing_options(self) -> list[str]:
        """The options that replaced tests and rules: no promotion rests on such results."""
        options: list[str] = []
        if self.tree is not None:
            options += ["--pytorch-dir", str(self.tree)]
        if self.allow_version_mismatch:
            options.append("--allow-version-mismatch")
        if self.other_gpu:
            options.append("--other-gpu")
        for path in self.skips:
            options += ["--skips", str(path)]
        return options


@dataclass(frozen=True, kw_only=True)
class Bench:
    """Where tests run: wheels are installed, the tree and the GPUs are chosen."""

    context: Context
    target: Interpreter
    tests: upstream_tests.UpstreamTests
    torch: upstream_tests.InstalledTorch
    assignments: Sequence[Assignment]

    @property
    def has_several_targets(self) -> bool:
        """Whether each file runs on several GPU architectures."""
        return len(self.assignments) > 1


def perform_tests(
    bench: Bench,
    request: TorchTestRequest,
    inputs: Mapping[str, Any],
) -> None:
    """Run a shard, keep its report, logs and record; do nothing where the same was tested before."""
    prepared_shard = _prepare_shard(bench, request)
    perform(
        force_if_incomplete(prepared_shard.stage),
        {**inputs, **_recorded_inputs(prepared_shard)},
        partial(_run_and_report, prepared_shard),
    )


def look_at_tests(
    bench: Bench,
    request: TorchTestRequest,
    inputs: Mapping[str, Any],
) -> Status:
    """Return whether a shard has to be run. Nothing is changed."""
    prepared_shard = _prepare_shard(bench, request)
    stage = force_if_incomplete(prepared_shard.stage)
    return look(stage, {**inputs, **_recorded_inputs(prepared_shard)})


def find_recorded_torch(
    context: Context,
    target: Interpreter,
    request: TorchTestRequest,
    inputs: Mapping[str, Any],
) -> upstream_tests.InstalledTorch | None:
    """Return what the torch of the last test said of itself, if its packages are those that are tested now.

    None where they are others, or nothing was tested yet: an environment has to be filled to ask its torch.

    Args:
        context: What is tested.
        target: The interpreter of the tests' environment.
        request: Which tests are to run.
        inputs: What a record holds of the installation.
    """
    origin = _origin_of(context, target, request)
    stage = _stage_of(context, origin, request)
    record = records.read(stage.store, stage.outputs, stage.artifact_group, stage.record_name)
    if record is None or TORCH not in record.details:
        return None

    # As a record has them: JSON knows no tuples.
    written_inputs = json.loads(json.dumps(inputs))
    for name, value in written_inputs.items():
        if record.inputs.get(name) != value:
            return None
    key = stage.outputs.record_key(stage.artifact_group, stage.record_name)
    return validated(record.details[TORCH], upstream_tests.InstalledTorch, where=key, table_name=TORCH)


# What runs


def _origin_of(context: Context, target: Interpreter, request: TorchTestRequest) -> ReportOrigin:
    """Return what is tested, as reports and records name it."""
    return ReportOrigin.of_stage(
        "test_torch",
        context.cell(target.tag),
        config=request.config,
        run_id=context.common.outputs.run_id,
    )


def _stage_of(context: Context, origin: ReportOrigin, request: TorchTestRequest) -> Stage:
    """Return the stage of a shard's record."""
    return Stage(
        name=origin.stage_name(request.shard),
        common=context.common,
        artifact_group=context.artifact_group,
        cell=origin.cell,
    )


@dataclass(frozen=True, kw_only=True)
class _PreparedShard:
    """A shard of the tests that is ready to run.

    Attributes:
        bench: Where it runs.
        request: What was asked for.
        origin: What is tested.
        stage: The stage of its record.
        rules: All skip rules.
        applied_rules: Those that apply, for each of the bench's GPUs.
        test_files: The chosen test files, by their paths.
        required_files: The test files of the configuration, which all shards together are to run.
        plan: Which shard runs which of the chosen files.
    """

    bench: Bench
    request: TorchTestRequest
    origin: ReportOrigin
    stage: Stage
    rules: Sequence[Rule]
    applied_rules: Sequence[tuple[AppliedRule, ...]]
    test_files: Mapping[str, TestFile]
    required_files: Collection[str]
    plan: shards.Plan


def _prepare_shard(bench: Bench, request: TorchTestRequest) -> _PreparedShard:
    """Return what a shard is to run; refuse what cannot work."""
    upstream_tests.require_matching_tests(
        bench.torch,
        bench.tests,
        allowed=request.allow_version_mismatch,
    )
    _require_device_code(bench)
    test_files = _choose_files(bench, request)
    if not test_files:
        raise UsageError("No test file is left to run.", hint="See --include, --exclude and --config.")

    context = bench.context
    common = context.common
    origin = _origin_of(context, bench.target, request)
    durations = shards.durations_for_run(
        common.open_store(),
        common.outputs,
        context.artifact_group,
        request.config,
    )
    rules = skip_rules.load_rules(request.skips)
    unrestricted_request = replace(
        request,
        include=(),
        exclude=(),
        expression="",
    )
    return _PreparedShard(
        bench=bench,
        request=request,
        origin=origin,
        stage=_stage_of(context, origin, request),
        rules=rules,
        applied_rules=_apply_rules(bench, request, rules),
        test_files=test_files,
        required_files=_choose_files(bench, unrestricted_request),
        plan=shards.plan_shards(
            test_files,
            durations,
            request.shard.count,
        ),
    )


def _require_device_code(bench: Bench) -> None:
    """Refuse GPUs that the wheel has no device code for: each test would fail in its own way."""
    if not bench.torch.hip or not bench.torch.targets:
        return
    wheel_targets = {target.partition(":")[0] for target in bench.torch.targets}
    gpu_targets = {assignment.target for assignment in bench.assignments if assignment.target}
    missing_targets = sorted(gpu_targets - wheel_targets)
    if missing_targets:
        raise CheckError(
            f"torch {bench.torch.version} has device code for {', '.join(sorted(wheel_targets))}, "
            f"and none for {', '.join(missing_targets)}.",
            hint="Test the wheels of this GPU's family: --gpu-family.",
        )


def _choose_files(bench: Bench, request: TorchTestRequest) -> Mapping[str, TestFile]:
    """Return the test files that a request chooses, by their paths."""
    configuration = upstream_tests.find_configuration(request.config)
    scripts = upstream_tests.list_scripts(configuration, bench.tests.tree)
    modules = upstream_tests.list_modules(bench.tests.tree)
    chosen_files = upstream_tests.choose_files(
        configuration,
        (*scripts, *modules),
        gpu=any(assignment.devices for assignment in bench.assignments),
        scripts=not request.expression,
        include=request.include,
        exclude=request.exclude,
    )
    return {test_file.file: test_file for test_file in chosen_files}


def _apply_rules(
    bench: Bench,
    request: TorchTestRequest,
    rules: Sequence[Rule],
) -> Sequence[tuple[AppliedRule, ...]]:
    """Return the skip rules that apply, for each of the bench's GPUs."""
    tested = skip_rules.TestedTorch(
        gpu_targets=bench.context.gpu_targets,
        platform=bench.context.common.outputs.platform,
        python=bench.target.version,
        torch=bench.torch.version,
        torch_ref=bench.context.ref.name,
        config=request.config,
    )
    today = skip_rules.current_date()
    rules_of_gpus: list[tuple[AppliedRule, ...]] = []
    for assignment in bench.assignments:
        # NVIDIA's GPUs stand for the family's.
        is_amd = assignment.target.startswith("gfx")
        gpu_targets = (assignment.target,) if is_amd else tested.gpu_targets
        tested_on_gpu = replace(tested, gpu_targets=gpu_targets)
        rules_of_gpus.append(skip_rules.apply_rules(rules, tested_on_gpu, today))
    return rules_of_gpus


def _recorded_inputs(prepared_shard: _PreparedShard) -> Mapping[str, Any]:
    """Return the inputs of a shard's record, beside what is installed."""
    request = prepared_shard.request
    tests = prepared_shard.bench.tests
    rule_digests: dict[str, str] = {}
    for number, rules in enumerate(prepared_shard.applied_rules):
        tables = [rule.model_dump() for rule in rules]
        rule_digests[str(number)] = files.digest_of(tables)
    gpu_targets = {assignment.target for assignment in prepared_shard.bench.assignments}
    return {
        "config": request.config,
        "arguments": request.replacing_options,
        "selection": request.selecting_options,
        "tests": {"commit": tests.commit, "version": tests.version},
        "rules": rule_digests,
        "shard": str(request.shard),
        "plan": prepared_shard.plan.digest,
        "gpu": sorted(gpu_targets - {""}),
    }


# Running it


def _run_and_report(prepared_shard: _PreparedShard) -> StageResult:
    """Run a shard, and file its report; return what the record says of it."""
    request = prepared_shard.request
    stage = prepared_shard.stage
    if request.shard.count > 1:
        shards.print_plan(prepared_shard.plan, request.shard)

    started = records.now()
    with temporary.folder("pt") as scratch:
        try:
            all_results = _run_files(prepared_shard, scratch)
        finally:
            # Also of a run that was interrupted.
            _store_logs(stage, scratch / _LOGS)

    report = Report(
        origin=prepared_shard.origin,
        document=_document_of(prepared_shard, all_results, started),
        shard=request.shard if request.shard.count > 1 else None,
    )
    details = put_report(
        stage.store,
        stage.outputs,
        stage.artifact_group,
        report,
    )
    _show_results(all_results)
    if prepared_shard.bench.context.ref.has_whole_tests:
        _warn_of_silent_rules(prepared_shard, all_results)
    require_passed(report, hint=_hint_for_failure(report.document.cases))
    outcomes = count_outcomes(report.document.cases)
    passed = outcomes["passed"] + outcomes["flaky"]
    console.done(f"{stage.name}: {passed} passed")
    return StageResult(
        files=(),
        details={**details, TORCH: prepared_shard.bench.torch.model_dump(mode="json")},
    )


def _run_files(prepared_shard: _PreparedShard, scratch: Path) -> Sequence[FileResults]:
    """Run the files of a shard, on each GPU architecture."""
    bench = prepared_shard.bench
    request = prepared_shard.request
    test_files = prepared_shard.plan.files_of(request.shard)
    all_results: list[FileResults] = []
    for number, assignment in enumerate(bench.assignments):
        if bench.has_several_targets:
            file_count = console.counted(len(test_files), "test file")
            console.say(f"{file_count} on {assignment.description}")
        for position, test_file in enumerate(test_files, start=1):
            folder = scratch / f"{number}-{position}"
            settings = file_run.FileSettings(
                python=bench.target.executable,
                tree=bench.tests.tree,
                env=process_environment(bench, assignment, folder),
                folder=folder / "pytest",
                logs=scratch / _LOGS,
                limits=request.limits or upstream_tests.load_configurations().limits,
                rules=prepared_shard.applied_rules[number],
                expression=request.expression,
                arguments=request.pytest_arguments,
                workers=request.workers,
            )
            name = file_run.log_name(test_file)
            if bench.has_several_targets:
                name += f"@{assignment.target}"

            with console.group(f"{position}/{len(test_files)} {test_file}"):
                results = file_run.run_file(
                    prepared_shard.test_files[test_file],
                    settings,
                    name=name,
                )
                _show_failures(results, prepared_shard.stage.log)
            if bench.has_several_targets:
                results = results.named_for(assignment.target)
            all_results.append(results)
            shutil.rmtree(folder, ignore_errors=True)
    return all_results


def process_environment(
    bench: Bench,
    assignment: Assignment,
    folder: Path,
) -> Mapping[str, str]:
    """Return the environment of a test file's processes: GPUs, upstream's switches, caches of its own."""
    target = bench.target
    separator = ";" if bench.context.common.outputs.platform == "windows" else ":"
    inherited_path = process.handed_on().get("PATH", "")
    changes: dict[str, str | None] = dict.fromkeys(_VARIABLES_OF_BUILDS)
    for variable, name in upstream_tests.load_configurations().folders.items():
        (folder / name).mkdir(
            parents=True,
            exist_ok=True,
        )
        changes[variable] = str(folder / name)
    changes |= {
        **assignment.env,
        "PATH": f"{target.scripts}{separator}{inherited_path}",
        "VIRTUAL_ENV": str(target.prefix),
        "PYTHONPATH": separator.join((str(bench.tests.tree / "test"), str(plugin.TARGET))),
        **process.byte_code(folder.parent / "bytecode"),
        "PYTHONUNBUFFERED": "1",
        "PYTORCH_TESTING_DEVICE_ONLY_FOR": "cuda" if assignment.devices else "cpu",
        "PYTORCH_PRINT_REPRO_ON_FAILURE": "0",
        "PYTORCH_TEST_WITH_ROCM": "1" if bench.torch.hip else "0",
        # One thread per process, because matrices of tests are small and machines are shared.
        "OPENBLAS_NUM_THREADS": "1",
    }
    return process.handed_on(**changes)


def _document_of(
    prepared_shard: _PreparedShard,
    all_results: Sequence[FileResults],
    started: str,
) -> Document:
    """Return the results of the files, with what was to run."""
    bench = prepared_shard.bench
    cases: list[Case] = []
    suites: dict[str, Suite] = {}
    for results in all_results:
        cases += results.cases
        properties = {"processes": str(results.processes)}
        if results.existing is not None:
            properties[EXISTING_TESTS] = str(len(results.existing))
        suites[results.file] = Suite(
            seconds=results.seconds,
            properties=properties,
        )

    return Document(
        cases=tuple(cases),
        suites=suites,
        properties={
            "torch": bench.torch.version,
            "tests": bench.tests.commit or bench.tests.version,
            REQUIRED_FILES: " ".join(sorted(prepared_shard.required_files)),
            MAY_SKIP: str(upstream_tests.find_configuration(prepared_shard.request.config).may_skip),
        },
        timestamp=started,
    )


# What readers see


def _warn_of_silent_rules(prepared_shard: _PreparedShard, all_results: Sequence[FileResults]) -> None:
    """Name rules that took no test of the files that they name: it was renamed, or never there."""
    applied_names: set[str] = set()
    for rules in prepared_shard.applied_rules:
        applied_names.update(rule.name for rule in rules)
    matched_names: set[str] = set()
    collected_files: set[str] = set()
    for results in all_results:
        matched_names |= results.matched_rules
        if results.existing:
            collected_files.add(results.file.partition("@")[0])

    applied_rules = [rule for rule in prepared_shard.rules if rule.name in applied_names]
    silent_rules = skip_rules.find_silent_rules(applied_rules, collected_files, matched_names)
    if silent_rules:
        names = ", ".join(rule.name for rule in silent_rules)
        console.warn(f"Skip rules that match no test of the files that they name: {names}")


def _store_logs(stage: Stage, folder: Path) -> None:
    """Keep the logs of the files among the run's outputs."""
    prefix = f"{stage.outputs.logs_prefix(stage.artifact_group)}/{stage.log.stem}"
    paths = sorted(path for path in folder.glob("*") if path.is_file())
    parallel.map_in_threads(
        lambda path: stage.store.put_bytes(f"{prefix}/{path.name}", _shortened_log(path)), paths
    )


def _shortened_log(path: Path) -> bytes:
    """Return a log, or of a long one its beginning and end."""
    size = path.stat().st_size
    if size <= _LOG_BYTES:
        return path.read_bytes()
    half = _LOG_BYTES // 2
    with path.open("rb") as stream:
        beginning = stream.read(half)
        stream.seek(size - half)
        end = stream.read()
    return beginning + f"\n… {size - 2 * half} bytes left out …\n".encode() + end


def _hint_for_failure(cases: Sequence[Case]) -> str:
    """Return the hint of a failure: how to run the first failed test again."""
    for case in cases:
        if case.failing:
            file = upstream_tests.module_name(case.file)
            expression = command_line([pytest_expression(case)])
            selection = f"--include {file} -k {expression}"
            return f"One test again: {command_again()} {selection}"
    return "The logs are among the run's outputs (logs/)."


def _show_failures(results: FileResults, stage_log: Path) -> None:
    """Print what failed in a file, and add its logs to the stage's."""
    failed_cases = [case for case in results.cases if case.failing]
    for case in failed_cases[:_MOST_SHOWN_FAILURES]:
        console.say(f"  {failure_line(case)}")
    if not failed_cases:
        return

    files.ensure_folder(stage_log.parent)
    has_broken_off = any(case.outcome in _BROKEN_OFF for case in failed_cases)
    for log in results.logs:
        with stage_log.open("ab") as stream:
            stream.write(_shortened_log(log))
        if has_broken_off:
            console.detail(process.tail(log, lines=30))


def _show_results(all_results: Sequence[FileResults]) -> None:
    """Print a row per file."""
    rows: list[tuple[str, ...]] = []
    for results in all_results:
        outcomes = count_outcomes(results.cases)
        passed = outcomes["passed"] + outcomes["flaky"]
        skipped = outcomes["skipped"] + outcomes["xfailed"]
        failed = len(results.cases) - passed - skipped
        row = (
            str(passed),
            str(failed),
            str(skipped),
            str(results.processes),
            console.duration(results.seconds),
        )
        rows.append((results.file, *row))
    console.table(_COLUMNS, rows)
