"""`fat-wheel`: a torch wheel and a ROCm -> a stand-alone wheel, which needs no ROCm packages."""

import argparse
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from core import console, files
from core.cli.options import (
    GROUP_OPTIONS,
    RUN_OPTIONS,
    Common,
    common_from,
    environment,
    source_date_epoch,
    split_list,
)
from core.errors import MissingInputError, UsageError
from core.families import gpu_targets
from core.packages.candidates import with_digest
from core.packages.options import SourceOptions, add_package_source, source_options
from core.run import records
from core.wheel import parse_wheel_name
from pytorch_build.context import Context, find_context, find_family, find_ref
from pytorch_build.sdk import RocmOptions, find_rocm_packages, find_rocm_version
from pytorch_build.standalone.fat import FatWheel, FatWheelRequest, make_fat_wheel
from rocm_packaging.origin import choose_for_bundles
from rocm_packaging.packages.layouts import device_target, serves

_SHOWN_USERS = 3

COMMON_OPTIONS = ("torch-ref", *GROUP_OPTIONS, *RUN_OPTIONS, "dry-run")


def add_options(parser: argparse.ArgumentParser) -> None:
    """Declare the verb's own options."""
    parser.add_argument(
        "wheels",
        nargs="*",
        type=Path,
        metavar="WHEEL",
        help="a torch wheel, and of a host wheel its device wheels (default: each of the run's)",
    )
    parser.add_argument(
        "--rocm",
        type=Path,
        metavar="PATH",
        help="a ROCm tree, or a folder of ROCm's wheels (default: those of the source below)",
    )
    add_package_source(parser, "where ROCm's wheels come from (default: the run)", "rocm-")
    parser.add_argument(
        "--gpu-targets",
        default="",
        metavar="A,B",
        help="gfx targets whose data goes in (default: those of the family)",
    )
    parser.add_argument(
        "--system-library",
        action="append",
        default=[],
        metavar="NAME",
        help="a library (shell pattern) that every machine will have; repeatable",
    )
    parser.add_argument(
        "--output-dir",
        type=Path,
        default=Path("dist"),
        metavar="DIR",
        help="where it goes (default: dist)",
    )


def run(arguments: argparse.Namespace) -> None:
    """Make stand-alone wheels of named torch wheels or the run's, and print what is in them."""
    common = common_from(arguments)
    if not common.gpu_family and not (arguments.wheels and arguments.rocm):
        # a run's wheels are those of a family
        common = replace(common, gpu_family=find_family(common, find_ref(common)))
    targets = _gpu_targets(arguments.gpu_targets, common.gpu_family)

    torch_builds: Sequence[Sequence[Path]]
    if arguments.wheels:
        torch_builds = [_torch_before_device_wheels(arguments.wheels)]
    else:
        torch_builds = _torch_builds_of_run(common, targets)
    rocm = arguments.rocm
    if rocm is None:
        source = source_options(arguments, "rocm-", environment())
        rocm = _fetch_rocm_wheels(find_context(common), source, targets)

    rows: list[tuple[str, str, str]] = []
    for torch_wheel, *device_wheels in torch_builds:
        if common.dry_run:
            console.say(
                f"would make a stand-alone wheel of {torch_wheel.name} and {rocm} in {arguments.output_dir}"
            )
            continue
        result = make_fat_wheel(
            FatWheelRequest(
                wheel=torch_wheel,
                rocm=rocm,
                output=arguments.output_dir,
                family=common.gpu_family,
                targets=targets,
                device_wheels=tuple(device_wheels),
                system_libraries=tuple(arguments.system_library),
                epoch=source_date_epoch(environment()),
            )
        )
        _print_contents(result)
        file = result.file
        rows.append((file.path.name, console.size(file.size), file.sha256[:12]))
    if rows:
        console.table(("file", "size", "sha256"), rows)
        console.done(f"fat_wheel: {len(rows)} in {arguments.output_dir}")


def _gpu_targets(names: str, family: str) -> tuple[str, ...]:
    """Return the GPU targets in a list of names, else those of the family; () stands for all."""
    targets = split_list(names)
    for target in targets:
        gpu_targets(target)  # refuses unknown ones
    if not targets and family:
        return gpu_targets(family)
    return targets


def _torch_before_device_wheels(paths: Sequence[Path]) -> Sequence[Path]:
    """Return paths of wheels with the one torch wheel first; none or several are an error."""
    torch_wheels = [path for path in paths if not device_target(parse_wheel_name(path.name).distribution)]
    if len(torch_wheels) != 1:
        raise UsageError(
            f"One torch wheel becomes stand-alone at a time, and {len(torch_wheels)} are named.",
            hint="Name one, and of a host wheel its device wheels, too: nox -s fat_wheel -- WHEEL …",
        )
    return [*torch_wheels, *(path for path in paths if path not in torch_wheels)]


def _torch_builds_of_run(common: Common, targets: Sequence[str]) -> Sequence[Sequence[Path]]:
    """Fetch the run's torch wheels; return for each build its host, then its device wheels."""
    store = common.open_for_reading()
    torch_builds: list[list[Path]] = []
    for record in records.read_all(store, common.outputs, common.artifact_group):
        is_wanted_ref = common.torch_ref in {"", record.cell.torch_ref}
        if record.stage != "build_torch" or record.status != "ok" or not is_wanted_ref:
            continue
        files_for_targets = [file for file in record.files if serves(file.distribution, (), targets)]
        torch_builds.append([store.fetch(file.key, common.cache / "fetched") for file in files_for_targets])

    if not torch_builds:
        of_ref = f" of {common.torch_ref}" if common.torch_ref else ""
        raise MissingInputError(
            f"Run {common.outputs.run_id} has no torch{of_ref} for {common.artifact_group}.",
            hint="Build it (nox -s build_torch), or name a wheel: nox -s fat_wheel -- WHEEL.",
        )
    return torch_builds


def _fetch_rocm_wheels(
    context: Context,
    source: SourceOptions,
    targets: Sequence[str],
) -> Path:
    """Fetch the wheels of ROCm that stand-alone wheels take files from; return their folder."""
    common = context.common
    family = context.gpu_family
    options = RocmOptions(source=source)
    packages = find_rocm_packages(context, options)
    version = find_rocm_version(context, options)
    resolution = choose_for_bundles(packages, version, family, targets, common.outputs.platform)

    digest = files.digest_of([packages.description, version, family, *targets])
    folder = files.ensure_folder(common.cache / "fetched" / f"rocm-{digest[:16]}")
    if common.dry_run:
        return folder
    for candidate in resolution.files:
        path = packages.fetch(with_digest(candidate), folder)
        if path.parent != folder:
            files.link_or_copy(path, folder / candidate.name)
    return folder


def _print_contents(result: FatWheel) -> None:
    """Print which files of ROCm a stand-alone wheel has; warn of libraries that machines must have."""
    bundle = result.bundle
    size = sum(file.size for file in bundle.files.values())
    console.say(
        f"{result.rocm}: {len(bundle.libraries)} libraries and {len(bundle.data)} other files, "
        f"{console.size(size)}; {len(bundle.search_paths)} of them with another search path"
    )
    for path in bundle.libraries:
        console.detail(f"  {path}")
    if bundle.machine_libraries:
        descriptions: list[str] = []
        for name, users in bundle.machine_libraries.items():
            shown_users = ", ".join(users[:_SHOWN_USERS])
            descriptions.append(f"{name} ({shown_users})")
        libraries = "; ".join(descriptions)
        console.warn(f"No wheel provides these, so the machine must have them: {libraries}.")
