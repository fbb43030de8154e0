from dataclasses import replace
from pathlib import Path

import pytest

from core.cli.options import Common
from core.errors import MissingInputError, StoreError, UsageError
from core.packages.candidates import Candidate, read_requirements
from core.packages.groups import RunGroup, find_group, recorded_candidates
from core.run.records import FileRecord
from core.stores.directory import DirectoryStore
from tests.kit import runs
from tests.kit.memory_store import MemoryStore
from tests.kit.wheels import wheel_filename, write_wheel

GROUP = "g"


@pytest.fixture
def common(tmp_path: Path) -> Common:
    """Return options that name run 17."""
    return Common(root=tmp_path, run_id="17")


def publish_torch(
    common: Common, folder: Path, *, group: str = GROUP, requires: tuple[str, ...] = ()
) -> FileRecord:
    """Put a torch wheel into the run, with the record of its build; return the file's part of that."""
    wheel = write_wheel(folder / "dist", name="torch", requires=requires)
    (file,) = runs.publish_files(
        common.open_store(), common.outputs, [wheel], step="build_torch", family=group
    )
    return file


def run_group(common: Common, name: str = GROUP) -> RunGroup:
    """Return a group of the run."""
    return RunGroup(store=common.open_store(), outputs=common.outputs, name=name)


# Files of a run


def test_offers_what_a_successful_record_promises(common: Common, tmp_path: Path) -> None:
    torch = publish_torch(common, tmp_path)

    (wheel,) = recorded_candidates(run_group(common))

    assert wheel == Candidate(
        name=wheel_filename(),
        distribution="torch",
        version=torch.version,
        sha256=torch.sha256,
        key=torch.key,
        size=torch.size,
        metadata_sha256=torch.metadata_sha256,
    )


def test_offers_nothing_of_a_failed_record(common: Common, tmp_path: Path) -> None:
    torch = publish_torch(common, tmp_path)
    other = torch.model_copy(update={"name": "x.whl", "key": "x"})
    runs.write_record(
        common.open_store(),
        common.outputs,
        step="build_audio",
        family=GROUP,
        files=[other],
        error="It broke.",
    )

    assert [wheel.name for wheel in recorded_candidates(run_group(common))] == [torch.name]


def test_offers_the_file_that_lies_there_where_two_records_name_it(common: Common, tmp_path: Path) -> None:
    torch = publish_torch(common, tmp_path)
    earlier = torch.model_copy(update={"sha256": "0" * 64})
    runs.write_record(
        common.open_store(), common.outputs, step="an_earlier_build", family=GROUP, files=[earlier]
    )

    (wheel,) = recorded_candidates(run_group(common))

    assert wheel.sha256 == torch.sha256


def test_names_a_group_without_a_record() -> None:
    group = RunGroup(store=MemoryStore(), outputs=runs.run_outputs(), name="nobodys")

    with pytest.raises(MissingInputError, match="nobodys"):
        recorded_candidates(group)


# Groups of a run


def test_finds_a_run_outside_the_folder_of_its_repository(common: Common, tmp_path: Path) -> None:
    publish_torch(common, tmp_path)

    group = find_group(replace(common, external_repo="owner-repo/"), "")

    assert group.name == GROUP
    assert group.outputs.external_repo == ""


def test_finds_a_run_in_the_store_of_ci(common: Common, tmp_path: Path) -> None:
    publish_torch(common, tmp_path)

    group = find_group(replace(common, store="elsewhere", read_store=common.store), GROUP)

    assert group.where == f"{common.open_store().url}/17-linux/python/{GROUP}"


def test_finds_the_named_one_of_several_groups(common: Common, tmp_path: Path) -> None:
    publish_torch(common, tmp_path, group="g")
    publish_torch(common, tmp_path, group="h")

    assert find_group(common, "h").name == "h"


def test_names_the_groups_where_none_of_several_is_chosen(common: Common, tmp_path: Path) -> None:
    publish_torch(common, tmp_path, group="g")
    publish_torch(common, tmp_path, group="h")

    with pytest.raises(UsageError) as raised:
        find_group(common, "")

    assert "g, h" in raised.value.message
    assert "--artifact-group" in raised.value.hint


def test_names_every_place_where_a_run_was_looked_for(common: Common, tmp_path: Path) -> None:
    with pytest.raises(MissingInputError) as raised:
        find_group(replace(common, read_store=str(tmp_path / "b")), GROUP)

    assert "group g of run 17" in raised.value.message
    assert f"{tmp_path / 'out'}/17-linux" in raised.value.message
    assert f"{tmp_path / 'b'}/17-linux" in raised.value.message


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
def test_the_families_of_a_group_are_its_name_without_the_variant(
    tmp_path: Path, group: str, family: str
) -> None:
    run_group = RunGroup(store=DirectoryStore(tmp_path), outputs=runs.run_outputs(), name=group)

    assert run_group.family == family


# What files require


def test_reads_what_a_wheel_requires_from_its_sidecar(common: Common, tmp_path: Path) -> None:
    publish_torch(common, tmp_path, requires=("rocm==7.1", "numpy; extra == 'x'"))
    (wheel,) = recorded_candidates(run_group(common))

    assert read_requirements(wheel, common.open_store()) == ("rocm==7.1", "numpy; extra == 'x'")


def test_rejects_a_changed_sidecar(common: Common, tmp_path: Path) -> None:
    publish_torch(common, tmp_path)
    (wheel,) = recorded_candidates(run_group(common))
    store = common.open_store()
    store.put_bytes(f"{wheel.key}.metadata", b"Name: torch\nRequires-Dist: evil\n")

    with pytest.raises(StoreError) as raised:
        read_requirements(wheel, store)

    assert f"{wheel.key}.metadata" in raised.value.message
