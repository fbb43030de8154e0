"""`build`: an artifact directory -> the ROCm packages, among the run's outputs."""

import argparse
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import get_args

from core import console
from core.cell import GroupCell
from core.cli.options import (
    GROUP_OPTIONS,
    RUN_OPTIONS,
    Common,
    add_platform,
    common_from,
    environment,
    source_date_epoch,
)
from core.errors import MissingInputError, UsageError
from core.families import CPU, default_family, detect, family
from core.run import group_name, records, stage
from core.status import Pending, Status, UpToDate
from core.wheel import CONTENTS, folder_sizes
from rocm_packaging.artifacts import build_info, families_of, scan
from rocm_packaging.packages import listing, versions
from rocm_packaging.packages.build import BuildRequest, build
from rocm_packaging.packages.inputs import inputs_of
from rocm_packaging.packages.layouts import Layout
from rocm_packaging.packages.plan import PackagingPlan, make_plan
from rocm_packaging.sample_refs import brings_sample_rocm

COMMON_OPTIONS = ("torch-ref", *GROUP_OPTIONS, *RUN_OPTIONS, "force", "dry-run")


def add_options(parser: argparse.ArgumentParser) -> None:
    """Declare the verb's own options."""
    add = parser.add_argument
    add("--artifact-dir", type=Path, metavar="DIR", help="the artifact directory")
    add(
        "--version",
        default="",
        metavar="V",
        help="ROCm version (default: by the release type)",
    )
    add(
        "--rc",
        type=int,
        metavar="N",
        help="number of a prerelease, the N of 10.1.0rcN",
    )
    add(
        "--output-dir",
        type=Path,
        metavar="DIR",
        help="also put the packages there",
    )
    add(
        "--version-suffix",
        default="",
        metavar="TEXT",
        help="appended to the names of payload folders, not to the version",
    )
    add(
        "--wheel-platform-tag",
        default="",
        metavar="TAG",
        help="platform of the wheels (default: $ROCM_SDK_WHEEL_PLATFORM_TAG, else linux_x86_64 or win_amd64)",
    )
    add(
        "--without",
        default="",
        metavar="A,B",
        help="what the artifacts lack on purpose: artifacts, libraries, LIBRARY-kernels; globs work",
    )
    add(
        "--compression-level",
        type=int,
        choices=range(13),
        metavar="0-12",
        help="0 stores (default: 5)",
    )
    add(
        "--rocm-layout",
        choices=get_args(Layout),
        help="layout of the packages: of the sample either (default: split), of artifacts the one they have",
    )
    for platform in ("linux", "windows"):
        add(
            f"--{platform}-amdgpu-families",
            default="",
            metavar="FAMILIES",
            help=f"what the distribution offers on {platform.capitalize()}, built here or elsewhere (a;b)",
        )
    add(
        "--json",
        action="store_true",
        help="with --dry-run: print the plan as JSON",
    )
    add_platform(parser)
    parser.epilog = (
        "Without --artifact-dir: the artifacts that fetch_artifacts fetched for --run-id and --gpu-family; "
        "with --torch-ref sample, or a ref that extends it, the embedded sample's."
    )


def run(arguments: argparse.Namespace) -> None:
    """Package the artifacts, unless nothing has changed."""
    common = common_from(arguments)
    if arguments.json and not common.dry_run:
        raise UsageError("--json has no effect without --dry-run.", hint="Add --dry-run.")
    if arguments.version and arguments.rc is not None:
        raise UsageError("--rc has no effect with --version, which names the release.", hint="Leave it out.")
    for request in _requests(arguments, common):
        if common.dry_run:
            _print_plan(make_plan(request), json=arguments.json)
        stage.perform(
            _stage_of(request, common, arguments.output_dir),
            {"packaging": inputs_of(request)},
            partial(_build, request),
        )


def look(arguments: argparse.Namespace) -> Status:
    """Return whether packages have to be made. Nothing is changed."""
    common = replace(common_from(arguments), dry_run=True)
    for request in _requests(arguments, common):
        packaging_stage = _stage_of(request, common, arguments.output_dir)
        status = stage.look(packaging_stage, {"packaging": inputs_of(request)})
        if isinstance(status, Pending):
            return status
    return UpToDate()


