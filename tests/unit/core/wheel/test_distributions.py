from pathlib import Path
from typing import get_args

import pytest

from core import files
from core.archive import Member
from core.errors import StoreError, WheelError
from core.run import Platform, RunOutputs
from core.stores.directory import DirectoryStore
from core.wheel import distributions, read_metadata
from core.wheel.writer import WheelSpec, write_wheel
from tests.conftest import MakeWheel

LOCAL = RunOutputs(run_id="local", platform="linux")
CI = RunOutputs(run_id="17", platform="linux")


@pytest.fixture(name="store")
def store_fixture(tmp_path: Path) -> DirectoryStore:
    return DirectoryStore(tmp_path / "out")


def test_wheels_get_sidecar_and_record(store: DirectoryStore, tmp_path: Path, make_wheel: MakeWheel) -> None:
    path = make_wheel(tmp_path, "Torch_Audio", "2.10.0a0+rocm7.1")
    one = distributions.publish(store, CI, "g", path)
    assert one.key == f"17-linux/python/g/{path.name}"
    assert (one.distribution, one.version, one.name) == ("torch-audio", "2.10.0a0+rocm7.1", path.name)
    assert (one.sha256, one.size) == (files.sha256(path), path.stat().st_size)
    assert store.digest(one.key) == one.sha256
    assert store.read(f"{one.key}.metadata") == read_metadata(path).raw


def test_a_broken_wheel_never_arrives(store: DirectoryStore, tmp_path: Path) -> None:
    path = tmp_path / "torch-1.0-py3-none-any.whl"
    path.write_bytes(b"no zip")
    with pytest.raises(WheelError):
        distributions.publish(store, CI, "g", path)
    assert list(store.list("")) == []


def test_only_local_runs_take_new_bytes(store: DirectoryStore, tmp_path: Path, make_wheel: MakeWheel) -> None:
    first = make_wheel(tmp_path / "a", content="1")
    second = make_wheel(tmp_path / "b", content="2")
    for run in (LOCAL, CI):
        distributions.publish(store, run, "g", first)
        distributions.publish(store, run, "g", first)
    one = distributions.publish(store, LOCAL, "g", second)
    assert store.digest(one.key) == files.sha256(second)
    with pytest.raises(StoreError, match="with other bytes"):
        distributions.publish(store, CI, "g", second)
    assert store.digest(one.key.replace("local", "17")) == files.sha256(first)


def test_a_wheel_that_belies_its_name_never_arrives(store: DirectoryStore, tmp_path: Path) -> None:
    for name, version in (("apex", "1.0"), ("torch", "2.0")):
        metadata = f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n"
        spec = WheelSpec(distribution="torch", version="1.0", tag="py3-none-any", metadata=metadata)
        path = write_wheel(tmp_path, spec, [Member(name="torch.py", source=b"")]).path
        with pytest.raises(WheelError, match=r"torch-1.0.*says in its METADATA that it is "):
            distributions.publish(store, CI, "g", path)
    assert list(store.list("")) == []


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
def test_a_wheel_goes_to_runs_of_its_platform_alone(name: str, platforms: set[Platform]) -> None:
    for platform in get_args(Platform):
        assert distributions.on_platform(name, platform) == (platform in platforms)
        outputs = RunOutputs(run_id="17", platform=platform)
        if platform in platforms:
            distributions.require_platform([name], outputs)
        else:
            with pytest.raises(WheelError, match=f"not for {platform}, and would go to 17-{platform}/"):
                distributions.require_platform(["apex-1.10.0-py3-none-any.whl", name], outputs)
