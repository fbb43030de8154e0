"""What the files of this repository may say, and where they lie."""

import fnmatch
import re
from pathlib import Path

import pytest

from core.cli.options import ROOT
from tests.kit import source_code
from tests.kit.source_code import relative

# Hosts of package registries, and the place where a change was written. In parts, so that this file has none.
PRIVATE_NAMES = (
    "pypi" + ".org",
    "pythonhosted" + ".org",
    "crates" + ".io",
    "npmjs" + ".com",
    "/wo" + "rk/",
    "sha" + "red/spec",
    "sha" + "red/design",
    "sha" + "red/reference",
    "../sha" + "red",
)

# The script of this project's own CI may say where real sources come from on its machine.
NAMES_ITS_MACHINE = {".ci/run"}

MOST_README_LINES = 90

LOCKS = [ROOT / "requirements.txt", *sorted((ROOT / "requirements").glob("*.txt"))]


@pytest.mark.parametrize("name", PRIVATE_NAMES)
def test_no_file_names_registries_or_the_place_where_it_was_written(name: str) -> None:
    if not (ROOT / ".git").exists():
        pytest.skip("an unpacked archive has no list of its files")

    for path in source_code.tracked_files():
        if name.encode() in path.read_bytes():
            assert relative(path) in NAMES_ITS_MACHINE


def test_the_first_page_that_a_newcomer_needs_is_short() -> None:
    lines = (ROOT / "README.md").read_text(encoding="utf-8").splitlines()

    assert len(lines) < MOST_README_LINES


@pytest.mark.parametrize("lock", LOCKS, ids=lambda path: path.name)
def test_locks_hold_nothing_of_the_machine_that_compiled_them(lock: Path) -> None:
    text = lock.read_text(encoding="utf-8")
    header = "".join(line for line in text.splitlines() if line.startswith("#"))

    assert re.findall(r"^\s*(?:--|-[if] )(?!hash=).*", text, re.MULTILINE) == [], "options of an index"
    assert "://" not in text
    assert not re.search(r"\s/\w|/tmp|/home|/root", header)


@pytest.mark.parametrize("lock", LOCKS, ids=lambda path: path.name)
def test_locks_pin_every_requirement(lock: Path) -> None:
    requirements = re.findall(r"^[A-Za-z0-9].*", lock.read_text(encoding="utf-8"), re.MULTILINE)

    assert requirements
    for requirement in requirements:
        assert re.match(r"[\w.-]+(\[.*\])?==[^ ]+( ;.*)? \\$", requirement)


def test_pytest_passes_over_no_folder_of_tests(pytestconfig: pytest.Config) -> None:
    folders: set[str] = set()
    for path in source_code.modules_of_tests():
        folders.update(Path(relative(path)).parts[:-1])

    for pattern in pytestconfig.getini("norecursedirs"):
        assert fnmatch.filter(folders, pattern) == []


def test_folders_of_tests_are_no_packages() -> None:
    # Two test files of one name may lie in two folders; pytest imports them by their paths.
    assert not list((ROOT / "tests" / "unit").rglob("__init__.py"))
