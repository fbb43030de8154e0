"""`check-wheels`: wheels -> findings, a table of them, and a report among the run's outputs."""

import argparse
import json
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from core import console
from core.cli.options import GROUP_OPTIONS, RUN_OPTIONS, Common, common_from
from core.errors import MissingInputError
from core.modes import refuse_options
from core.run import group_name, records
from core.status import Pending, Status, UpToDate
from core.wheel import parse_wheel_name
from pytorch_build.check import Expectation, Finding, findings_json, findings_table, require_no_errors
from pytorch_build.check.expected import expectations, machine_libraries
from pytorch_build.check.policy import CheckOptions, load_policy
from pytorch_build.check.run import check_wheels, find_wheels, loader_libraries
from pytorch_build.context import Context, find_context_of_wheels
from rocm_packaging.packages.layouts import host_distribution

COMMON_OPTIONS = ("torch-ref", *GROUP_OPTIONS, *RUN_OPTIONS, "dry-run")


def add_options(parser: argparse.ArgumentParser) -> None:
    """Declare the verb's own options."""
    paths = parser.add_argument(
        "paths",
        nargs="*",
        type=Path,
        default=[],
        metavar="WHEEL|DIR",
        help="what to check (default: the run's PyTorch wheels)",
    )
    parser.add_argument(
        "--policy",
        type=Path,
        metavar="FILE",
        help="your own limits, over those of the checks",
    )
    parser.add_argument(
        "--json",
        action="store_true",
        help="print the findings as JSON",
    )

    group = parser.add_argument_group("ROCm's wheels")
    group.add_argument(
        "--rocm",
        action="store_true",
        help="check the ROCm wheels that the run has built, as a set: each finds the libraries that it needs",
    )
    version = group.add_argument(
        "--version",
        default="",
        metavar="V",
        help="the version that they must have (default: that of rocm-sdk-core)",
    )

    parser.set_defaults(
        path_options=[paths],
        rocm_options=[version],
    )


@dataclass(frozen=True, kw_only=True)
class CheckResult:
    """The wheels that were checked, and the findings on them."""

    session: str
    wheels: Sequence[Path]
    findings: Sequence[Finding]
    report_key: str | None = None  # None where the wheels are not a run's


def run(arguments: argparse.Namespace) -> None:
    """Check wheels, print the findings and store a run's report; fail if any is an error."""
    if arguments.rocm:
        refuse_options(arguments, arguments.path_options, mode="with --rocm")
    else:
        refuse_options(arguments, arguments.rocm_options, mode="without --rocm")
    common = common_from(arguments)
    result = _check_chosen_wheels(arguments, common)
    if result.report_key is not None:
        common.open_store().put_bytes(result.report_key, _report_content(result.findings))

    if arguments.json:
        console.result(_findings_as_json(result.findings))
    console.table(*findings_table(result.findings))
    console.done(_summary(result))
    require_no_errors(result.findings)


def look(arguments: argparse.Namespace) -> Status:
    """Return whether the run's wheels were checked as they are now, and passed. Nothing is changed."""
    common = replace(common_from(arguments), dry_run=True)
    result = _check_chosen_wheels(arguments, common)
    if result.report_key is None:
        return Pending(reasons=("the wheels are not a run's",))
    if any(finding.severity == "error" for finding in result.findings):
        return Pending(reasons=("the wheels have not passed",))

    store = common.open_store()
    if store.find(result.report_key) is None or store.read(result.report_key) != _report_content(
        result.findings
    ):
        return Pending(reasons=("the wheels were not checked as they are now",))

    console.done(_summary(result))
    return UpToDate()


