"""`build`: an artifact directory -> the ROCm packages, among the run's outputs."""

import argparse
from dataclasses import replace
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import get_args

from core import console
from core.cell import GroupCell
from core.cli.options import Common, common_from, environment, source_date_epoch
from core.errors import MissingInputError, UsageError
from core.families import CPU, default_family, detect, family
from core.run import group_name, records, stage
from core.status import Pending, Status, UpToDate
from core.wheel import CONTENTS, folder_sizes
from rocm_packaging.artifacts import build_info, families_of, scan
from rocm_packaging.packages import build, versions
from rocm_packaging.packages.layouts import Layout
from rocm_packaging.packages.plan import Plan, make_plan

SAMPLE = "sample"


def add_options(parser: argparse.ArgumentParser) -> None:
    """Declare the verb's own options."""
    add = parser.add_argument
    add("--artifact-dir", type=Path, metavar="DIR", help="the artifact directory")
    add("--version", default="", metavar="V", help="ROCm version (default: by the release type)")
    add("--rc", type=int, metavar="N", help="number of a prerelease, the N of 10.1.0rcN")
    add("--output-dir", type=Path, metavar="DIR", help="also put the packages there")
    what = "appended to the names of payload folders, not to the version"
    add("--version-suffix", default="", metavar="TEXT", help=what)
    what = "platform of the wheels (default: $ROCM_SDK_WHEEL_PLATFORM_TAG, else linux_x86_64 or win_amd64)"
    add("--wheel-platform-tag", default="", metavar="TAG", help=what)
    what = "what the artifacts lack on purpose: artifacts, libraries, LIBRARY-kernels; globs work"
    add("--without", default="", metavar="A,B", help=what)
    add("--compression-level", type=int, choices=range(13), metavar="0-12", help="0 stores (default: 5)")
    what = "layout of the packages: of the sample either (default: split), of artifacts the one they have"
    add("--rocm-layout", choices=get_args(Layout), help=what)
    for platform in ("linux", "windows"):
        what = f"what the distribution offers on {platform.capitalize()}, built here or elsewhere (a;b)"
        add(f"--{platform}-amdgpu-families", default="", metavar="FAMILIES", help=what)
    add("--json", action="store_true", help="with --dry-run: print the plan as JSON")
    parser.epilog = (
        "Without --artifact-dir: the artifacts that fetch_artifacts fetched for --run-id and --gpu-family; "
        "with --torch-ref sample, the embedded sample's."
    )


def run(arguments: argparse.Namespace) -> None:
    """Package the artifacts, unless nothing has changed."""
    common = common_from(arguments)
    for request in _requests(arguments, common):
        if common.dry_run:
            _print_plan(make_plan(request), json=arguments.json)
        stage.perform(
            _stage_of(request, common, arguments.output_dir),
            {"packaging": build.inputs_of(request)},
            partial(_made, request),
        )


def look(arguments: argparse.Namespace) -> Status:
    """Return whether packages have to be made. Nothing is changed."""
    common = replace(common_from(arguments), dry_run=True)
    for request in _requests(arguments, common):
        status = stage.look(
            _stage_of(request, common, arguments.output_dir), {"packaging": build.inputs_of(request)}
        )
        if isinstance(status, Pending):
            return status
    return UpToDate()


def _requests(arguments: argparse.Namespace, common: Common) -> tuple[build.BuildRequest, ...]:
    layout: Layout | None = arguments.rocm_layout
    artifacts, version, name = _artifacts(
        common, arguments.artifact_dir, arguments.version, layout or "split"
    )
    if layout and build_info(scan(artifacts)).split != (layout == "split"):
        raise UsageError(
            f"The artifacts in {artifacts} do not make {layout} packages.",
            hint="Leave --rocm-layout out: artifacts have the layout that ROCm was built in "
            "(KPACK_SPLIT_ARTIFACTS).",
        )
    chosen = family(name)
    if chosen.name == CPU:
        raise UsageError("Family cpu has no ROCm to package.", hint="Choose a GPU family with --gpu-family.")
    request = _request(arguments, common, artifacts, version, chosen.name)
    return _apart(request, common.build_variant)


def _stage_of(request: build.BuildRequest, common: Common, output_dir: Path | None) -> stage.Stage:
    families = ";".join(request.families)
    return stage.Stage(
        name="build_rocm",
        common=common,
        artifact_group=group_name(families, common.build_variant),
        cell=GroupCell(gpu_family=families),
        output_dir=output_dir,
    )


def _apart(request: build.BuildRequest, variant: str = "") -> tuple[build.BuildRequest, ...]:
    """Make one request a family where families' development trees contradict each other."""
    contradiction = make_plan(request).contradiction if len(request.families) > 1 else ""
    if not contradiction:
        return (request,)
    groups = {one: group_name(one, variant) for one in request.families}
    names = ", ".join(groups.values())
    console.warn(f"{contradiction} Each family gets packages of its own, in its own group: {names}.")
    return tuple(
        replace(request, families=(one,), output_dir=request.output_dir.with_name(group))
        for one, group in groups.items()
    )


