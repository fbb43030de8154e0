"""`check-wheels`: wheels -> findings, a table of them, and a report among the run's outputs."""

import argparse
import json
import shlex
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from pathlib import Path

from core import console
from core.cli.options import Common, common_from
from core.errors import MissingInputError
from core.modes import refuse_options
from core.run import group_name, records
from core.run.stage import Stage
from core.status import Pending, Status, UpToDate
from core.wheel import parse_wheel_name
from pytorch_build import check
from pytorch_build.build import refused
from pytorch_build.check import Expectation, Finding, findings_json, findings_table, require_no_errors
from pytorch_build.check.contents import expectations, machine_libraries
from pytorch_build.check.run import CheckOptions, check_wheels, find_wheels, loader_libraries
from pytorch_build.context import Context, context
from rocm_packaging.packages.layouts import host_distribution


def add_options(parser: argparse.ArgumentParser) -> None:
    """Declare the verb's own options."""
    what = "what to check (default: the run's PyTorch wheels)"
    paths = parser.add_argument("paths", nargs="*", type=Path, default=[], metavar="WHEEL|DIR", help=what)
    what = "your own limits, over those of the checks"
    parser.add_argument("--policy", type=Path, metavar="FILE", help=what)
    parser.add_argument("--json", action="store_true", help="print the findings as JSON")

    add = parser.add_argument_group("ROCm's wheels").add_argument
    what = "check the ROCm wheels that the run has built, as a set: each finds the libraries that it needs"
    add("--rocm", action="store_true", help=what)
    what = "the version that they must have (default: that of rocm-sdk-core)"
    version = add("--version", default="", metavar="V", help=what)

    parser.set_defaults(path_options=[paths], rocm_options=[version])


@dataclass(frozen=True, kw_only=True)
class Check:
    """What was checked, and what was found."""

    session: str
    wheels: Sequence[Path]
    findings: Sequence[Finding]
    refused: Mapping[str, Sequence[Finding]]  # of wheels that their builds refused, by the build's command
    report_key: str | None = None  # None where the wheels are not a run's


def run(arguments: argparse.Namespace) -> None:
    """Check, print, and fail on any error finding."""
    if arguments.rocm:
        refuse_options(arguments, arguments.path_options, mode="with --rocm")
    else:
        refuse_options(arguments, arguments.rocm_options, mode="without --rocm")
    common = common_from(arguments)
    result = _check(arguments, common)
    if result.report_key is not None:
        common.open_store().put_bytes(result.report_key, _report(result.findings))

    if arguments.json:
        console.result(_json(result.findings))
    console.table(*findings_table(result.findings))
    console.done(_summary(result))

    for command, findings in result.refused.items():
        error = next((finding.message for finding in findings if finding.severity == "error"), None)
        if error is None:
            policy = shlex.join(["--policy", str(arguments.policy)]) if arguments.policy else ""
            console.say(f"refused by its build: passes now, and into the run by: {command} {policy}")
        else:
            console.say(f"refused by its build: not yet: {error}")
    require_no_errors(result.findings)


def look(arguments: argparse.Namespace) -> Status:
    """Return whether the report on the run's wheels would say anything else. Nothing is changed."""
    common = replace(common_from(arguments), dry_run=True)
    result = _check(arguments, common)
    if result.report_key is None or result.refused:
        return Pending(reasons=("there are wheels that are not in the run",))
    if any(finding.severity == "error" for finding in result.findings):
        return Pending(reasons=("the wheels have not passed",))

    store = common.open_store()
    if store.find(result.report_key) is None or store.read(result.report_key) != _report(result.findings):
        return Pending(reasons=("the wheels were not checked as they are now",))

    console.done(_summary(result))
    return UpToDate()


