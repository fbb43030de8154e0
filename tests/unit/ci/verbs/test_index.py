import os
import re
from pathlib import Path

import pytest

from ci.verbs import index
from core.errors import MissingInputError, StoreError
from core.run import RunOutputs, records
from core.run.records import FileRecord
from core.stores import Store
from core.stores.location import DryRunStore
from core.wheel import distributions
from tests.kit.front_doors import run_ci
from tests.unit.ci.conftest import Lab


def page(store: Store, outputs: RunOutputs, path: str = "index.html") -> str:
    return store.read(f"{outputs.python_prefix('g')}/{path}").decode()


def aged(store: Store, one: FileRecord) -> None:
    """Let it be that a file was put there an hour and more ago."""
    os.utime(Path(store.url) / one.key, (1e9, 1e9))


def test_an_sdist_is_listed_plainly_and_a_wheel_only_with_its_sidecar(lab: Lab) -> None:
    one = lab.publish()
    sidecar = lab.store.read(f"{one.key}.metadata")
    lab.store.delete(f"{one.key}.metadata")
    (lab.root / "rocm-7.1.tar.gz").write_bytes(b"gz")
    sdist = distributions.publish(lab.store, lab.outputs, "g", lab.root / "rocm-7.1.tar.gz")
    records.write(lab.store, lab.outputs, "g", lab.record_of(sdist, stage="build_rocm"))
    indexed = index.write_pages(lab.store, lab.outputs, "g")
    assert indexed.files == 1
    assert [(held.stored.key, held.why) for held in indexed.held] == [
        (one.key, "its metadata sidecar does not exist yet")
    ]
    assert "metadata=" not in page(lab.store, lab.outputs)
    lab.store.put_bytes(f"{one.key}.metadata", sidecar)
    assert index.write_pages(lab.store, lab.outputs, "g").files == 2
    assert "metadata=" in page(lab.store, lab.outputs)


def test_zero_wheels_are_an_error(store: Store, outputs: RunOutputs) -> None:
    with pytest.raises(MissingInputError, match="holds no wheel or sdist"):
        index.write_pages(store, outputs, "g")


def test_a_wheel_that_no_record_of_a_success_names_is_refused(lab: Lab) -> None:
    lab.publish()
    other = distributions.publish(lab.store, lab.outputs, "g", lab.make_wheel(lab.root, "apex", "1.10.0"))
    failed = lab.record_of(other, status="failed", exit_code=8, error="No.")
    records.write(lab.store, lab.outputs, "g", failed)
    assert [held.stored.key for held in index.write_pages(lab.store, lab.outputs, "g").held] == [other.key]
    assert "apex" not in page(lab.store, lab.outputs)
    aged(lab.store, other)
    with pytest.raises(StoreError, match=f"{re.escape(other.key)} is in .* but no record names it"):
        index.write_pages(lab.store, lab.outputs, "g")


def test_a_dry_run_says_what_would_be_written(lab: Lab, capsys: pytest.CaptureFixture[str]) -> None:
    lab.publish()
    before = lab.store.list("")
    index.write_pages(DryRunStore(lab.store), lab.outputs, "g")
    assert lab.store.list("") == before
    assert (
        f"would write {lab.store.url}/{lab.outputs.python_prefix('g')}/index.html" in capsys.readouterr().err
    )


def test_the_verb_indexes_every_group_or_the_chosen_one(lab: Lab, capsys: pytest.CaptureFixture[str]) -> None:
    lab.publish()
    lab.publish(group="gfx942-gfx1100")
    words = ["index", "--run-id", lab.common.run_id, "--store", lab.store.url]
    assert run_ci(*words, "--gpu-family", "gfx942;gfx1100") == 0
    assert lab.store.find(f"{lab.outputs.python_prefix('g')}/index.html") is None
    assert run_ci(*words) == 0
    said = capsys.readouterr().err
    assert "index: 1 file, 5 pages written" in said
    assert "index: unchanged, 1 file listed" in said
    assert lab.store.find(f"{lab.outputs.python_prefix('g')}/index.html") is not None
