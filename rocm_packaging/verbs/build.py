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
        "With --torch-ref sample and no --artifact-dir, the embedded sample's artifacts are packaged."
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


def _what(common: Common, given: Path | None, version: str) -> tuple[Path, str, str]:
    """Say which artifacts, which version and which family.

    Raises:
        MissingInputError: No artifact directory was given, and the ref is not the sample.
        UsageError: No family was given on a machine without a GPU.
    """
    if given is not None:
        return given, version, common.gpu_family or default_family(detect())
    if common.torch_ref != SAMPLE:
        raise MissingInputError(
            "No artifact directory was given.",
            hint="Give one with --artifact-dir DIR, or --torch-ref sample for the embedded sample's.",
        )
    from rocm_packaging.sample import FAMILIES, ROCM_VERSION, ensure_artifacts

    artifacts = ensure_artifacts(common.cache / "sample" / "artifacts")
    return artifacts, version or ROCM_VERSION, common.gpu_family or next(iter(FAMILIES))
