"""`test-smoke`: wheels of a run, page, index or folder into a clean environment, imported and used."""

import argparse
import json
import os
import re
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from packaging.requirements import Requirement

from core import console, files, process, temporary
from core.cli.options import add_group, common_from, environment
from core.data import read_toml
from core.env import Interpreter, installed_version, require
from core.env.locks import locked_call
from core.errors import CheckError, ProcessError
from core.junit import Document, Suite, counts
from core.packages.options import SourceOptions, options_of_tested_source
from core.run import stage
from core.status import Status
from pytorch_build.context import Context, context
from pytorch_build.sdk import RocmOptions, add_tested_sources, rocm_options_from
from pytorch_build.test import installation, plugin, reports
from pytorch_build.test.file_run import of_file
from pytorch_build.test.gpus import Assignment, assignments
from pytorch_build.test.results import EXISTING, MAY_SKIP, Origin, Report

PASSES_REST = True
SMOKE_TESTS = Path(__file__).parents[1] / "test" / "smoke"
REASONS = SMOKE_TESTS / "reasons.toml"


def add_options(parser: argparse.ArgumentParser) -> None:
    """Declare the verb's own options."""
    add_group(parser)
    add_tested_sources(parser)
    what = "test a GPU family's wheels on a machine without a GPU, too"
    parser.add_argument("--allow-no-gpu", action="store_true", help=what)
    what = "test on NVIDIA's GPUs, with a torch made for them"
    parser.add_argument("--other-gpu", action="store_true", help=what)
    parser.epilog = "Unknown options go to pytest."


@dataclass(frozen=True, kw_only=True)
class SmokeOptions:
    """How to test."""

    install: bool = True
    allow_no_gpu: bool = False
    other_gpu: bool = False
    source: SourceOptions = field(default_factory=SourceOptions)
    rocm: RocmOptions = field(default_factory=RocmOptions)
    pytest_arguments: tuple[str, ...] = ()


def run(arguments: argparse.Namespace) -> None:
    """Install and test."""
    test_run(context(common_from(arguments), group=arguments.artifact_group), smoke_options_from(arguments))


def look(arguments: argparse.Namespace) -> Status:
    """Return whether the run's wheels have to be tested. Nothing is changed."""
    options = smoke_options_from(arguments)
    plan = _plan(context(common_from(arguments), group=arguments.artifact_group), options)
    return stage.look(plan.stage, plan.inputs)


def smoke_options_from(arguments: argparse.Namespace) -> SmokeOptions:
    """Turn parsed arguments into the value that the tests get."""
    return SmokeOptions(
        install=not arguments.no_install,
        source=options_of_tested_source(arguments),
        rocm=rocm_options_from(arguments, environment()),
        allow_no_gpu=arguments.allow_no_gpu,
        other_gpu=arguments.other_gpu,
        pytest_arguments=tuple(arguments.rest),
    )


@dataclass(frozen=True, kw_only=True)
class _SmokePlan:
    """What is tested where, and what makes the tests unchanged."""

    stage: stage.Stage
    inputs: Mapping[str, Any]
    target: Interpreter
    tested: installation.Tested
    gpu: Assignment


def test_run(context: Context, options: SmokeOptions) -> None:
    """Test the run's wheels of one ref, family and Python."""
    plan = _plan(context, options)

    def work() -> stage.StageResult:
        if not options.install:
            installation.require_device_code(plan.target, installation.amd_targets([plan.gpu]))
            details = _pytest(context, plan.target, plan.tested, options, plan.gpu)
            return stage.StageResult(files=(), details=details)

        # The second builds the rocm sdist.
        tools = [locked_call(context.common, plan.target, only=("pytest", "setuptools"))]
        with installation.prepared(
            context, plan.target, plan.tested, tools=tools, inputs=plan.inputs, rocm=options.rocm
        ):
            details = _pytest(context, plan.target, plan.tested, options, plan.gpu)
            return stage.StageResult(files=(), details=details)

    stage.perform(plan.stage, plan.inputs, work)


def _plan(context: Context, options: SmokeOptions) -> _SmokePlan:
    target, common = require(context.common.python), context.common
    gpu = _gpu(context, options)
    if options.install:
        tested = installation.tested(context, target, options.source, options.rocm)
    else:
        tested = installation.installed(context, target)

    inputs = {
        **tested.inputs,
        "tests": {path.name: files.sha256(path) for path in sorted(SMOKE_TESTS.glob("*.*"))},
        "selection": list(options.pytest_arguments),
        "gpu": gpu.target,
        "installed": options.install,
    }
    test_stage = stage.Stage(
        name="test_smoke",
        # An environment that this stage did not fill may have changed.
        common=common if options.install else replace(common, force=True),
        artifact_group=context.artifact_group,
        cell=context.cell(target.tag),
    )
    return _SmokePlan(
        stage=reports.unless_incomplete(test_stage), inputs=inputs, target=target, tested=tested, gpu=gpu
    )


