"""A file that is named like a wheel or sdist and is none is refused by its name, and nothing waits for it."""

import os
import tarfile
from collections.abc import Callable, Mapping
from pathlib import Path

import pytest

from core.errors import CheckError, MachineError, MissingInputError, WheelError
from tests.kit import zip_files
from tests.kit.front_doors import run_ci, run_pytorch_build
from tests.kit.wheels import write_wheel
from tests.kit.windows import make_link, make_pipe, not_on_windows

WHEEL = "demo-1.0-py3-none-any.whl"
SDIST = "demo-1.0.tar.gz"
LARGER_THAN_ANY_WHEEL = 1 << 40
DAMAGED_WHEELS = {"bad1": "negative offset", "bad2": "empty name", "bad3": "cut off"}

Capture = pytest.CaptureFixture[str]


def make_sparse(path: Path) -> None:
    """Make a file that takes no room on the disk and is larger than any wheel."""
    path.touch()
    os.truncate(path, LARGER_THAN_ANY_WHEEL)


def make_sdist_without_metadata(path: Path) -> None:
    """Make an archive that has a file and no PKG-INFO."""
    with tarfile.open(path, "w:gz") as archive:
        archive.addfile(tarfile.TarInfo("demo-1.0/setup.py"))


MAKERS: Mapping[str, Callable[[Path], object]] = {
    "pipe": make_pipe,
    "folder": Path.mkdir,
    "link to itself": lambda path: make_link(path, path.name),
    "link to nothing": lambda path: make_link(path, "nothing"),
    "endless device": lambda path: make_link(path, "/dev/zero"),
    "sparse file": make_sparse,
}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Return a folder with two sound wheels."""
    folder = tmp_path / "wheels"
    write_wheel(folder, name="torch")
    write_wheel(folder, name="triton")
    return folder


def judge_folder(verb: str, folder: Path) -> int:
    """Let a verb judge the wheels and sdists of a folder; return its exit code."""
    match verb:
        case "check-wheels":
            return run_pytorch_build(verb, folder)
        case "split-wheel":
            # It refuses the sound wheels as well, as they have no device code.
            wheels = [*folder.glob("bad*"), *folder.glob("demo*")]
            return run_pytorch_build(verb, *sorted(wheels), "--output-dir", folder.parent / "parts")
        case "index":
            return run_ci(verb, "--directory", folder)
        case "upload":
            place = ["--run-id", "7", "--artifact-group", "gfx942", "--store", folder.parent / "store"]
            return run_ci(verb, "--input-dir", folder, *place)
        case _:
            raise ValueError(verb)


def require_nothing_published(folder: Path) -> None:
    """Require that no wheel of a folder was uploaded, and that no index was written."""
    assert not list(folder.parent.rglob("store/**/*.whl"))
    assert not list(folder.parent.rglob("*.html"))


@not_on_windows("Windows has no such files")
@pytest.mark.parametrize("kind", MAKERS)
@pytest.mark.parametrize(
    ("verb", "filename"),
    [
        ("check-wheels", WHEEL),
        ("split-wheel", WHEEL),
        ("index", WHEEL),
        ("index", SDIST),
        ("upload", WHEEL),
        ("upload", SDIST),
    ],
)
def test_refuses_a_wheel_or_sdist_that_is_no_regular_file(
    folder: Path, kind: str, verb: str, filename: str, capsys: Capture
) -> None:
    MAKERS[kind](folder / filename)

    exit_code = judge_folder(verb, folder)

    assert exit_code in {
        CheckError.exit_code,
        MachineError.exit_code,
        MissingInputError.exit_code,
        WheelError.exit_code,
    }
    printed = capsys.readouterr()
    assert filename in printed.out + printed.err
    assert "internal error" not in printed.err
    require_nothing_published(folder)


@pytest.mark.parametrize("verb", ["index", "upload"])
def test_refuses_an_sdist_without_metadata(folder: Path, verb: str, capsys: Capture) -> None:
    make_sdist_without_metadata(folder / SDIST)

    exit_code = judge_folder(verb, folder)

    assert exit_code == WheelError.exit_code
    assert SDIST in capsys.readouterr().err
    require_nothing_published(folder)


@pytest.mark.parametrize("verb", ["check-wheels", "split-wheel", "index", "upload"])
def test_names_every_damaged_wheel_of_a_folder(folder: Path, verb: str, capsys: Capture) -> None:
    for name, form in DAMAGED_WHEELS.items():
        zip_files.write_form(folder, zip_files.REFUSED[form], name=name)

    exit_code = judge_folder(verb, folder)

    assert exit_code in {CheckError.exit_code, WheelError.exit_code}
    report = capsys.readouterr().err
    for name in DAMAGED_WHEELS:
        assert f"{name}-1.0-py3-none-any.whl" in report
