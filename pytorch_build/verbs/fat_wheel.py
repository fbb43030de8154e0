"""`fat-wheel`: a torch wheel and a ROCm -> a stand-alone wheel, which needs no ROCm packages."""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING

from core import console, distributions
from core.errors import MissingInputError, UsageError
from core.families import gpu_targets
from core.options import common_from, environment
from core.outputs import group_name
from pytorch_build.fat.making import Request, make

if TYPE_CHECKING:
    import argparse

    from core.options import Common
    from pytorch_build.fat.making import Result


def add_options(parser: argparse.ArgumentParser) -> None:
    """Declare the verb's own options."""
    parser.add_argument(
        "wheel", nargs="?", type=Path, metavar="WHEEL", help="the torch wheel (default: the run's)"
    )
    parser.add_argument(
        "--rocm",
        type=Path,
        metavar="PATH",
        help="a ROCm tree, or a folder of ROCm's wheels (default: the run's wheels)",
    )
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
        "--output-dir", type=Path, default=Path("dist"), metavar="DIR", help="where it goes (default: dist)"
    )


def run(arguments: argparse.Namespace) -> None:
    """Make the wheel and say what is in it."""
    common = common_from(arguments)
    started = time.monotonic()
    wheel = arguments.wheel or _run_wheel(common)
    rocm = arguments.rocm or _run_rocm(common)
    family = common.gpu_family
    targets = tuple(filter(None, arguments.gpu_targets.replace(";", ",").split(",")))
    chosen = targets or (gpu_targets(family) if family else ())
    for one in targets:
        gpu_targets(one)  # refuses names that are none
    said = environment().get("SOURCE_DATE_EPOCH", "")
    request = Request(
        wheel=wheel,
        rocm=rocm,
        output=arguments.output_dir,
        family=family,
        targets=chosen,
        system_libraries=tuple(arguments.system_library),
        epoch=int(said) if said.isdigit() else None,
    )
    if common.dry_run:
        console.say(f"would make a stand-alone wheel of {wheel.name} and {rocm} in {request.output}")
        return
    _show(make(request), time.monotonic() - started)


def _run_wheel(common: Common) -> Path:
    """Find the run's torch wheel of the family."""
    group = _group(common)
    store = common.open_for_reading()
    found = [
        one
        for one in distributions.in_run(store, common.outputs, group)
        if one.is_wheel and one.name == "torch"
    ]
    if not found:
        raise MissingInputError(
            f"Run {common.outputs.run_id} has no torch for {group}.",
            hint="Build it (nox -s build_torch), or name a wheel: nox -s fat_wheel -- WHEEL.",
        )
    return store.fetch(found[-1].key, common.cache / "fetched")


def _run_rocm(common: Common) -> Path:
    """Fetch the ROCm wheels of the run into one folder."""
    group = _group(common)
    store = common.open_for_reading()
    found = [
        one
        for one in distributions.in_run(store, common.outputs, group)
        if one.is_wheel and one.name.startswith(("rocm-sdk-core", "rocm-sdk-libraries", "rocm-sdk-device-"))
    ]
    if not found:
        raise MissingInputError(
            f"Run {common.outputs.run_id} has no ROCm wheels for {group}.",
            hint="Build them (nox -s build_rocm), or say where ROCm is: --rocm PATH.",
        )
    folder = common.cache / "fetched" / common.outputs.prefix / group
    return {store.fetch(one.key, folder).parent for one in found}.pop()


def _group(common: Common) -> str:
    if not common.gpu_family:
        raise UsageError(
            "Which GPU family's outputs of the run to take is not said.",
            hint="Give --gpu-family, or both the wheel and --rocm PATH.",
        )
    return group_name(common.gpu_family)


def _show(result: Result, seconds: float) -> None:
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
        console.warn(f"No wheel brings these, so the machine must have them: {listed}.")
    rows = [
        (result.file.path.name, console.size(result.file.size), f"{seconds:.1f}", result.file.sha256[:12])
    ]
    console.table(("file", "size", "seconds", "sha256"), rows)
    console.done(f"fat_wheel: {result.file.path}")
