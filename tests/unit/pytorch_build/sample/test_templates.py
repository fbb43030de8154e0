from pathlib import Path

import pytest

from pytorch_build.sample import TEMPLATES

SUFFIXES = {".py", ".cpp", ".h", ".cu", ".cmake", ".toml"}
COMPILED_SUFFIXES = {".cpp", ".h", ".cu"}
SOURCES = sorted(path for path in TEMPLATES.rglob("*") if path.suffix in SUFFIXES)
COMPILED_SOURCES = [path for path in SOURCES if path.suffix in COMPILED_SUFFIXES]


@pytest.mark.parametrize("path", SOURCES, ids=lambda path: path.relative_to(TEMPLATES).as_posix())
def test_names_the_upstream_file_whose_contract_a_source_keeps(path: Path) -> None:
    first_lines = path.read_text().splitlines()[:2]

    assert any("Keeps the contract of" in line for line in first_lines)


@pytest.mark.parametrize("path", COMPILED_SOURCES, ids=lambda path: path.relative_to(TEMPLATES).as_posix())
def test_compiles_without_the_headers_of_python(path: Path) -> None:
    assert "Python.h" not in path.read_text()