def _check(arguments: argparse.Namespace, common: Common) -> Check:
    policy = check.own_policy(arguments.policy) if arguments.policy else check.load_policy()
    options = CheckOptions(build_paths=(str(common.root),), policy=policy)
    session = "check_rocm" if arguments.rocm else "check_wheels"
    wheels: Sequence[Path]
    findings: Sequence[Finding]
    if arguments.paths:
        wheels = find_wheels(arguments.paths)
        findings = check_wheels(wheels, options=replace(options, loader=loader_libraries()))
        return Check(session=session, wheels=wheels, findings=findings, refused={})

    chosen = context(common)
    reports = common.outputs.reports_prefix(chosen.artifact_group)
    if arguments.rocm:
        wheels = rocm_wheels(chosen)
        findings = check_wheels(wheels, _of_version(wheels, arguments.version), options)
        return Check(
            session=session,
            wheels=wheels,
            findings=findings,
            refused={},
            report_key=f"{reports}/rocm-findings.json",
        )

    promised = expectations(chosen)
    refused_wheels = _refused(chosen, options)
    if not promised and refused_wheels:
        # All that the run has built was refused, so there is nothing of it to report on.
        findings = [*chain(*refused_wheels.values())]
        return Check(session=session, wheels=(), findings=findings, refused=refused_wheels)

    wheels = run_wheels(chosen, promised)
    findings = check_wheels(wheels, promised, replace(options, loader=machine_libraries(chosen)))
    return Check(
        session=session,
        wheels=wheels,
        findings=findings,
        refused=refused_wheels,
        report_key=f"{reports}/findings.json",
    )


def _summary(result: Check) -> str:
    """Return the line that counts the wheels and their findings."""
    counts = Counter(finding.severity for finding in result.findings)
    words = [console.counted(counts[severity], severity) for severity in ("error", "warning", "note")]
    hint = " (--verbose shows them)" if counts["note"] and not console.echoes() else ""
    return f"{result.session}: {console.counted(len(result.wheels), 'wheel')}, {', '.join(words)}{hint}"


def _report(findings: Sequence[Finding]) -> bytes:
    return f"{_json(findings)}\n".encode()


def _refused(chosen: Context, options: CheckOptions) -> Mapping[str, Sequence[Finding]]:
    """Check what builds of the run made here and refused; return what was found by the build's command."""
    common, group = chosen.common, chosen.artifact_group
    found: dict[str, Sequence[Finding]] = {}
    for one in chosen.records:
        run = Stage(name=one.stage, common=common, artifact_group=group, cell=one.cell)
        if one.cell.torch_ref == chosen.ref.name and one.status == "failed" and refused.kept(run):
            wheels, here = [refused.folder(run)], replace(options, loader=loader_libraries())
            again = one.again.replace(" --force", "")
            again += "" if " -- " in again else " --"
            found[again] = check_wheels(wheels, expectations(chosen, one), here)
    return found


def _json(findings: Sequence[Finding]) -> str:
    return json.dumps(findings_json(findings), indent=2)


def rocm_wheels(chosen: Context) -> Sequence[Path]:
    """Find the ROCm wheels that the run has built for the families."""
    common = chosen.common
    store, outputs = common.open_for_reading(), common.outputs
    # families whose development trees contradict each other have groups of their own
    apart = [group_name(one, common.build_variant) for one in chosen.gpu_family.split(";")]
    for groups in ([chosen.artifact_group], apart):
        made = [records.read(store, outputs, group, "build_rocm") for group in groups]
        files = [one for record in made if record for one in record.files if one.name.endswith(".whl")]
        if files:
            return [store.fetch(one.key, common.cache / "fetched") for one in files]
    raise MissingInputError(
        f"Run {outputs.run_id} has built no ROCm wheels for {chosen.gpu_family}.",
        hint=f"Build them: nox -s build_rocm -- {chosen.words}. Or name a folder with wheels.",
    )


def _of_version(wheels: Sequence[Path], version: str) -> Mapping[str, Expectation]:
    """Expect one version of all wheels: this one, else that of the first, which is the core package."""
    names = [parse_wheel_name(path.name) for path in wheels]
    wanted = version or str(names[0].version)
    return {one.distribution: Expectation(distribution=one.distribution, version=wanted) for one in names}


def run_wheels(chosen: Context, promised: Mapping[str, Expectation]) -> Sequence[Path]:
    """Find the run's wheels of PyTorch projects, those of device code among them."""
    store, outputs = chosen.common.open_for_reading(), chosen.common.outputs
    expected = {name: one.version for name, one in promised.items()}
    made = {one.key: one for record in chosen.records if record.status == "ok" for one in record.files}
    found = [
        store.fetch(key, chosen.common.cache / "fetched")
        for key, one in made.items()
        if one.name.endswith(".whl")
        and expected.get(host_distribution(one.distribution) or one.distribution) == one.version
    ]
    if not found:
        raise MissingInputError(
            f"Run {outputs.run_id} has no wheel of {chosen.ref.name} for {chosen.gpu_family} to check.",
            hint=f"Build one: nox -s build_torch -- {chosen.words}. Or name a folder with wheels.",
        )
    return found
