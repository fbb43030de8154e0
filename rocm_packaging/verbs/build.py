"""`build`: an artifact directory -> the ROCm packages, among the run's outputs."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from core import stage
from core.errors import MissingInputError, UsageError
from core.families import CPU, default_family, detect, family
from core.options import common_from, environment
from core.records import Cell
from core.stage import Made, Stage
from rocm_packaging.build import BuildRequest, build, inputs_digest

if TYPE_CHECKING:
    import argparse

    from core.options import Common

SAMPLE = "sample"


def add_options(parser: argparse.ArgumentParser) -> None:
    """Declare the verb's own options."""
    parser.add_argument("--artifact-dir", type=Path, metavar="DIR", help="the artifact directory")
    parser.add_argument(
        "--version", default="", metavar="V", help="ROCm version (default: the artifacts' own)"
    )
    parser.add_argument("--output-dir", type=Path, metavar="DIR", help="also put the packages there")
    parser.epilog = (
        "Without --artifact-dir: the artifacts that fetch_artifacts fetched for --run-id and --gpu-family; "
        "with --torch-ref sample, the embedded sample's."
    )


def run(arguments: argparse.Namespace) -> None:
    """Package the artifacts, unless nothing has changed."""
    common = common_from(arguments)
    artifacts, version, name = _what(common, arguments.artifact_dir, arguments.version)
    chosen = family(name)
    if chosen.name == CPU:
        raise UsageError("Family cpu has no ROCm to package.", hint="Give a GPU family with --gpu-family.")
    group = chosen.name.replace(";", "-")
    epoch = environment().get("SOURCE_DATE_EPOCH", "")
    work_dir = common.cache / "rocm" / common.outputs.prefix / group
    request = BuildRequest(
        artifact_dir=artifacts,
        output_dir=work_dir,
        version=version,
        families=tuple(chosen.name.split(";")),
        platform=common.outputs.platform,
        epoch=int(epoch) if epoch else None,
    )
    stage.perform(
        Stage(
            name="build_rocm",
            common=common,
            artifact_group=group,
            cell=Cell(gpu_family=chosen.name),
            output_dir=arguments.output_dir,
        ),
        {"packaging": inputs_digest(request)},
        lambda: _made(request),
    )


def _made(request: BuildRequest) -> Made:
    built = build(request)
    return Made(
        files=tuple(request.output_dir / one.path.name for one in built.files),
        details={"version": built.version, "families": list(built.families), "unused": list(built.unused)},
    )


def _fetched(common: Common) -> tuple[Path, str]:
    """Find what fetch_artifacts left for this run and family; name the family too."""
    name = family(common.gpu_family or default_family(detect())).name
    folder = common.outputs.artifacts_folder(common.cache, name.replace(";", "-"))
    if not folder.is_dir():
        raise MissingInputError(
            f"No artifact directory was given, and none was fetched into {folder}.",
            hint="Give one with --artifact-dir DIR, fetch a run's with nox -s fetch_artifacts (the same "
            "--run-id and --gpu-family), or package the embedded sample's with --torch-ref sample.",
        )
    return folder, name


def _what(common: Common, given: Path | None, version: str) -> tuple[Path, str, str]:
    """Say which artifacts, which version and which family.

    Raises:
        MissingInputError: No artifact directory was given, none was fetched, and the ref is not the sample.
        UsageError: No family was given on a machine without a GPU.
    """
    if given is not None:
        return given, version, common.gpu_family or default_family(detect())
    if common.torch_ref != SAMPLE:
        folder, name = _fetched(common)
        return folder, version, name
    from rocm_packaging.sample import FAMILIES, ROCM_VERSION, ensure_artifacts

    artifacts = ensure_artifacts(common.cache / "sample" / "artifacts")
    return artifacts, version or ROCM_VERSION, common.gpu_family or next(iter(FAMILIES))
