"""Ours that has no front door of its own; each imports what it needs, as its start counts."""

import sys
from pathlib import Path


def write_wheel(folder: Path, *payload: Path) -> None:
    from core.archive import Member
    from core.wheel import writer

    metadata = writer.metadata_text([("Name", "bench"), ("Version", "1.0")])
    spec = writer.WheelSpec(distribution="bench", version="1.0", tag="py3-none-any", metadata=metadata)
    writer.write_wheel(folder, spec, [Member(name=f"bench/{path.name}", source=path) for path in payload])


def verify(wheel: Path) -> None:
    from core.wheel.record import verify_record

    verify_record(wheel)


def rewrite(wheel: Path, folder: Path) -> None:
    from ci.promote.candidates import rewrite_set
    from ci.promote.version_change import final_of

    rewrite_set([wheel], folder, final_of(wheel.name.split("-")[1]))


def split(wheel: Path, folder: Path) -> None:
    from pytorch_build.split.split_wheel import split_wheel

    split_wheel(wheel, folder)


def standalone(wheel: Path, rocm: Path, output: Path) -> None:
    from pytorch_build.standalone.fat import Request, make

    make(Request(wheel=wheel, rocm=rocm, output=output, targets=("gfx942",)))


def fetch(store: Path, output: Path) -> None:
    from ci.plan import artifacts
    from core.cli.options import ROOT
    from core.families import family
    from core.stores.location import open_store

    opened, run, chosen = open_store(str(store), root=ROOT), next(store.iterdir()).name, family(output.name)
    listed = artifacts.choose_artifacts(artifacts.list_artifacts(opened, run), chosen, where=run)
    artifacts.fetch(opened, artifacts.plan_fetch(opened, listed, chosen), output)


if __name__ == "__main__":
    globals()[sys.argv[1]](*map(Path, sys.argv[2:]))
