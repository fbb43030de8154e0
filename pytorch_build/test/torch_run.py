"""Running upstream's unit tests of torch on installed wheels, for one shard of one configuration."""

from __future__ import annotations

import datetime as dt
import shutil
import tempfile
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from core import console, files, parallel, process
from core.errors import CheckError
from core.junit import Document, Suite, counts
from core.run import records
from core.run.stage import Made, Stage, perform
from pytorch_build.test import (
    conditions,
    configurations,
    durations,
    recording,
    running,
    sharding,
    skip_review,
    skip_rules,
    upstream_tests,
)
from pytorch_build.test.results import DEFAULT_CONFIG, WHOLE, Origin, Report
from pytorch_build.test.running import FileRun, Setting
from pytorch_build.test.torch_request import environment

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from pytorch_build.test.configurations import TestFile
    from pytorch_build.test.plugin import PlannedRule
    from pytorch_build.test.torch_request import Bench, TorchTests

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
        name=recording.stage_name(origin, asked.shard),
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
        conditions.planned(
            rules,
            conditions.UnderTest(
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
    configuration, tree = configurations.configuration(asked.config), bench.tests.tree
    chosen = configurations.chosen_files(
        configuration,
        (*configurations.scripts_of(configuration, tree), *configurations.modules_of(tree)),
        gpu=bench.gpu,
        scripts=not asked.expression,
        include=asked.include,
        exclude=asked.exclude,
    )
    return {one.file: one for one in chosen}


def _plan(bench: Bench, asked: TorchTests) -> sharding.Plan:
    common = bench.context.common
    if asked.durations:
        known = durations.read_durations(asked.durations)
    else:
        known = durations.for_run(
            common.open_store(), common.outputs, bench.context.artifact_group, asked.config
        )
    return sharding.plan(_files(bench, asked), known, asked.shard.count)


def _tested(
    bench: Bench,
    asked: TorchTests,
    origin: Origin,
    plan: sharding.Plan,
    rules: Sequence[tuple[PlannedRule, ...]],
) -> Mapping[str, Any]:
    """Run the shard's files on each GPU, and keep what they gave."""
    common, group = bench.context.common, bench.context.artifact_group
    if asked.shard.count > 1:
        sharding.show(plan, asked.shard)
    started = records.now()
    with tempfile.TemporaryDirectory(prefix="pt-", ignore_cleanup_errors=True) as scratch:
        runs: list[FileRun] = []
        try:
            runs.extend(_runs(bench, asked, plan, rules, Path(scratch)))
        finally:
            # of a run that was interrupted, too
            _put_logs(bench, recording.stage_name(origin, asked.shard), Path(scratch) / LOGS)
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
        details = recording.put_report(store, common.outputs, group, report)
    _show(runs)
    _warn_of_silent_rules(asked, rules, runs)
    recording.require_report_passed(report, hint=_hint(bench, asked))
    found = counts(report.document.cases)
    console.done(f"{recording.stage_name(origin, asked.shard)}: {found['passed'] + found['flaky']} passed")
    matched = {rule: len(tests) for one in runs for rule, tests in one.matched.items() if tests}
    return {**details, "rules": matched}


def _runs(
    bench: Bench,
    asked: TorchTests,
    plan: sharding.Plan,
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
            limits=asked.limits or configurations.load().limits,
            rules=rules[number],
            expression=asked.expression,
            arguments=asked.pytest_arguments,
            workers=asked.workers,
        )
        for at, part in enumerate(parts, start=1):
            name = running.log_name(part.file) + (f"@{assigned.target}" if several else "")
            own = scratch / f"{number}-{at}"
            env = environment(bench, assigned, own)
            with console.group(f"{at}/{len(parts)} {part.file}"):
                made = running.run_file(known[part.file], replace(setting, env=env), part=part, name=name)
                _tell(made)
            yield running.on(assigned.target, made) if several else made
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
        console.detail(process.tail(run.log, lines=30))


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
