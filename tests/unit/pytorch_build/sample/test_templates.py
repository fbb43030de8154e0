from pathlib import Path

import pytest

from pytorch_build.sample import TEMPLATES

_SOURCES = {".py", ".cpp", ".h", ".cu", ".cmake", ".toml"}


@pytest.mark.parametrize(
    "path",
    sorted(path for path in TEMPLATES.rglob("*") if path.suffix in _SOURCES),
    ids=lambda path: path.name,
)
def test_every_source_says_whose_contract_it_keeps(path: Path) -> None:
    head = path.read_text().splitlines()[:2]
    assert any("Keeps the contract of" in line for line in head), path


def test_no_template_needs_pythons_headers() -> None:
    sources = [path for path in TEMPLATES.rglob("*") if path.suffix in {".cpp", ".h", ".cu"}]
    assert sources
    assert not [path for path in sources if "Python.h" in path.read_text()]
