from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from core.run.records import FileRecord
from pytorch_build.standalone.fat import FatWheelRequest
from pytorch_build.standalone.needs import RocmBundle
from pytorch_build.verbs import fat_wheel
from tests.kit.builds import LocalRun
from tests.kit.front_doors import FrontDoorResult
from tests.kit.wheels import write_wheel

Front = Callable[..., FrontDoorResult]

FAMILY = "gfx94X-dcgpu"
SAMPLE = ("--torch-ref", "sample")


@pytest.fixture
def requests(monkeypatch: pytest.MonkeyPatch) -> list[FatWheelRequest]:
    """Return the wheels that are asked for, in the place of making them."""
    asked: list[FatWheelRequest] = []

    def make(request: FatWheelRequest) -> Any:
        asked.append(request)
        path = request.output / request.wheel.name
        return SimpleNamespace(
            file=SimpleNamespace(path=path, size=1, sha256="a" * 64),
            rocm="ROCm",
            own=1,
            bundle=RocmBundle(libraries={}, data={}, search_paths={}, machine_libraries={}),
        )

    monkeypatch.setattr(fat_wheel, "make_fat_wheel", make)
    return asked


@pytest.fixture
def torch_names(run: LocalRun) -> dict[str, str]:
    """Leave torch of two refs in the run, and another wheel; return the names by ref."""
    names: dict[str, str] = {}
    for ref in ("sample", "nightly"):
        file = run.publish(run.wheel("torch", f"2.10.0+{ref}"))
        run.record("build_torch", file, torch_ref=ref, python="cp312", gpu_family=FAMILY)
        names[ref] = file.name
    run.record("build_audio", run.publish(run.wheel("torchaudio", "2.10.0")), torch_ref="sample")
    return names


def test_every_torch_of_the_run_is_made_standalone(
    run: LocalRun, front: Front, requests: list[FatWheelRequest], torch_names: dict[str, str]
) -> None:
    result = front("fat-wheel", "--gpu-family", FAMILY, "--rocm", run.root)

    assert result.exit_code == 0, result.report
    made_standalone = {(request.wheel.name, request.family, request.rocm) for request in requests}
    assert made_standalone == {(name, FAMILY, run.root) for name in torch_names.values()}


def test_one_torch_ref_is_made_standalone(
    run: LocalRun, front: Front, requests: list[FatWheelRequest], torch_names: dict[str, str]
) -> None:
    result = front("fat-wheel", *SAMPLE, "--rocm", run.root)

    (request,) = requests
    assert result.exit_code == 0, result.report
    assert request.wheel.name == torch_names["sample"]
    assert request.family == FAMILY


@pytest.fixture
def split_torch(run: LocalRun) -> list[FileRecord]:
    """Return a host wheel, two wheels of its family's targets, and one of another target."""
    names = ("torch", "amd-torch-device-gfx942", "amd-torch-device-gfx9-4", "amd-torch-device-gfx1100")
    files = [run.publish(run.wheel(name, "2.10.0")) for name in names]
    run.record("build_torch", *files, torch_ref="sample", python="cp312", gpu_family=FAMILY)
    return files


def test_a_host_wheel_of_the_run_comes_with_wheels_of_its_targets(
    run: LocalRun, front: Front, requests: list[FatWheelRequest], split_torch: list[FileRecord]
) -> None:
    result = front("fat-wheel", *SAMPLE, "--rocm", run.root)

    (request,) = requests
    names = [path.name for path in (request.wheel, *request.device_wheels)]
    assert result.exit_code == 0, result.report
    assert names == [file.name for file in split_torch[:3]]


@pytest.fixture
def split_paths(run: LocalRun, split_torch: list[FileRecord]) -> list[Path]:
    """Return the files of a host wheel and its device wheels, the host wheel first."""
    return [run.store.fetch(file.key, run.root) for file in split_torch]


def test_a_named_host_wheel_comes_with_the_named_device_wheels(
    run: LocalRun, front: Front, requests: list[FatWheelRequest], split_paths: list[Path]
) -> None:
    result = front("fat-wheel", "--rocm", run.root, *reversed(split_paths))

    (request,) = requests
    assert result.exit_code == 0, result.report
    assert request.wheel == split_paths[0]
    assert set(request.device_wheels) == set(split_paths[1:])


@pytest.mark.parametrize("count", [0, 2])
def test_refuses_any_number_of_host_wheels_but_one(
    run: LocalRun, front: Front, requests: list[FatWheelRequest], split_paths: list[Path], count: int
) -> None:
    host, *devices = split_paths

    result = front("fat-wheel", "--rocm", run.root, *[host] * count, *devices)

    assert result.exit_code == 2
    assert "torch wheel" in result.errors[0]
    assert requests == []


@pytest.mark.usefixtures("torch_names")
def test_names_the_torch_that_the_run_lacks(front: Front, requests: list[FatWheelRequest]) -> None:
    result = front("fat-wheel", "--torch-ref", "release/2.10", "--gpu-family", FAMILY)

    assert result.exit_code == 4
    assert "release/2.10" in result.errors[0]
    assert FAMILY in result.errors[0]
    assert requests == []


@pytest.mark.usefixtures("torch_names")
def test_names_a_source_without_rocm(front: Front, requests: list[FatWheelRequest], tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()

    result = front("fat-wheel", *SAMPLE, "--rocm-find-links", tmp_path / "empty")

    assert result.exit_code == 7
    assert str(tmp_path / "empty") in result.errors[0]
    assert requests == []


@pytest.mark.usefixtures("torch_names")
def test_rocm_comes_from_the_source_that_is_named(
    front: Front, requests: list[FatWheelRequest], tmp_path: Path
) -> None:
    devices = ("rocm-sdk-device-gfx942", "rocm-sdk-device-gfx1100")
    for name in ("rocm", "rocm-sdk-core", "rocm-sdk-libraries", *devices):
        write_wheel(tmp_path / "links", name=name, version="7.99.0.dev0+sample")

    result = front("fat-wheel", *SAMPLE, "--rocm-find-links", tmp_path / "links")

    assert result.exit_code == 0, result.report
    packages = sorted(path.name.partition("-")[0] for path in requests[0].rocm.iterdir())
    assert packages == ["rocm_sdk_core", "rocm_sdk_device_gfx942", "rocm_sdk_libraries"]
