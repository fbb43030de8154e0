"""What of ours has no front door of its own; each imports what it needs, as its start counts."""

import sys
from collections.abc import Callable
from pathlib import Path


def write_wheel(folder: Path, *payload: Path) -> None:
    """Write a wheel of files."""
    from core.archive import Member
    from core.wheel import writer

    metadata = writer.metadata_text([("Name", "bench"), ("Version", "1.0")])
    spec = writer.WheelSpec(distribution="bench", version="1.0", tag="py3-none-any", metadata=metadata)
    members = [Member(name=f"bench/{path.name}", source=path) for path in payload]
    writer.write_wheel(folder, spec, members)


def verify_wheel(wheel: Path) -> None:
    """Compare a wheel with its RECORD."""
    from core.wheel.record import verify_record

    verify_record(wheel)


def rewrite_wheel(wheel: Path, folder: Path) -> None:
    """Write a wheel with the final version of its release candidate."""
    from ci.promote.candidates import rewrite_set
    from ci.promote.version_change import final_of

    _, version, *_ = wheel.name.split("-")
    rewrite_set([wheel], folder, final_of(version))


def split_fat_wheel(wheel: Path, folder: Path) -> None:
    """Split a wheel into a host wheel and device wheels."""
    from pytorch_build.split.split_wheel import split_wheel

    split_wheel(wheel, folder)


def make_standalone_wheel(wheel: Path, rocm: Path, output: Path) -> None:
    """Put a folder's ROCm into a wheel."""
    from pytorch_build.standalone.fat import FatWheelRequest, make_fat_wheel

    make_fat_wheel(FatWheelRequest(wheel=wheel, rocm=rocm, output=output, targets=("gfx942",)))


def fetch_artifacts(store_folder: Path, output: Path) -> None:
    """Fetch the artifacts of a store's run for the family that the output folder is named after."""
    from ci.plan import artifacts
    from core.cli.options import ROOT
    from core.families import family
    from core.stores.location import open_store

    store = open_store(str(store_folder), root=ROOT)
    run = next(store_folder.iterdir()).name
    gpu_family = family(output.name)

    listed_artifacts = artifacts.list_artifacts(store, run)
    artifacts_of_family = artifacts.choose_artifacts(listed_artifacts, gpu_family, where=run)
    plan = artifacts.plan_fetch(store, artifacts_of_family, gpu_family)
    artifacts.fetch(store, plan, output)


PROGRAMS: dict[str, Callable[..., None]] = {
    "write_wheel": write_wheel,
    "verify_wheel": verify_wheel,
    "rewrite_wheel": rewrite_wheel,
    "split_fat_wheel": split_fat_wheel,
    "make_standalone_wheel": make_standalone_wheel,
    "fetch_artifacts": fetch_artifacts,
}

if __name__ == "__main__":
    program, *paths = sys.argv[1:]
    PROGRAMS[program](*map(Path, paths))
