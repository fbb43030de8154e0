"""`check-wheels`: wheels -> findings, a table of them, and a report among the run's outputs."""

import argparse
import json
import shlex
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import chain
from pathlib import Path

from core import console
from core.cli.options import common_from
from core.errors import MissingInputError
from core.modes import refuse_options
from core.run import group_name, records
from core.run.stage import Stage
from core.wheel import parse_wheel_name
from pytorch_build import check
from pytorch_build.build import refused
from pytorch_build.check import Expectation, Finding, findings_json, findings_table, require_no_errors
from pytorch_build.check.contents import expectations, machine_libraries
from pytorch_build.check.run import CheckOptions, check_wheels, find_wheels, loader_libraries
from pytorch_build.context import Context, context
from rocm_packaging.packages.layouts import device_host


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


def run(arguments: argparse.Namespace) -> None:
    """Check, print, and fail on any error finding."""
    if arguments.rocm:
        refuse_options(arguments, arguments.path_options, mode="with --rocm")
    else:
        refuse_options(arguments, arguments.rocm_options, mode="without --rocm")
    common = common_from(arguments)
    policy = check.own_policy(arguments.policy) if arguments.policy else check.load_policy()
    options = CheckOptions(build_paths=(str(common.root),), policy=policy)
    again: Mapping[str, Sequence[Finding]] = {}
    findings: Sequence[Finding]
    if arguments.paths:
        checked: Sequence[Path] = find_wheels(arguments.paths)
        findings = check_wheels(checked, options=replace(options, loader=loader_libraries()))
    else:
        chosen, name = context(common), "rocm-findings" if arguments.rocm else "findings"
        if arguments.rocm:
            checked = rocm_wheels(chosen)
            promised = _of_version(checked, arguments.version)
        else:
            promised, again = expectations(chosen), _refused(chosen, options)
            checked = run_wheels(chosen, promised) if promised or not again else ()
            options = replace(options, loader=machine_libraries(chosen))
        findings = check_wheels(checked, promised, options) if checked else [*chain(*again.values())]
        if checked:
            key = f"{common.outputs.reports_prefix(chosen.artifact_group)}/{name}.json"
            common.open_store().put_bytes(key, f"{_json(findings)}\n".encode())
    if arguments.json:
        console.result(_json(findings))
    console.table(*findings_table(findings))
    kinds = Counter(one.severity for one in findings)
    said = [console.counted(kinds[kind], kind) for kind in ("error", "warning", "note")]
    more = " (--verbose shows them)" if kinds["note"] and not console.echoes() else ""
    console.done(f"check_wheels: {console.counted(len(checked), 'wheel')}, {', '.join(said)}{more}")
    for command, found in again.items():
        wrong = next((f"not yet: {one.message}" for one in found if one.severity == "error"), "")
        words = shlex.join(["--policy", str(arguments.policy)]) if arguments.policy else ""
        console.say(f"refused by its build: {wrong or f'passes now, and into the run by: {command} {words}'}")
    require_no_errors(findings)


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
        and expected.get(device_host(one.distribution) or one.distribution) == one.version
    ]
    if not found:
        raise MissingInputError(
            f"Run {outputs.run_id} has no wheel of {chosen.ref.name} for {chosen.gpu_family} to check.",
            hint=f"Build one: nox -s build_torch -- {chosen.words}. Or name a folder with wheels.",
        )
    return found
