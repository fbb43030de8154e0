from pathlib import Path
from typing import get_args

import pytest

from core.errors import StoreError, WheelError
from core.run import Platform, RunOutputs
from core.wheel import distributions
from tests.kit.memory_store import MemoryStore
from tests.kit.wheels import Defect, read_members, sha256, write_broken_wheel, write_wheel

LOCAL_RUN = RunOutputs(run_id="local", platform="linux")
CI_RUN = RunOutputs(run_id="17", platform="linux")


@pytest.fixture
def store() -> MemoryStore:
    """Return an empty store."""
    return MemoryStore()


def test_publishes_a_wheel_with_its_metadata_beside_it(store: MemoryStore, tmp_path: Path) -> None:
    wheel = write_wheel(tmp_path, name="torch_audio", version="2.10.0a0+rocm7.1")

    record = distributions.publish(store, CI_RUN, "g", wheel)

    metadata = read_members(wheel)["torch_audio-2.10.0a0+rocm7.1.dist-info/METADATA"]
    assert record.key == f"17-linux/python/g/{wheel.name}"
    assert store.objects == {record.key: wheel.read_bytes(), f"{record.key}.metadata": metadata}


def test_records_what_a_published_wheel_is(store: MemoryStore, tmp_path: Path) -> None:
    wheel = write_wheel(tmp_path, name="Torch_Audio", version="2.10.0a0+rocm7.1")

    record = distributions.publish(store, CI_RUN, "g", wheel)

    assert record.name == wheel.name
    assert record.distribution == "torch-audio"
    assert record.version == "2.10.0a0+rocm7.1"
    assert record.sha256 == sha256(wheel)
    assert record.size == wheel.stat().st_size


@pytest.mark.parametrize("defect", ["no zip", "other name in METADATA"])
def test_does_not_publish_a_broken_wheel(store: MemoryStore, tmp_path: Path, defect: Defect) -> None:
    wheel = write_broken_wheel(tmp_path, defect=defect)

    with pytest.raises(WheelError) as raised:
        distributions.publish(store, CI_RUN, "g", wheel)

    assert wheel.name in raised.value.message
    assert store.objects == {}


def test_does_not_publish_a_wheel_of_another_version_than_its_name_says(
    store: MemoryStore, tmp_path: Path
) -> None:
    wheel = write_wheel(tmp_path, version="2.0")
    renamed = wheel.rename(wheel.with_name(wheel.name.replace("2.0", "1.0")))

    with pytest.raises(WheelError, match=r"torch-1\.0"):
        distributions.publish(store, CI_RUN, "g", renamed)

    assert store.objects == {}


@pytest.mark.parametrize("run", [LOCAL_RUN, CI_RUN], ids=["local", "CI"])
def test_publishes_the_same_wheel_twice(store: MemoryStore, tmp_path: Path, run: RunOutputs) -> None:
    wheel = write_wheel(tmp_path)

    record = distributions.publish(store, run, "g", wheel)

    assert distributions.publish(store, run, "g", wheel) == record


def test_a_local_run_takes_a_wheel_that_was_built_again(store: MemoryStore, tmp_path: Path) -> None:
    distributions.publish(store, LOCAL_RUN, "g", write_wheel(tmp_path / "first"))
    second = write_wheel(tmp_path / "second", files={"torch.py": "# changed"})

    record = distributions.publish(store, LOCAL_RUN, "g", second)

    assert store.digest(record.key) == sha256(second)


def test_a_run_of_ci_takes_no_other_bytes_of_a_wheel(store: MemoryStore, tmp_path: Path) -> None:
    first = write_wheel(tmp_path / "first")
    record = distributions.publish(store, CI_RUN, "g", first)
    second = write_wheel(tmp_path / "second", files={"torch.py": "# changed"})

    with pytest.raises(StoreError) as raised:
        distributions.publish(store, CI_RUN, "g", second)

    assert record.key in raised.value.message
    assert store.digest(record.key) == sha256(first)


@pytest.mark.parametrize("platform", get_args(Platform))
@pytest.mark.parametrize(
    ("name", "platforms"),
    [
        ("torch-2.10.0-cp312-cp312-linux_x86_64.whl", {"linux"}),
        ("torch-2.10.0-cp312-cp312-manylinux_2_28_x86_64.manylinux2014_x86_64.whl", {"linux"}),
        ("torch-2.10.0-cp312-cp312-win_amd64.whl", {"windows"}),
        ("torch-2.10.0-cp312-cp312-macosx_14_0_arm64.whl", set()),
        ("apex-1.10.0-py3-none-any.whl", {"linux", "windows"}),
        ("rocm-7.1.tar.gz", {"linux", "windows"}),
    ],
)
def test_tells_the_platforms_of_a_file(name: str, platforms: set[Platform], platform: Platform) -> None:
    assert distributions.on_platform(name, platform) is (platform in platforms)


def test_lets_files_of_its_platform_into_a_run() -> None:
    distributions.require_platform(["apex-1.0-py3-none-any.whl", "rocm-7.1.tar.gz"], CI_RUN)


def test_rejects_files_of_another_platform_than_the_run() -> None:
    names = ["apex-1.0-py3-none-any.whl", "torch-2.10.0-cp312-cp312-win_amd64.whl"]

    with pytest.raises(WheelError) as raised:
        distributions.require_platform(names, CI_RUN)

    assert "torch-2.10.0-cp312-cp312-win_amd64.whl" in raised.value.message
    assert "17-linux" in raised.value.message
