"""Running the smoke tests on installed packages, and filing what they report."""

from __future__ import annotations

import json
import os
import re
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from packaging.requirements import Requirement

from core import console, files, process, temporary
from core.data import read_toml
from core.env import installed_version
from core.errors import CheckError, ProcessError
from pytorch_build.components import component_of
from pytorch_build.test import plugin
from pytorch_build.test.junit.document import Case, Document, Suite, count_outcomes
from pytorch_build.test.process_results import EndedProcess, results_of_process
from pytorch_build.test.report import EXISTING_TESTS, MAY_SKIP, Report, ReportOrigin
from pytorch_build.test.stored_reports import put_report
from pytorch_build.test.summary import list_outcomes
from pytorch_build.test.verdict import require_passed

if TYPE_CHECKING:
    from core.env import Interpreter
    from core.env.installer import InstallerCall
    from core.run.stage import Stage
    from pytorch_build.context import Context
    from pytorch_build.test.gpus import Assignment
    from pytorch_build.test.tested_packages import TestedPackages

SMOKE_TESTS = Path(__file__).with_name("smoke")
REASONS_FILE = SMOKE_TESTS / "reasons.toml"

# Variables of pytest's, through which a user might choose among the tests that are counted.
_WITHOUT_CHOICE: Mapping[str, str | None] = {
    "PYTEST_ADDOPTS": None,
    "PYTEST_PLUGINS": None,
    "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1",
}


@dataclass(frozen=True, kw_only=True)
class SmokeTests:
    """Smoke tests that are run: of which packages, in which environment, on which GPU.

    `tools` are installed beside the packages. A record of the `stage` with the same `inputs` means no change.
    """

    context: Context
    target: Interpreter
    packages: TestedPackages
    gpu: Assignment
    pytest_arguments: tuple[str, ...]
    stage: Stage
    inputs: Mapping[str, Any]
    tools: Sequence[InstallerCall]


def digests_of_smoke_tests() -> Mapping[str, str]:
    """Return the files of the smoke tests: name to digest."""
    paths = sorted(SMOKE_TESTS.glob("*.*"))
    return {path.name: files.sha256(path) for path in paths}


def run_smoke_tests(smoke_tests: SmokeTests) -> Mapping[str, Any]:
    """Run the tests, file their report, and return the details for the record.

    Raises:
        CheckError: A test failed, or the results cannot be trusted.
    """
    context = smoke_tests.context
    versions = expected_versions(smoke_tests)
    variables = _variables(smoke_tests, versions)
    with temporary.folder("smoke") as folder:
        variables |= process.byte_code(folder / "bytecode")
        collection = _run_pytest(
            smoke_tests.target,
            folder / "collection",
            ("--collect-only",),
            {**variables, **_WITHOUT_CHOICE},
            process.capture,
        )
        with console.group("smoke tests"):
            test_process = _run_pytest(
                smoke_tests.target,
                folder / "run",
                smoke_tests.pytest_arguments,
                variables,
                process.run,
            )

    cases: list[Case] = []
    existing = collection.existing or frozenset()
    for case in results_of_process("the smoke tests", test_process, may_be_empty=True).cases:
        # What other people's files add is not among the tests that a release rests on.
        if case.test not in existing and not case.failing:
            continue
        reason = ""
        if case.outcome == "skipped":
            reason = _find_skip_reason(case.line, context, versions)
        cases.append(replace(case, file=case.test.partition("::")[0], rule=reason))

    report = _report_of(smoke_tests, cases, collection)
    details = put_report(
        context.common.open_store(),
        context.common.outputs,
        context.artifact_group,
        report,
    )
    command = f"nox -s test_smoke -- {context.options_for_hints} -k EXPR"
    require_passed(report, hint=f"Again, with pytest's arguments at the end: {command}")
    console.done(f"test_smoke: {list_outcomes(count_outcomes(cases))}")
    return details


# What the tests are told


def expected_versions(smoke_tests: SmokeTests) -> Mapping[str, str]:
    """Return the distributions that must be installed: the tested ones, and what stands for a project."""
    versions: dict[str, str] = {}
    for file in smoke_tests.packages.files:
        name = file.distribution
        if name == "rocm" or component_of(name) is not None:
            versions[name] = file.version
    for requirement in smoke_tests.packages.prebuilt_requirements:
        name = Requirement(requirement).name
        versions[name] = installed_version(smoke_tests.target, name)
    return versions