def _gpu(context: Context, options: SmokeOptions) -> Assignment:
    first, *others = assignments(
        context, environment(), allow_no_gpu=options.allow_no_gpu, other_gpu=options.other_gpu
    )
    if first.devices:
        console.say(f"Smoke tests on {first.words}.")
    if others:
        listed = ", ".join(one.words for one in others)
        console.warn(f"{listed} are not tested: hide the first GPU to test them (HIP_VISIBLE_DEVICES).")
    return first


def _pytest(
    context: Context, target: Interpreter, what: installation.Tested, options: SmokeOptions, gpu: Assignment
) -> Mapping[str, Any]:
    expect = {one.distribution: one.version for one in what.files if not one.distribution.startswith("rocm-")}
    for name in (Requirement(one).name for one in what.prebuilt):
        expect[name] = installed_version(target, name)
    # the environment's own programs, and nothing of the tool's interpreter
    changes: dict[str, str | None] = {
        **(gpu.env if gpu.devices else {}),
        "SMOKE_EXPECT": json.dumps(expect),
        "SMOKE_GPU": (context.ref.has_gpu_code and gpu.target) or None,
        "PYTHONPATH": str(plugin.TARGET),
        "PATH": f"{target.scripts}{os.pathsep}{process.handed_on().get('PATH', '')}",
        "VIRTUAL_ENV": str(target.prefix),
    }
    # what exists is collected where nothing of the caller's can choose
    plain = {"PYTEST_ADDOPTS": None, "PYTEST_PLUGINS": None, "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}
    with temporary.folder("smoke") as at:
        changes |= process.byte_code(at / "bytecode")
        every, _ = _session(target, at / "every", ("--collect-only",), {**changes, **plain}, process.capture)
        with console.group("smoke tests"):
            session, ended = _session(target, at / "run", options.pytest_arguments, changes, process.run)
    known = _reasons(context, expect)
    cases = (
        replace(
            one, file=one.test.partition("::")[0], rule=known(one.line) if one.outcome == "skipped" else ""
        )
        for one in of_file("the smoke tests", ended, [session], "", may_be_empty=True)
    )
    # what somebody else's files add is not among the tests that a release rests on
    existing = frozenset(every.collected)
    ours = tuple(one for one in cases if one.test in existing or one.failing)
    suites = {
        name: Suite(
            seconds=sum(one.seconds for one in ours if one.file == name),
            # a file that cannot be collected has tests, too
            properties={EXISTING: str(count)} if every.whole else {},
        )
        for name, count in Counter(test.partition("::")[0] for test in existing).items()
    }
    document = Document(cases=ours, suites=suites, properties={MAY_SKIP: "0"})
    common = context.common
    origin = Origin.of("test_smoke", context.cell(target.tag), config="", run_id=common.outputs.run_id)
    report = Report(origin=origin, document=document)
    details = reports.put_report(common.open_store(), common.outputs, context.artifact_group, report)
    again = f"nox -s test_smoke -- {context.words} -k EXPR"
    reports.require_passed(report, hint=f"Again, with pytest's arguments at the end: {again}")
    found = ", ".join(f"{count} {outcome}" for outcome, count in counts(ours).items() if count)
    console.done(f"test_smoke: {found}")
    return details


def _session(
    target: Interpreter,
    folder: Path,
    arguments: Sequence[str],
    changes: Mapping[str, str | None],
    run: Callable[..., object],
) -> tuple[plugin.Session, process.Ending]:
    """Run pytest on the smoke tests, and read its journal."""
    journal, ended = folder / "journal.jsonl", process.Ending(returncode=0)
    plan = plugin.Plan(root=str(SMOKE_TESTS), journal=str(journal))
    own = plugin.arguments(files.made(folder) / "plan.json", plan)
    argv: list[str | Path] = [target.executable, "-m", "pytest", "-c", SMOKE_TESTS / "pytest.ini"]
    argv += ["--rootdir", SMOKE_TESTS, "-p", "no:cacheprovider", *own]
    try:
        run([*argv, *arguments, SMOKE_TESTS], cwd=folder, env=process.handed_on(**changes))
    except ProcessError as problem:
        ended = process.Ending(returncode=problem.returncode or 1)
        if not journal.is_file():
            raise CheckError("pytest ended before any test ran, so no result is known.") from problem
    return plugin.read_journal(journal)[-1], ended


def _reasons(context: Context, expect: Mapping[str, str]) -> Callable[[str], str]:
    """Return what finds the known reason, by its name, for which a test may skip itself here."""
    holds = {
        "no-gpu": not context.ref.has_gpu_code or not context.gpu,
        "no-rocm": "rocm" not in expect,
        "sample": not context.ref.has_full_size,
        "windows": context.common.outputs.platform == "windows",
    }

    def known(line: str) -> str:
        for name, one in read_toml(REASONS).items():
            found = re.fullmatch(one["reason"], line)
            if found and (holds[name] if name in holds else found["name"] not in expect):
                return name
        return ""

    return known