@dataclass(frozen=True, kw_only=True)
class _ArtifactSource:
    """Where the artifacts are, and the version and the GPU family that follow from it; "" is for none."""

    directory: Path
    family: str
    version: str


def _requests(arguments: argparse.Namespace, common: Common) -> tuple[BuildRequest, ...]:
    layout: Layout | None = arguments.rocm_layout
    source = _find_artifacts(arguments, common, layout or "split")
    if layout is not None and build_info(scan(source.directory)).split != (layout == "split"):
        raise UsageError(
            f"The artifacts in {source.directory} do not make {layout} packages.",
            hint="Leave --rocm-layout out: artifacts have the layout that ROCm was built in "
            "(KPACK_SPLIT_ARTIFACTS).",
        )
    gpu_family = family(source.family)
    if gpu_family.name == CPU:
        raise UsageError(
            "Family cpu has no ROCm to package.",
            hint="Choose a GPU family with --gpu-family.",
        )
    request = _request(arguments, common, source, gpu_family.name)
    return _without_contradiction(request, common.build_variant)


def _stage_of(request: BuildRequest, common: Common, output_dir: Path | None) -> stage.Stage:
    families = ";".join(request.families)
    return stage.Stage(
        name="build_rocm",
        common=common,
        artifact_group=group_name(families, common.build_variant),
        cell=GroupCell(gpu_family=families),
        output_dir=output_dir,
    )


def _without_contradiction(request: BuildRequest, variant: str) -> tuple[BuildRequest, ...]:
    """Make one request a family where families' development trees contradict each other."""
    has_one_family = len(request.families) <= 1
    contradiction = "" if has_one_family else make_plan(request).contradiction
    if not contradiction:
        return (request,)

    groups = {name: group_name(name, variant) for name in request.families}
    listed_groups = ", ".join(groups.values())
    console.warn(f"{contradiction} Each family gets packages of its own, in its own group: {listed_groups}.")
    return tuple(
        replace(
            request,
            families=(name,),
            output_dir=request.output_dir.with_name(group),
        )
        for name, group in groups.items()
    )


def _request(
    arguments: argparse.Namespace,
    common: Common,
    source: _ArtifactSource,
    families: str,
) -> BuildRequest:
    variables = environment()
    artifact_group = group_name(families, common.build_variant)
    default_tag = variables.get("ROCM_SDK_WHEEL_PLATFORM_TAG", "")
    version = source.version or _choose_version(arguments, common, source.directory, artifact_group)
    _warn_of_another_release(version, source.directory)
    return BuildRequest(
        artifact_dir=source.directory,
        output_dir=common.cache / "rocm" / common.outputs.prefix / artifact_group,
        version=version,
        families=tuple(families.split(";")),
        platform=common.outputs.platform,
        epoch=source_date_epoch(variables),
        level=arguments.compression_level,
        suffix=arguments.version_suffix,
        platform_tag=arguments.wheel_platform_tag or default_tag,
        linux_families=_family_names(arguments.linux_amdgpu_families),
        windows_families=_family_names(arguments.windows_amdgpu_families),
        without=tuple(filter(None, arguments.without.split(","))),
    )


def _family_names(option: str) -> tuple[str, ...]:
    """Return the families that an option joins by ``;``, in their right spelling."""
    if not option:
        return ()
    return tuple(family(option).name.split(";"))


def _choose_version(
    arguments: argparse.Namespace,
    common: Common,
    artifact_dir: Path,
    artifact_group: str,
) -> str:
    """Return the version of packages where none is given: the run's own, or one by the release type."""
    if arguments.rc is None:
        run_version = _version_of_run(common, artifact_group)
        if run_version:
            return run_version

    info = build_info(scan(artifact_dir))
    today = datetime.now(UTC).date()
    version = versions.choose_version(
        info.version,
        common.release_type,
        commit=info.commit,
        day=today,
        candidate=arguments.rc,
    )
    console.say(f"Version: {version}")
    return version


