"""Names that become parts of keys, addresses and file names have only letters, digits and a few marks."""

from pathlib import Path

import pytest

from core.errors import UsageError
from tests.kit.front_doors import run_ci
from tests.kit.wheels import write_wheel

HOSTILE_NAMES = (
    "gfx942\n::error::",
    "<script>alert(1)</script>",
    "\x1b[2Jgfx942",
    "../gfx942",
    "gfx942/../../other",
    "/etc",
    "..",
    "gfx942\\..",
    "gfx942?x=1#y",
    "gfx942 $(id)",
    "gfx942\u202e",
    "gfx\udc80",
    "%2e%2e",
    "-gfx942",
    "g" * 300,
)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Return a folder with a wheel."""
    folder = tmp_path / "wheels"
    write_wheel(folder, name="torch")
    return folder


@pytest.mark.parametrize("name", HOSTILE_NAMES, ids=ascii)
@pytest.mark.parametrize(
    "option", ["--artifact-group", "--run-id", "--gpu-family", "--build-variant", "--torch-ref"]
)
def test_upload_refuses_a_name_that_is_no_part_of_a_key(
    folder: Path, option: str, name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    store = folder.parent / "store"
    place = [f"--store={store}", "--artifact-group=gfx942", "--run-id=7"]

    # The last of two equal options counts.
    exit_code = run_ci("upload", f"--input-dir={folder}", *place, f"{option}={name}")

    assert exit_code == UsageError.exit_code
    assert option in capsys.readouterr().err
    assert not store.exists()


def test_several_families_are_one_group(folder: Path) -> None:
    store = folder.parent / "store"
    place = ["--store", store, "--run-id", "7", "--artifact-group", "gfx942;gfx1100"]
    page = store / "7-linux/python/gfx942-gfx1100/index.html"

    assert run_ci("upload", "--input-dir", folder, *place) == 0
    assert page.is_file()

    page.unlink()
    assert run_ci("index", *place) == 0
    assert page.is_file()
