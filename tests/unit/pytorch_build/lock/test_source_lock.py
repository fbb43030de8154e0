import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from core.errors import DataError, SourceError
from pytorch_build.lock.source_lock import LockedProject, SourceLock
from tests.kit.locks import locked_project, source_lock

COMMIT = "c71ae7b37e78fc462df4672dcb3425a9fc415ba8"
OTHER_COMMIT = "0" * 40
TORCH = locked_project("torch", commit=COMMIT, rocm_version="2.10+rocm7.1", cpu_version="2.10+cpu")
LOCK = source_lock(TORCH, torch_ref="release/2.10", rocm_version="7.1")


# Versions


@pytest.mark.parametrize(("gpu", "version"), [(True, "2.10+rocm7.1"), (False, "2.10+cpu")])
def test_knows_the_versions_of_wheels_to_come(version: str, *, gpu: bool) -> None:
    assert LOCK.version("torch", gpu=gpu) == version


def test_names_a_project_that_the_lock_does_not_hold() -> None:
    with pytest.raises(SourceError, match="audio") as caught:
        LOCK.version("audio", gpu=False)

    assert "release/2.10" in caught.value.message


def test_names_the_kind_of_version_that_the_lock_does_not_hold() -> None:
    lock = source_lock(locked_project("torch", cpu_version="2.10+cpu"))

    with pytest.raises(SourceError, match="rocm version of torch"):
        lock.version("torch", gpu=True)


def test_has_no_version_of_a_project_that_is_not_built() -> None:
    lock = source_lock(LockedProject(project="torch", prebuilt="torch==2.13.0"))

    with pytest.raises(SourceError, match=r"torch==2\.13\.0"):
        lock.version("torch", gpu=False)


# Files and lines


def test_reads_a_written_lock_back(tmp_path: Path) -> None:
    LOCK.write(tmp_path / "lock.json")

    assert SourceLock.read(tmp_path / "lock.json") == LOCK


def test_writes_the_same_bytes_of_the_same_lock(tmp_path: Path) -> None:
    LOCK.write(tmp_path / "a.json")
    SourceLock.read(tmp_path / "a.json").write(tmp_path / "b.json")

    assert (tmp_path / "a.json").read_bytes() == (tmp_path / "b.json").read_bytes()


def test_reads_a_lock_back_from_one_line() -> None:
    assert "\n" not in LOCK.compact()
    assert SourceLock.from_compact(LOCK.compact()) == LOCK


def test_another_commit_or_rocm_is_another_digest() -> None:
    other_commit = source_lock(TORCH.model_copy(update={"commit": OTHER_COMMIT}))
    other_rocm = LOCK.model_copy(update={"rocm_version": "7.2"})

    assert len({LOCK.digest(), other_commit.digest(), other_rocm.digest()}) == 3
    assert LOCK.model_copy().digest() == LOCK.digest()


def test_a_lock_calls_a_commit_in_the_version_tagged() -> None:
    triton = locked_project("triton", commit=COMMIT).model_copy(update={"adds_commit": True})
    lock = source_lock(triton)

    assert '"tagged":true' in lock.model_dump_json()
    assert SourceLock.model_validate_json(lock.model_dump_json()) == lock


def test_rejects_a_line_that_was_changed_on_its_way() -> None:
    changed_line = LOCK.compact().replace(COMMIT, OTHER_COMMIT)

    with pytest.raises(DataError, match="digest"):
        SourceLock.from_compact(changed_line)


@pytest.mark.parametrize("text", ["", "null", "{}", '{"digest":"x"}', '{"digest": 3, "lock": {}}'])
def test_rejects_text_that_is_not_a_lock_in_one_line(text: str) -> None:
    with pytest.raises(DataError, match="SOURCE_LOCK"):
        SourceLock.from_compact(text)


def write_changed_lock(folder: Path, torch_changes: Mapping[str, str], *, schema_version: int = 1) -> Path:
    """Write a lock with changes of its torch, which need not be valid; return its path."""
    document: dict[str, Any] = LOCK.model_dump(mode="json")
    document["schema_version"] = schema_version
    document["projects"]["torch"] |= torch_changes
    path = folder / "lock.json"
    path.write_text(json.dumps(document))
    return path


@pytest.mark.parametrize(
    ("changes", "names"),
    [
        ({"commit": "main"}, ["'main'", "commit"]),
        ({"project": "tourch"}, ["'tourch'"]),
        ({"project": "audio"}, ["projects.torch", "audio"]),
        ({"base_version": ""}, ["base_version"]),
        ({"orgin": "x"}, ["orgin", "'origin'"]),
    ],
    ids=["commit", "unknown project", "other project", "empty version", "unknown key"],
)
def test_rejects_a_file_with_an_invalid_project(
    tmp_path: Path, changes: dict[str, str], names: list[str]
) -> None:
    path = write_changed_lock(tmp_path, changes)

    with pytest.raises(DataError) as caught:
        SourceLock.read(path)

    assert [name for name in names if name not in str(caught.value)] == []


def test_rejects_a_file_of_another_schema(tmp_path: Path) -> None:
    path = write_changed_lock(tmp_path, {}, schema_version=2)

    with pytest.raises(DataError, match="schema_version"):
        SourceLock.read(path)
