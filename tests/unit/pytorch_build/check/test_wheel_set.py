from pathlib import Path

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
