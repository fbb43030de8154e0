"""`fat-wheel`: a torch wheel and a ROCm -> a stand-alone wheel, which needs no ROCm packages."""

import argparse
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from core import console, files
from core.cli.options import Common, common_from, environment, source_date_epoch
from core.errors import MissingInputError, UsageError
from core.families import gpu_targets
from core.packages.candidates import with_digest
from core.packages.options import SourceOptions, add_package_source, source_options
from core.run import records
from core.wheel import parse_wheel_name
from pytorch_build.context import Context, chosen_family, chosen_ref, context
from pytorch_build.sdk import RocmOptions, find_version, packages_of
from pytorch_build.standalone.fat import Request, Result, make
from rocm_packaging.origin import choose_for_bundles
from rocm_packaging.packages.layouts import device_target, serves


def add_options(parser: argparse.ArgumentParser) -> None:
    """Declare the verb's own options."""
    what = "a torch wheel, and of a host wheel its device wheels (default: each of the run's)"
    parser.add_argument("wheels", nargs="*", type=Path, metavar="WHEEL", help=what)
    what = "a ROCm tree, or a folder of ROCm's wheels (default: those of the source below)"
    parser.add_argument("--rocm", type=Path, metavar="PATH", help=what)
    add_package_source(parser, "where ROCm's wheels come from (default: the run)", "rocm-")
    what = "gfx targets whose data goes in (default: those of the family)"
    parser.add_argument("--gpu-targets", default="", metavar="A,B", help=what)
    what = "a library (shell pattern) that every machine will have; repeatable"
    parser.add_argument("--system-library", action="append", default=[], metavar="NAME", help=what)
    what = "where it goes (default: dist)"
    parser.add_argument("--output-dir", type=Path, default=Path("dist"), metavar="DIR", help=what)


def run(arguments: argparse.Namespace) -> None:
    """Make the wheels and print what is in them."""
    common = common_from(arguments)
    if not common.gpu_family and not (arguments.wheels and arguments.rocm):
        # a run's wheels are those of a family
        common = replace(common, gpu_family=chosen_family(common, chosen_ref(common)))
    family = common.gpu_family
    targets = tuple(filter(None, arguments.gpu_targets.replace(";", ",").split(",")))
    chosen = targets or (gpu_targets(family) if family else ())
    for one in targets:
        gpu_targets(one)  # refuses unknown ones
    wheels = [_given(arguments.wheels)] if arguments.wheels else _run_wheels(common, chosen)
    rocm = arguments.rocm or _rocm_wheels(
        context(common), source_options(arguments, "rocm-", environment()), chosen
    )
    rows = []
    for wheel, *devices in wheels:
        if common.dry_run:
            console.say(
                f"would make a stand-alone wheel of {wheel.name} and {rocm} in {arguments.output_dir}"
            )
            continue
        result = make(
            Request(
                wheel=wheel,
                rocm=rocm,
                output=arguments.output_dir,
                family=family,
                targets=chosen,
                devices=tuple(devices),
                system_libraries=tuple(arguments.system_library),
                epoch=source_date_epoch(environment()),
            )
        )
        _report(result)
        rows.append((result.file.path.name, console.size(result.file.size), result.file.sha256[:12]))
    if rows:
        console.table(("file", "size", "sha256"), rows)
        console.done(f"fat_wheel: {len(rows)} in {arguments.output_dir}")


def _given(paths: Sequence[Path]) -> Sequence[Path]:
    """Put the torch wheel before its device wheels."""
    hosts = [path for path in paths if not device_target(parse_wheel_name(path.name).distribution)]
    if len(hosts) != 1:
        raise UsageError(
            f"One torch wheel becomes stand-alone at a time, and {len(hosts)} are named.",
            hint="Name one, and of a host wheel its device wheels, too: nox -s fat_wheel -- WHEEL …",
        )
    return [*hosts, *(path for path in paths if path not in hosts)]


def _run_wheels(common: Common, targets: Sequence[str]) -> Sequence[Sequence[Path]]:
    """Fetch the run's torch wheels of the family: of every Python, and of every ref or the one chosen."""
    group, store = common.artifact_group, common.open_for_reading()
    found = [
        [one for one in record.files if serves(one.distribution, (), targets)]
        for record in records.read_all(store, common.outputs, group)
        if record.stage == "build_torch" and common.torch_ref in {"", record.cell.torch_ref}
        if record.status == "ok"
    ]
    if not found:
        of_ref = f" of {common.torch_ref}" if common.torch_ref else ""
        raise MissingInputError(
            f"Run {common.outputs.run_id} has no torch{of_ref} for {group}.",
            hint="Build it (nox -s build_torch), or name a wheel: nox -s fat_wheel -- WHEEL.",
        )
    return [[store.fetch(one.key, common.cache / "fetched") for one in made] for made in found]


def _rocm_wheels(context: Context, source: SourceOptions, targets: Sequence[str]) -> Path:
    """Bring ROCm's wheels into one folder: from the source that is named, else from the run."""
    common, family, options = context.common, context.gpu_family, RocmOptions(source=source)
    packages, version = packages_of(context, options), find_version(context, options)
    found = choose_for_bundles(packages, version, family, targets, common.outputs.platform)
    digest = files.digest_of([packages.description, version, family, *targets])
    folder = files.made(common.cache / "fetched" / f"rocm-{digest[:16]}")
    for one in () if common.dry_run else found.files:
        path = packages.fetch(with_digest(one), folder)
        if path.parent != folder:
            files.link_or_copy(path, folder / one.name)
    return folder


def _report(result: Result) -> None:
    bundle = result.bundle
    size = sum(one.size for one in (*bundle.libraries.values(), *bundle.data.values()))
    console.say(
        f"{result.rocm}: {len(bundle.libraries)} libraries and {len(bundle.data)} other files, "
        f"{console.size(size)}; {len(bundle.search)} of them with another search path"
    )
    for path in bundle.libraries:
        console.detail(f"  {path}")
    if bundle.machine:
        listed = "; ".join(f"{name} ({', '.join(by[:3])})" for name, by in bundle.machine.items())
        console.warn(f"No wheel provides these, so the machine must have them: {listed}.")