def _check_chosen_wheels(arguments: argparse.Namespace, common: Common) -> CheckResult:
    """Check the wheels that arguments name, else those of the run, and return the findings."""
    options = CheckOptions(
        build_paths=(str(common.root),),
        policy=load_policy(arguments.policy),
    )
    if arguments.paths:
        wheels: Sequence[Path] = find_wheels(arguments.paths)
        options = replace(options, loader_libraries=loader_libraries())
        session = "check_rocm" if arguments.rocm else "check_wheels"
        return CheckResult(
            session=session,
            wheels=wheels,
            findings=check_wheels(wheels, options=options),
        )

    context = find_context_of_wheels(common)
    if arguments.rocm:
        session = "check_rocm"
        report = "rocm-findings.json"
        wheels = fetch_built_rocm_wheels(context)
        # One version of all wheels: this one, else that of the first, which is the core package.
        names = [parse_wheel_name(path.name) for path in wheels]
        version = arguments.version or str(names[0].version)
        expected_wheels: Mapping[str, Expectation] = {
            name.distribution: Expectation(distribution=name.distribution, version=version) for name in names
        }
    else:
        session = "check_wheels"
        report = "findings.json"
        expected_wheels = expectations(context)
        wheels = fetch_wheels_of_run(context, expected_wheels)
        options = replace(options, loader_libraries=machine_libraries(context))

    reports_prefix = common.outputs.reports_prefix(context.artifact_group)
    return CheckResult(
        session=session,
        wheels=wheels,
        findings=check_wheels(wheels, expected_wheels, options),
        report_key=f"{reports_prefix}/{report}",
    )


def _summary(result: CheckResult) -> str:
    """Return the line that counts the wheels and their findings."""
    counts = Counter(finding.severity for finding in result.findings)
    counted = [console.counted(counts[severity], severity) for severity in ("error", "warning", "note")]
    line = f"{result.session}: {', '.join([console.counted(len(result.wheels), 'wheel'), *counted])}"
    if counts["note"] and not console.echoes():
        line += " (--verbose shows them)"
    return line


def _report_content(findings: Sequence[Finding]) -> bytes:
    """Return the content of the report's file."""
    return f"{_findings_as_json(findings)}\n".encode()


def _findings_as_json(findings: Sequence[Finding]) -> str:
    return json.dumps(findings_json(findings), indent=2)


def fetch_built_rocm_wheels(context: Context) -> Sequence[Path]:
    """Fetch the ROCm wheels that the run has built for the families, and return their paths."""
    common = context.common
    store = common.open_for_reading()
    # Families whose development trees contradict each other have groups of their own.
    groups_of_families = [
        group_name(family, common.build_variant) for family in context.gpu_family.split(";")
    ]
    for groups in ([context.artifact_group], groups_of_families):
        files: list[records.FileRecord] = []
        for group in groups:
            record = records.read(
                store,
                common.outputs,
                group,
                "build_rocm",
            )
            files += record.files if record else ()
        keys = [file.key for file in files if file.name.endswith(".whl")]
        if keys:
            return [store.fetch(key, common.cache / "fetched") for key in keys]
    raise MissingInputError(
        f"Run {common.outputs.run_id} has built no ROCm wheels for {context.gpu_family}.",
        hint=f"Build them: nox -s build_rocm -- {context.options_for_hints}. Or name a folder with wheels.",
    )


def fetch_wheels_of_run(context: Context, expected_wheels: Mapping[str, Expectation]) -> Sequence[Path]:
    """Fetch the run's wheels of PyTorch projects, device wheels included, and return their paths."""
    common = context.common
    store = common.open_for_reading()
    files: dict[str, records.FileRecord] = {}
    for record in context.records:
        if record.status == "ok":
            files.update({file.key: file for file in record.files})

    wheels: list[Path] = []
    for key, file in files.items():
        distribution = host_distribution(file.distribution) or file.distribution
        expectation = expected_wheels.get(distribution)
        if file.name.endswith(".whl") and expectation and expectation.version == file.version:
            wheels.append(store.fetch(key, common.cache / "fetched"))
    if not wheels:
        raise MissingInputError(
            f"Run {common.outputs.run_id} has no wheel of {context.ref.name} "
            f"for {context.gpu_family} to check.",
            hint=f"Build one: nox -s build_torch -- {context.options_for_hints}. "
            "Or name a folder with wheels.",
        )
    return wheels
