"""What the documentation promises of the sources that a statement names."""

from collections.abc import Sequence
from dataclasses import replace

from ci.provenance import facts
from tests.kit import provenance


def torch_materials(*, locked_commit: str) -> Sequence[facts.Material]:
    """Return what torch's wheel was made from, in a run whose source lock holds a commit."""
    run = replace(
        provenance.run_records(), locks={provenance.TORCH_REF: provenance.locked(commit=locked_commit)}
    )
    (torch,) = [made for made in facts.made_files(run) if made.file.name == provenance.TORCH.name]
    return torch.materials


def test_a_statement_names_the_source_lock_with_its_digest() -> None:
    _, document = provenance.locked()

    materials = torch_materials(locked_commit=provenance.TORCH_COMMIT)

    (lock,) = [material for material in materials if "source-lock" in material.name]
    assert lock.digest == {"sha256": document.sha256}


def test_a_statement_does_not_name_a_source_lock_that_holds_another_commit() -> None:
    materials = torch_materials(locked_commit="f" * 40)

    assert [material.name for material in materials if "source-lock" in material.name] == []
