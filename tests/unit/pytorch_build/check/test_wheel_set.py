from pathlib import Path

import pytest

from pytorch_build.check import Finding
from pytorch_build.check.run import check_wheels
from tests.kit.findings import errors_among, members
from tests.kit.wheels import write_wheel


def errors_of(folder: Path) -> list[Finding]:
    """Return the errors of the wheels in a folder."""
    return errors_among(check_wheels([folder]))


def test_finds_a_file_that_another_distribution_has(tmp_path: Path) -> None:
    write_wheel(tmp_path, name="numpy", version="2.0", files={"numpy/__init__.py": b"", "numpy/core.py": b""})
    evil_files = {"evil/__init__.py": b"", "numpy/core.py": b"import evil\n"}
    evil = write_wheel(tmp_path, name="zevil", version="1.0", files=evil_files)

    (error,) = errors_of(tmp_path)

    assert (error.wheel, error.where) == (evil.name, "numpy/core.py")
    assert "numpy-2.0" in error.message


def test_finds_a_file_that_gets_there_by_the_data_folder(tmp_path: Path) -> None:
    write_wheel(tmp_path, name="numpy", version="2.0", files={"numpy/__init__.py": b""})
    write_wheel(
        tmp_path,
        name="zevil",
        version="1.0",
        files={"zevil.py": b"", "zevil-1.0.data/platlib/numpy/__init__.py": b"import evil\n"},
    )

    (error,) = errors_of(tmp_path)

    assert error.where == "numpy/__init__.py"


def test_lets_namespace_packages_share_a_file(tmp_path: Path) -> None:
    for name in ("space-one", "space-two"):
        module = name.replace("-", "/")
        write_wheel(
            tmp_path, name=name, version="1.0", files={"space/__init__.py": b"", f"{module}.py": b"1"}
        )

    assert errors_of(tmp_path) == []


def test_lets_wheels_of_one_distribution_have_the_same_files(tmp_path: Path) -> None:
    for version in ("1.0", "2.0"):
        write_wheel(tmp_path, name="demo", version=version, files={"demo.py": version.encode()})

    assert errors_of(tmp_path) == []


def test_lets_triton_have_two_names(tmp_path: Path) -> None:
    for name in ("triton", "pytorch-triton-rocm"):
        write_wheel(tmp_path, name=name, version="3.6", files={"triton/__init__.py": name.encode()})

    assert set(members(errors_of(tmp_path))) == {""}


# What wheels require of each other


def errors_of_requirements(folder: Path) -> list[Finding]:
    """Return the errors of what the wheels in a folder require."""
    return [error for error in errors_of(folder) if error.check == "requirements"]


def write_torch(folder: Path, *, rocm: str = "7.1") -> None:
    """Write a torch that requires a ROCm."""
    files = {"torch/__init__.py": b"", "torch/_rocm_init.py": b""}
    write_wheel(folder, version="2.10+rocm7.1", files=files, requires=[f"rocm[libraries]=={rocm}"])


@pytest.mark.parametrize(
    ("name", "version", "requirement"),
    [
        pytest.param("rocm-sdk-core", "7.2", "rocm[libraries]==7.1", id="ROCm"),
        pytest.param("torchaudio", "2.10", "torch==2.9", id="torch"),
    ],
)
def test_finds_a_requirement_that_the_set_does_not_meet(
    name: str, version: str, requirement: str, tmp_path: Path
) -> None:
    write_torch(tmp_path)
    requires = [requirement] if requirement.startswith("torch") else []
    write_wheel(tmp_path, name=name, version=version, requires=requires)

    (error,) = errors_of_requirements(tmp_path)

    assert requirement in error.message


def test_finds_device_code_for_another_rocm_than_its_torch(tmp_path: Path) -> None:
    write_torch(tmp_path, rocm="7.1")
    device_wheel = write_wheel(
        tmp_path,
        name="amd-torch-device-gfx942",
        version="2.10+rocm7.1",
        requires=["torch==2.10+rocm7.1", "rocm-sdk-device-gfx942==7.2"],
        files={"torch/lib/x.dat": b""},
    )

    (error,) = errors_of_requirements(tmp_path)

    assert error.wheel == device_wheel.name
    assert "ROCm 7.2" in error.message


def test_accepts_wheels_of_several_builds(tmp_path: Path) -> None:
    for rocm in ("7.1", "7.2"):
        files = {"torch/_rocm_init.py": rocm.encode()}
        version = f"2.10+rocm{rocm}"
        write_wheel(tmp_path, version=version, files=files, requires=[f"rocm[libraries]=={rocm}"])
        write_wheel(tmp_path, name="torchaudio", version=version, requires=[f"torch=={version}"])
        write_wheel(tmp_path, name="rocm-sdk-core", version=rocm)

    assert errors_of_requirements(tmp_path) == []
