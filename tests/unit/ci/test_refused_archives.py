"""Whoever publishes a wheel refuses an archive that no installer takes, and names its file."""

from pathlib import Path

import pytest

from core.errors import CheckError, WheelError
from tests.kit import zip_files
from tests.kit.front_doors import Package, run_verb
from tests.kit.wheels import write_wheel

# A case of each kind: headers that differ, structure, names, places.
FORMS = (
    "local ZIP64 field that nobody needs",
    "data behind the end record",
    "empty name",
    "directory before its place",
    "negative offset",
)


@pytest.fixture(params=FORMS)
def folder(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    """Return a folder with sound wheels and one that installers refuse."""
    folder = tmp_path / "wheels"
    for name in ("apex", "torch", "triton"):
        write_wheel(folder, name=name)
    zip_files.write_form(folder, zip_files.REFUSED[request.param])
    return folder


def words_of(verb: str, folder: Path) -> list[str | Path]:
    """Return the words of a verb that judges the wheels of a folder."""
    match verb:
        case "check-wheels":
            return [folder]
        case "split-wheel":
            return [folder / "demo-1.0-py3-none-any.whl", "--output-dir", folder.parent / "parts"]
        case "index":
            return ["--directory", folder]
        case _:
            store = folder.parent / "store"
            place: list[str | Path] = ["--run-id", "7", "--artifact-group", "gfx942", "--store", store]
            return ["--input-dir", folder, *place]


@pytest.mark.parametrize(
    ("package", "verb"),
    [
        ("pytorch_build", "check-wheels"),
        ("pytorch_build", "split-wheel"),
        ("ci", "index"),
        ("ci", "upload"),
    ],
)
def test_refuses_an_archive_that_installers_refuse(
    folder: Path, package: Package, verb: str, capsys: pytest.CaptureFixture[str]
) -> None:
    exit_code = run_verb(package, verb, *words_of(verb, folder))

    printed = capsys.readouterr()
    assert exit_code in {WheelError.exit_code, CheckError.exit_code}
    assert "demo-1.0-py3-none-any.whl" in printed.out + printed.err
    assert not list(folder.parent.rglob("store/**/*.whl")), "nothing is uploaded"
    assert not list(folder.parent.rglob("*.html")), "nothing is indexed"
