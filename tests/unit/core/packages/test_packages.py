from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from core.cli.options import Common
from core.errors import MissingInputError, StoreError, UsageError
from core.packages import Offer, RunGroup, find_group, fits, offered, required_by
from core.run import RunOutputs, records
from core.run.records import FileRecord
from core.stores import Store
from core.stores.directory import DirectoryStore
from tests.unit.ci.conftest import Lab


def offer(distribution: str, version: str, name: str = "") -> Offer:
    filename = name or f"{distribution.replace('-', '_')}-{version}-py3-none-any.whl"
    return Offer(name=filename, distribution=distribution, version=version, sha256="a" * 64)


@pytest.mark.parametrize(
    ("name", "there"),
    [
        ("torch-2-cp312-cp312-linux_x86_64.whl", True),
        ("torch-2-cp311-cp311-linux_x86_64.whl", False),
        ("torch-2-cp313-cp313t-linux_x86_64.whl", False),
        ("torch-2-cp39-abi3-linux_x86_64.whl", True),
        ("torch-2-py3-none-any.whl", True),
        ("torch-2-py2.py3-none-any.whl", True),
        ("torch-2-cp311-none-any.whl", False),
        ("rocm-7.1.tar.gz", True),
    ],
)
def test_files_are_for_a_python_by_their_tags(name: str, there: bool) -> None:  # noqa: FBT001 - a table
    assert fits(offer("torch", "2", name), "cp312") is there
    assert fits(offer("torch", "2", name), "cp312", "linux") is there
    assert fits(offer("torch", "2", name), "", "windows") is ("linux" not in name)


def test_offers_are_what_successful_records_promise(lab: Lab) -> None:
    torch = lab.publish("torch")
    failed = lab.record_of(
        torch.model_copy(update={"name": "x.whl", "key": "x"}), stage="failed", status="failed", exit_code=1
    )
    records.write(lab.store, lab.outputs, "g", failed)
    group = RunGroup(store=lab.store, outputs=lab.outputs, name="g")
    (one,) = offered(group)
    assert (one.name, one.sha256, one.key) == (torch.name, torch.sha256, torch.key)
    assert (one.size, one.metadata_sha256) == (torch.size, torch.metadata_sha256)


def test_of_two_records_of_a_local_file_the_one_that_lies_there_counts(lab: Lab) -> None:
    torch = lab.publish("torch")
    before = torch.model_copy(update={"sha256": "0" * 64})
    records.write(lab.store, lab.outputs, "g", lab.record_of(before, stage="an_earlier_build"))
    (one,) = offered(RunGroup(store=lab.store, outputs=lab.outputs, name="g"))
    assert one.sha256 == torch.sha256


def test_a_group_without_a_record_offers_nothing(store: Store, outputs: RunOutputs) -> None:
    with pytest.raises(MissingInputError, match="No record of group g names a wheel"):
        offered(RunGroup(store=store, outputs=outputs, name="g"))


def test_a_run_is_found_in_its_repositorys_folder_or_without_one(lab: Lab) -> None:
    lab.publish("torch")
    found = find_group(replace(lab.common, external_repo="owner-repo/"), "")
    assert (found.name, found.outputs.external_repo) == ("g", "")


def test_a_run_is_read_where_ci_left_it(common: Common, publish: Callable[..., FileRecord]) -> None:
    publish("torch")
    found = find_group(replace(common, store="elsewhere", read_store=common.store), "g")
    assert found.where == f"{common.open_store().url}/17-linux/python/g"


def test_one_of_several_groups_must_be_named(common: Common, publish: Callable[..., FileRecord]) -> None:
    publish("torch", group="g")
    publish("torch", group="h")
    with pytest.raises(UsageError, match="has the groups g, h"):
        find_group(common, "")
    assert find_group(common, "h").name == "h"


def test_a_run_that_never_was_is_one_message_with_every_place(tmp_path: Path, common: Common) -> None:
    with pytest.raises(MissingInputError, match=r"group g of run 17 in .*/out/17-linux nor in .*/b/17-linux"):
        find_group(replace(common, read_store=str(tmp_path / "b")), "g")


@pytest.mark.parametrize(
    ("group", "family"),
    [
        ("gfx94X-dcgpu", "gfx94X-dcgpu"),
        ("gfx94X-dcgpu-asan", "gfx94X-dcgpu"),
        ("gfx94X-dcgpu-gfx110X-all", "gfx94X-dcgpu;gfx110X-all"),
        ("gfx942-gfx1100-gfx120X-all-asan", "gfx942;gfx1100;gfx120X-all"),
        ("cpu", ""),
        ("cpu-asan", ""),
        ("other", ""),
        ("gfx94", ""),
    ],
)
def test_a_groups_families_are_its_name_without_the_variant(lab: Lab, group: str, family: str) -> None:
    assert RunGroup(store=DirectoryStore(lab.root), outputs=lab.outputs, name=group).family == family


def test_requirements_are_read_from_a_sidecar_that_is_the_recorded_one(lab: Lab) -> None:
    lab.publish("torch", fields=[("Requires-Dist", "rocm==7.1"), ("Requires-Dist", "numpy; extra == 'x'")])
    (one,) = offered(RunGroup(store=lab.store, outputs=lab.outputs, name="g"))
    assert required_by(lab.store, one) == ("rocm==7.1", "numpy; extra == 'x'")
    lab.store.put_bytes(f"{one.key}.metadata", b"Name: torch\nRequires-Dist: evil\n")
    with pytest.raises(StoreError, match="differs from its record"):
        required_by(lab.store, one)
    assert required_by(lab.store, offer("rocm", "7.1", "rocm-7.1.tar.gz")) == ()
