"""Two torch refs in one run, built and resolved by real sessions of nox in a clone of this checkout."""

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor

import pytest

from core.errors import SourceError
from core.run.records import Record
from tests.kit.clones import TAG, Clone, printed_by

GROUP = "cpu"
RUN = "17"
# `second` is the same commits; torch of `nightly` is another commit of the same version.
REFS = """\
[refs.second]
extends = "sample"

[refs.other]
extends = "sample"
torch = { ref = "nightly" }
"""


@pytest.fixture(scope="module")
def clone(tmp_path_factory: pytest.TempPathFactory) -> Clone:
    """Return a clone that knows two more torch refs, in which nothing was built."""
    clone = Clone.create(tmp_path_factory.mktemp("clone") / "checkout")
    (clone.path / "pytorch-build.toml").write_text(REFS)
    return clone


def options(torch_ref: str) -> Sequence[str]:
    return ("--torch-ref", torch_ref, "--gpu-family", GROUP, "--run-id", RUN)


def files_of(clone: Clone, torch_ref: str) -> dict[str, str]:
    """Return the digests of the files that a ref's build has recorded, by name."""
    path = clone.manifest(f"build_torch-{torch_ref}-{TAG}", GROUP, RUN)
    record = Record.model_validate_json(path.read_bytes())
    return {file.name: file.sha256 for file in record.files}


def test_refs_of_one_commit_are_built_once_side_by_side(clone: Clone) -> None:
    # The environment is made by the first session, and nox does not expect to be started twice meanwhile.
    clone.run_checked("nox", "-s", "build_torch", "--install-only")

    def build(torch_ref: str) -> str:
        return clone.run_checked("nox", "-R", "-s", "build_torch", "--", *options(torch_ref))

    with ThreadPoolExecutor(max_workers=2) as pool:
        printed_texts = list(pool.map(build, ("sample", "second")))

    taking_texts = [text for text in printed_texts if "was made from the same inputs" in text]
    assert len(taking_texts) == 1
    assert files_of(clone, "sample") == files_of(clone, "second")


def test_a_ref_with_other_wheels_of_the_same_names_is_refused(clone: Clone) -> None:
    clone.run_checked("pytorch_build", "resolve", *options("sample"))

    refused = clone.run("pytorch_build", "resolve", *options("other"))

    assert refused.returncode == SourceError.exit_code
    names = ("sample and other", "torch 2.10.0a0+cpu.sample", "--run-id")
    assert [name for name in names if name not in printed_by(refused)] == []
    clone.run_checked("pytorch_build", "resolve", *options("other")[:-1], "18")
