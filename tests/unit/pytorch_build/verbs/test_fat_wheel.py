from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from pytorch_build.standalone.fat import Request
from pytorch_build.verbs import fat_wheel as verb

Front = Callable[..., Any]

FAMILY = "gfx94X-dcgpu"


@pytest.fixture
def made(monkeypatch: pytest.MonkeyPatch) -> list[Request]:
    kept: list[Request] = []

    def make(request: Request) -> Any:
        kept.append(request)
        path = request.output / request.wheel.name
        return SimpleNamespace(
            file=SimpleNamespace(path=path, size=1, sha256="a" * 64),
            rocm="ROCm",
            own=1,
            bundle=SimpleNamespace(libraries={}, data={}, search={}, machine={}),
        )

    monkeypatch.setattr(verb, "make", make)
    return kept


@pytest.fixture
def files(run: Any) -> dict[str, str]:
    """Leave torch of two refs in the run, and another wheel."""
    names = {}
    for ref in ("sample", "nightly"):
        file = run.publish(run.wheel("torch", f"2.10.0+{ref}"))
        run.record("build_torch", file, torch_ref=ref, python="cp312", gpu_family=FAMILY)
        names[ref] = file.name
    run.record("build_audio", run.publish(run.wheel("torchaudio", "2.10.0")), torch_ref="sample")
    return names


def test_every_torch_of_the_run_is_made_stand_alone(
    run: Any, front: Front, made: list[Request], files: dict[str, str]
) -> None:
    answer = front("fat-wheel", "--gpu-family", FAMILY, "--rocm", str(run.root))
    assert answer.exit_code == 0, answer.report
    assert sorted(one.wheel.name for one in made) == sorted(files.values())
    assert {(one.family, one.rocm) for one in made} == {(FAMILY, run.root)}
    assert "fat_wheel: 2 in dist" in answer.report
    made.clear()
    assert front("fat-wheel", "--torch-ref", "sample", "--rocm", str(run.root)).exit_code == 0
    assert [(one.wheel.name, one.family) for one in made] == [(files["sample"], FAMILY)]


def test_a_host_wheel_comes_with_wheels_of_its_targets(run: Any, front: Front, made: list[Request]) -> None:
    names = ("torch", "amd-torch-device-gfx942", "amd-torch-device-gfx9-4", "amd-torch-device-gfx1100")
    put = [run.publish(run.wheel(name, "2.10.0")) for name in names]
    run.record("build_torch", *put, torch_ref="sample", python="cp312", gpu_family=FAMILY)
    answer = front("fat-wheel", "--torch-ref", "sample", "--rocm", str(run.root))
    assert answer.exit_code == 0, answer.report
    (one,) = made
    assert [one.wheel.name, *(path.name for path in one.devices)] == [file.name for file in put[:3]]
    paths = [run.store.fetch(file.key, run.root) for file in put]
    answer = front("fat-wheel", "--rocm", str(run.root), *map(str, reversed(paths)))
    assert answer.exit_code == 0, answer.report
    assert (made[-1].wheel, set(made[-1].devices)) == (paths[0], set(paths[1:]))
    for wrong in (paths[1:], [paths[0], paths[0]]):
        answer = front("fat-wheel", "--rocm", str(run.root), *map(str, wrong))
        assert answer.exit_code == 2
        assert "One torch wheel becomes stand-alone at a time" in answer.report


@pytest.mark.usefixtures("files")
def test_what_the_run_lacks_is_named(run: Any, front: Front, made: list[Request]) -> None:
    answer = front("fat-wheel", "--torch-ref", "release/2.10", "--gpu-family", FAMILY)
    assert answer.exit_code == 4
    assert f"Run local has no torch of release/2.10 for {FAMILY}." in answer.report
    answer = front("fat-wheel", "--torch-ref", "sample", "--rocm-find-links", str(made_dir(run)))
    assert answer.exit_code == 7
    assert f"{run.root / 'empty'} has no ROCm" in answer.report
    assert made == []


def made_dir(run: Any) -> Path:
    folder: Path = run.root / "empty"
    folder.mkdir()
    return folder


@pytest.mark.usefixtures("files")
def test_rocm_comes_from_the_source_that_is_named(run: Any, front: Front, made: list[Request]) -> None:
    folder = made_dir(run)
    names = (
        "rocm",
        "rocm-sdk-core",
        "rocm-sdk-libraries",
        "rocm-sdk-device-gfx942",
        "rocm-sdk-device-gfx1100",
    )
    for name in names:
        run.wheel(name, "7.99.0.dev0+sample").rename(
            folder / f"{name.replace('-', '_')}-7.99.0.dev0+sample-py3-none-any.whl"
        )
    answer = front("fat-wheel", "--torch-ref", "sample", "--rocm-find-links", str(folder))
    assert answer.exit_code == 0, answer.report
    found = sorted(path.name.partition("-")[0] for path in made[0].rocm.iterdir())
    assert found == ["rocm_sdk_core", "rocm_sdk_device_gfx942", "rocm_sdk_libraries"]