def module_versions(versions: Mapping[str, str]) -> Mapping[str, Sequence[str]]:
    """Return the versions that each component's module may state, by the versions of distributions."""
    modules: dict[str, Sequence[str]] = {}
    for distribution, version in versions.items():
        component = component_of(distribution)
        if component is not None:
            modules[component.module] = component.versions_in_module(version)
    return modules


def _variables(smoke_tests: SmokeTests, versions: Mapping[str, str]) -> dict[str, str | None]:
    """Return the variables of the tests: the environment's own programs, and what is expected."""
    ref = smoke_tests.context.ref
    inherited_path = process.handed_on().get("PATH", "")
    variables: dict[str, str | None] = {
        "SMOKE_EXPECT": json.dumps(versions),
        "SMOKE_MODULES": json.dumps(module_versions(versions)),
        "SMOKE_GPU": None,
        "SMOKE_MINIATURE": None,
        "PYTHONPATH": str(plugin.TARGET),
        "PATH": f"{smoke_tests.target.scripts}{os.pathsep}{inherited_path}",
        "VIRTUAL_ENV": str(smoke_tests.target.prefix),
    }
    if smoke_tests.gpu.devices:
        variables |= smoke_tests.gpu.env
    if smoke_tests.gpu.target and ref.has_gpu_code:
        variables["SMOKE_GPU"] = smoke_tests.gpu.target
    if not ref.has_full_size:
        variables["SMOKE_MINIATURE"] = "1"
    return variables


# What they answer


def _run_pytest(
    target: Interpreter,
    folder: Path,
    arguments: Sequence[str],
    variables: Mapping[str, str | None],
    run: Callable[..., object],
) -> EndedProcess:
    """Run pytest on the smoke tests; return how it ended, with what it wrote down."""
    settings = plugin.PluginSettings(
        root=str(SMOKE_TESTS),
        events=str(folder),
    )
    command: list[str | Path] = [target.executable, "-m", "pytest"]
    command += ["-c", SMOKE_TESTS / "pytest.ini"]
    command += ["--rootdir", SMOKE_TESTS]
    command += ["-p", "no:cacheprovider"]
    command += plugin.write_settings(files.ensure_folder(folder) / "settings.json", settings)
    command += [*arguments, SMOKE_TESTS]

    ending = process.Ending(returncode=0)
    try:
        run(
            command,
            cwd=folder,
            env=process.handed_on(**variables),
        )
    except ProcessError as problem:
        ending = process.Ending(returncode=problem.returncode or 1)
        if not plugin.read_event_logs(folder):
            raise CheckError("pytest ended before any test ran, so no result is known.") from problem
    return EndedProcess(
        ending=ending,
        ended_at=time.time(),
        event_logs=plugin.read_event_logs(folder),
        output="",
    )


def _report_of(
    smoke_tests: SmokeTests,
    cases: Sequence[Case],
    collection: EndedProcess,
) -> Report:
    """Return the report, with the number of tests that each file has before anything chooses among them."""
    seconds: dict[str, float] = defaultdict(float)
    for case in cases:
        seconds[case.file] += case.seconds
    test_counts: Counter[str] = Counter()
    for test in sorted(collection.existing or ()):
        file = test.partition("::")[0]
        test_counts[file] += 1

    suites: dict[str, Suite] = {}
    for file, count in test_counts.items():
        properties: dict[str, str] = {}
        # A file that cannot be collected has tests, too, and their number is unknown.
        if collection.could_collect:
            properties[EXISTING_TESTS] = str(count)
        suites[file] = Suite(
            seconds=seconds[file],
            properties=properties,
        )

    origin = ReportOrigin.of_stage(
        "test_smoke",
        smoke_tests.context.cell(smoke_tests.target.tag),
        config="",
        run_id=smoke_tests.context.common.outputs.run_id,
    )
    document = Document(
        cases=tuple(cases),
        suites=suites,
        properties={MAY_SKIP: "0"},
    )
    return Report(
        origin=origin,
        document=document,
    )


def _find_skip_reason(
    message: str,
    context: Context,
    versions: Mapping[str, str],
) -> str:
    """Return the name of the known reason in a skipped test's message; "" where none holds here."""
    holds_here = {
        "no-gpu": not context.ref.has_gpu_code or not context.gpu,
        "no-rocm": "rocm" not in versions,
        "sample": not context.ref.has_full_size,
        "windows": context.common.outputs.platform == "windows",
    }
    for reason_name, pattern in read_toml(REASONS_FILE).items():
        match = re.fullmatch(pattern, message)
        if match is None:
            continue
        if reason_name == "absent":
            holds_here[reason_name] = match["name"] not in versions
        if holds_here[reason_name]:
            return reason_name
    return ""
