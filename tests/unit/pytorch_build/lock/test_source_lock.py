import json
from pathlib import Path

import pytest

from core.errors import DataError, SourceError
from pytorch_build.lock.source_lock import LockedProject, SourceLock

COMMIT = "c71ae7b37e78fc462df4672dcb3425a9fc415ba8"


def torch(**changes: str) -> LockedProject:
    values = {"origin": "sample:torch", "ref": "main", "commit": COMMIT, "base_version": "2.10.0a0"}
    versions = {"rocm": "2.10.0a0+rocm7.1", "cpu": "2.10.0a0+cpu"}
    return LockedProject.model_validate({"project": "torch", "versions": versions, **values, **changes})


def lock(**projects: LockedProject) -> SourceLock:
    return SourceLock(
        torch_ref="release/2.10",
        release_type="ci",
        rocm_version="7.1",
        projects=projects or {"torch": torch()},
    )


def test_versions_are_those_of_the_lock() -> None:
    assert lock().version("torch", gpu=True) == "2.10.0a0+rocm7.1"
    assert lock().version("torch", gpu=False) == "2.10.0a0+cpu"
    with pytest.raises(SourceError, match=r"release/2\.10 does not hold audio"):
        lock().version("audio", gpu=False)
    without = torch().model_copy(update={"versions": {"cpu": "2.10.0a0+cpu"}})
    with pytest.raises(SourceError, match="no rocm version of torch"):
        lock(torch=without).version("torch", gpu=True)
    prebuilt = LockedProject(project="torch", prebuilt="torch==2.13.0")
    with pytest.raises(SourceError, match=r"not built: it is torch==2\.13\.0"):
        lock(torch=prebuilt).version("torch", gpu=False)


def test_a_written_lock_reads_back_and_has_the_same_bytes_and_digest(tmp_path: Path) -> None:
    lock().write(tmp_path / "a.json")
    SourceLock.read(tmp_path / "a.json").write(tmp_path / "b.json")
    assert SourceLock.read(tmp_path / "a.json") == lock()
    assert (tmp_path / "a.json").read_bytes() == (tmp_path / "b.json").read_bytes()
    assert "\n" not in lock().compact()
    assert SourceLock.from_compact(lock().compact()) == lock()
    other = lock().model_copy(update={"rocm_version": "7.2"})
    assert len({one.digest() for one in (lock(), lock(), lock(torch=torch(commit="0" * 40)), other)}) == 3
    with pytest.raises(DataError, match="does not have the digest"):
        SourceLock.from_compact(lock().compact().replace(COMMIT, "0" * 40))


@pytest.mark.parametrize("text", ["", "null", "{}", '{"digest":"x"}', '{"digest": 3, "lock": {}}'])
def test_other_text_is_no_compact_lock(text: str) -> None:
    with pytest.raises(DataError, match="SOURCE_LOCK"):
        SourceLock.from_compact(text)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"commit": "main"}, "'main' is not a commit"),
        ({"project": "tourch"}, "'tourch' is not a project"),
        ({"project": "audio"}, "locks audio"),
        ({"base_version": ""}, "must not be empty"),
        ({"orgin": "x"}, "Did you mean 'origin'"),
        ({}, "schema_version"),
    ],
)
def test_broken_locks_are_refused(tmp_path: Path, change: dict[str, str], said: str) -> None:
    value = lock().model_dump(mode="json")
    value["projects"]["torch"] |= change
    value["schema_version"] += not change
    path = tmp_path / "lock.json"
    path.write_text(json.dumps(value))
    with pytest.raises(DataError, match=said):
        SourceLock.read(path)
