"""What the documentation promises of `invoke ci` with a changed tree."""

from pathlib import Path

from ci.jobs import ref_jobs
from core.cli.options import ROOT, Common
from pytorch_build.context import context


def test_a_changed_trees_wheel_is_built_put_on_the_index_page_and_tested() -> None:
    # a root without a configuration file of one's own
    sample = context(Common(torch_ref="sample", gpu_family="cpu", root=ROOT / "core"))

    build, _report = ref_jobs(sample, (), "", trees={"torch": Path("/tree")})

    sessions = [session for call in build.calls for session in call.sessions]
    # upload writes the pages, too
    assert [name for name in sessions if name in {"build_torch", "upload", "test_smoke"}] == [
        "build_torch",
        "upload",
        "test_smoke",
    ]
