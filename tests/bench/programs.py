"""Ours that has no front door of its own; each imports what it needs, as its start counts."""

import json
import sys
from pathlib import Path
from types import SimpleNamespace as Namespace


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
    from pytorch_build.split.parts import split

    split(wheel, folder)


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


def ids_of_tests() -> list[str]:
    """Name tests as upstream's generated ones are."""
    name = "test/test_{}.py::TestOps{}CUDA::test_op_{}_cuda_float32".format
    return [name(at // 400, at // 100, at) for at in range(200_000)]


def skip(plan: Path) -> None:
    from wheel_test_plugin import WheelTests  # type: ignore[import-not-found] # on the PYTHONPATH

    root, marked = Path("/"), lambda *_, **__: None
    config = Namespace(rootpath=root, invocation_params=Namespace(dir=root), args=[], hook=None)
    # what the plugin asks of a collected test
    items = [Namespace(nodeid=one, user_properties=[], add_marker=marked) for one in ids_of_tests()]
    WheelTests(config, json.loads(plan.read_text("utf-8"))).pytest_collection_modifyitems(config, items)


if __name__ == "__main__":
    globals()[sys.argv[1]](*map(Path, sys.argv[2:]))
