"""What is named like a wheel or sdist and is none is refused with its name, and nothing waits for it."""

import os
import tarfile
from collections.abc import Callable, Mapping
from pathlib import Path

import pytest

from core.errors import CheckError, MachineError, MissingInputError, WheelError
from tests.kit import zip_files
from tests.kit.front_doors import Package, run_verb
from tests.kit.wheels import write_wheel
from tests.kit.windows import make_link, make_pipe, not_on_windows

WHEEL = "demo-1.0-py3-none-any.whl"
SDIST = "demo-1.0.tar.gz"
LARGER_THAN_ANY_WHEEL = 1 << 40

Capture = pytest.CaptureFixture[str]


def make_sparse(path: Path) -> None:
    """Make a file that has no bytes on the disk, and more than any wheel."""
    path.touch()
    os.truncate(path, LARGER_THAN_ANY_WHEEL)


def make_sdist_without_metadata(path: Path) -> None:
    """Make an archive with a file beside which PKG-INFO is missing."""
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
    package: Package = "ci" if verb in {"index", "upload"} else "pytorch_build"
    match verb:
        case "check-wheels":
            return run_verb(package, verb, folder)
        case "split-wheel":
            # The sound ones are not fat, which this verb refuses.
            wheels = sorted(path for path in folder.iterdir() if path.name.startswith(("bad", "demo")))
            return run_verb(package, verb, *wheels, "--output-dir", folder.parent / "parts")
        case "index":
            return run_verb(package, verb, "--directory", folder)
        case _:
            place = ["--run-id", "7", "--artifact-group", "gfx942", "--store", folder.parent / "store"]
            return run_verb(package, verb, "--input-dir", folder, *place)


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
def test_refuses_what_is_no_regular_file(
    folder: Path, kind: str, verb: str, filename: str, capsys: Capture
) -> None:
    MAKERS[kind](folder / filename)

    exit_code = judge_folder(verb, folder)

    printed = capsys.readouterr()
    classes = (CheckError, WheelError, MachineError, MissingInputError)
    assert exit_code in {error.exit_code for error in classes}
    assert filename in printed.out + printed.err
    assert "internal error" not in printed.err
    assert not list(folder.parent.rglob("store/**/*.whl")), "nothing is uploaded"
    assert not list(folder.parent.rglob("*.html")), "nothing is indexed"


@pytest.mark.parametrize("verb", ["index", "upload"])
def test_refuses_an_sdist_without_metadata(folder: Path, verb: str, capsys: Capture) -> None:
    make_sdist_without_metadata(folder / SDIST)

    exit_code = judge_folder(verb, folder)

    assert exit_code == WheelError.exit_code
    assert SDIST in capsys.readouterr().err
    assert not list(folder.parent.rglob("*.html"))


@pytest.mark.parametrize("verb", ["check-wheels", "split-wheel", "index", "upload"])
def test_names_every_damaged_wheel_of_a_folder(folder: Path, verb: str, capsys: Capture) -> None:
    for name, form in (("bad1", "negative offset"), ("bad2", "empty name"), ("bad3", "cut off")):
        zip_files.write_form(folder, zip_files.REFUSED[form], name=name)

    exit_code = judge_folder(verb, folder)

    printed = capsys.readouterr()
    assert exit_code in {CheckError.exit_code, WheelError.exit_code}
    assert all(f"bad{number}-1.0-py3-none-any.whl" in printed.err for number in (1, 2, 3))