def _warn_of_another_release(version: str, artifact_dir: Path) -> None:
    """Tell of packages that get the version of another release than that of their artifacts."""
    artifact_version = build_info(scan(artifact_dir)).version
    if versions.release_of(artifact_version) not in {None, versions.release_of(version)}:
        console.warn(
            f"The artifacts in {artifact_dir} are of ROCm {artifact_version}; "
            f"their packages get version {version}."
        )


def _version_of_run(common: Common, artifact_group: str) -> str:
    """Return the version of the run's packages, "" where there are none yet: a run has one ROCm.

    The release type may put the day into it, and a job may run again on another one.
    """
    if not common.outputs.immutable:
        return ""
    record = records.read(common.open_for_reading(), common.outputs, artifact_group, "build_rocm")
    if record is None:
        return ""
    return str(record.details.get("version", ""))


def _print_plan(plan: PackagingPlan, *, json: bool) -> None:
    files = listing.planned_files(plan)
    if json:
        console.result(listing.plan_json(plan, files))
        return
    rows = listing.table_rows(files)
    console.table(listing.COLUMNS, rows, title="Files (--json lists each)")
    for artifact_name in plan.unused_artifacts:
        console.say(f"In no package: {artifact_name}")


def _build(request: BuildRequest) -> stage.StageResult:
    """Write the packages; return them with what their record says."""
    packages = build(request)
    plan = packages.plan
    paths = tuple(file.path for file in packages.files)
    details: dict[str, object] = {
        "version": plan.dist_info.version,
        "artifact_dir": str(request.artifact_dir),
    }
    commit = build_info(scan(request.artifact_dir)).commit
    if commit:
        details["commit"] = commit
    details["families"] = list(plan.built_families)
    details["unused"] = list(plan.unused_artifacts)
    if plan.lacking:
        details["lacking"] = list(plan.lacking)
    details[CONTENTS] = {path.name: folder_sizes(path) for path in paths if path.suffix == ".whl"}
    return stage.StageResult(files=paths, details=details, digests=packages.digests)


# The artifacts


def _find_artifacts(arguments: argparse.Namespace, common: Common, layout: Layout) -> _ArtifactSource:
    """Choose the artifacts: those named, the sample's in a layout, or those that were fetched."""
    version: str = arguments.version
    directory: Path | None = arguments.artifact_dir
    if directory is not None:
        gpu_family = common.gpu_family or _choose_family(directory)
        return _ArtifactSource(directory=directory, family=gpu_family, version=version)
    if not brings_sample_rocm(common.torch_ref):
        return _find_fetched_artifacts(common, version)

    from rocm_packaging.sample import FAMILIES, ROCM_VERSION, ensure_artifacts

    platform = common.outputs.platform
    variant = layout if platform == "linux" else f"{platform}-{layout}"
    sample_folder = common.cache / "sample" / f"artifacts-{variant}"
    return _ArtifactSource(
        directory=ensure_artifacts(sample_folder, split=layout == "split", platform=platform),
        family=common.gpu_family or FAMILIES[0],
        version=version or ROCM_VERSION,
    )


def _find_fetched_artifacts(common: Common, version: str) -> _ArtifactSource:
    """Find what fetch_artifacts left for this run and family."""
    family_name = family(common.gpu_family or default_family(detect())).name
    folder = common.outputs.artifacts_folder(common.cache, group_name(family_name, common.build_variant))
    if not folder.is_dir():
        raise MissingInputError(
            f"--artifact-dir is not set, and no artifacts were fetched into {folder}.",
            hint="Set --artifact-dir DIR, fetch the artifacts of a run (nox -s fetch_artifacts -- "
            f"--run-id ID --gpu-family {family_name}), or package the embedded sample's: --torch-ref sample.",
        )
    return _ArtifactSource(directory=folder, family=family_name, version=version)


def _choose_family(artifact_dir: Path) -> str:
    """Choose the only family that the artifacts are for, else this machine's."""
    names = families_of(scan(artifact_dir))
    if len(names) == 1:
        console.say(f"GPU family: {names[0]} (the only one of {artifact_dir})")
        return names[0]
    try:
        return default_family(detect())
    except UsageError as problem:
        raise UsageError(
            problem.message,
            hint=f"The artifacts hold {', '.join(names) or 'no family'}: choose with --gpu-family.",
        ) from problem
