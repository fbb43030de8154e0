"""Names from outside become parts of keys, addresses and file names: letters, digits and a few marks."""

from pathlib import Path

import pytest

from core.errors import UsageError
from tests.kit.front_doors import run_verb
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
    values = {"--artifact-group": "gfx942", "--run-id": "7", option: name}
    store = folder.parent / "store"

    exit_code = run_verb(
        "ci",
        "upload",
        f"--input-dir={folder}",
        f"--store={store}",
        *[f"{option}={value}" for option, value in values.items()],
    )

    assert exit_code == UsageError.exit_code
    assert option in capsys.readouterr().err
    assert not store.exists()


@pytest.mark.parametrize("verb", ["upload", "index"])
def test_several_families_are_one_group(folder: Path, verb: str) -> None:
    place = ["--store", folder.parent / "store", "--run-id", "7", "--artifact-group", "gfx942;gfx1100"]
    assert run_verb("ci", "upload", "--input-dir", folder, *place) == 0

    assert run_verb("ci", verb, *place, *(["--input-dir", folder] if verb == "upload" else [])) == 0

    assert (folder.parent / "store/7-linux/python/gfx942-gfx1100/index.html").is_file()