def _request(
    arguments: argparse.Namespace, common: Common, artifacts: Path, version: str, families: str
) -> build.BuildRequest:
    variables = environment()
    if not version and arguments.rc is None:
        version = _version_so_far(common, group_name(families, common.build_variant))
    if not version:
        info = build_info(scan(artifacts))
        today = datetime.now(UTC).date()
        version = versions.of_artifacts(
            info.version, common.release_type, commit=info.commit, day=today, candidate=arguments.rc
        )
        console.say(f"Version: {version}")
    linux, windows = (
        tuple(family(names).name.split(";")) if names else ()
        for names in (arguments.linux_amdgpu_families, arguments.windows_amdgpu_families)
    )
    return build.BuildRequest(
        artifact_dir=artifacts,
        output_dir=common.cache / "rocm" / common.outputs.prefix / group_name(families, common.build_variant),
        version=version,
        families=tuple(families.split(";")),
        platform=common.outputs.platform,
        epoch=source_date_epoch(variables),
        level=arguments.compression_level,
        suffix=arguments.version_suffix,
        platform_tag=arguments.wheel_platform_tag or variables.get("ROCM_SDK_WHEEL_PLATFORM_TAG", ""),
        linux_families=linux,
        windows_families=windows,
        without=tuple(filter(None, arguments.without.split(","))),
    )


def _version_so_far(common: Common, artifact_group: str) -> str:
    """Return the version of the run's packages, "" where there are none yet: a run has one ROCm.

    The release type may put the day into it, and a job may run again on another one.
    """
    if not common.outputs.immutable:
        return ""
    before = records.read(common.open_for_reading(), common.outputs, artifact_group, "build_rocm")
    return str(before.details.get("version", "")) if before else ""


def _print_plan(plan: Plan, *, json: bool) -> None:
    files = build.planned_files(plan)
    if json:
        console.result(build.plan_json(plan, files))
        return
    console.table(build.COLUMNS, build.table_rows(files), title="Files, each of which --json tells of")
    for name in plan.unused:
        console.say(f"In no package: {name}")


def _made(request: build.BuildRequest) -> stage.StageResult:
    built = build.build(request)
    plan, made = built.plan, tuple(one.path for one in built.files)
    commit = build_info(scan(request.artifact_dir)).commit
    details = {
        "version": plan.distribution.version,
        "artifact_dir": str(request.artifact_dir),
        **({"commit": commit} if commit else {}),
        "families": list(plan.built),
        "unused": list(plan.unused),
        **({"lacking": list(plan.lacking)} if plan.lacking else {}),
        CONTENTS: {path.name: folder_sizes(path) for path in made if path.suffix == ".whl"},
    }
    return stage.StageResult(files=made, details=details, digests=built.digests)


def _fetched(common: Common) -> tuple[Path, str]:
    """Find what fetch_artifacts left for this run and family; return the family too."""
    name = family(common.gpu_family or default_family(detect())).name
    folder = common.outputs.artifacts_folder(common.cache, group_name(name, common.build_variant))
    if not folder.is_dir():
        raise MissingInputError(
            f"--artifact-dir is not set, and no artifacts were fetched into {folder}.",
            hint="Set --artifact-dir DIR, fetch a run's artifacts with nox -s fetch_artifacts (the same "
            "--run-id, --gpu-family, --build-variant), or package the embedded sample's: --torch-ref sample.",
        )
    return folder, name


def _artifacts(common: Common, given: Path | None, version: str, layout: Layout) -> tuple[Path, str, str]:
    """Choose the artifacts, their version and family; the sample has both layouts."""
    if given is not None:
        return given, version, common.gpu_family or _family_of(given)
    if common.torch_ref != SAMPLE:
        folder, name = _fetched(common)
        return folder, version, name
    from rocm_packaging.sample import FAMILIES, ROCM_VERSION, ensure_artifacts

    artifacts = ensure_artifacts(common.cache / "sample" / f"artifacts-{layout}", split=layout == "split")
    return artifacts, version or ROCM_VERSION, common.gpu_family or next(iter(FAMILIES))


def _family_of(artifacts: Path) -> str:
    """Choose the only family that the artifacts are for, else this machine's."""
    held = families_of(scan(artifacts))
    if len(held) == 1:
        console.say(f"GPU family: {held[0]} (the only one of {artifacts})")
        return held[0]
    try:
        return default_family(detect())
    except UsageError as problem:
        raise UsageError(
            problem.message,
            hint=f"The artifacts hold {', '.join(held) or 'no family'}: choose with --gpu-family.",
        ) from problem
