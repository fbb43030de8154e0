from pathlib import Path

import pytest

from core.cli.options import ROOT
from docs.house import LIMITS, House

OURS = House(ROOT)


def test_the_house_is_within_its_limits() -> None:
    assert {name: value for name, value in OURS.figures().items() if value > LIMITS[name]} == {}


def test_nothing_is_there_for_tests_alone() -> None:
    assert OURS.unused() == []


@pytest.fixture
def small(tmp_path: Path) -> House:
    files = {
        "core/upload.py": "from ci import job\n\ndef send(): ...\n\ndef lost(): ...\n",
        "core/uploading.py": "def f():\n    from core import upload\n    upload.send()\n",
        "ci/job.py": "if TYPE_CHECKING:\n    from core import uploading\n",
        "ci/sample/apart.py": "import core.upload\n",
        "tests/test_it.py": "from core.upload import lost\n",
        "noxfile.py": "",
    }
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    return House(tmp_path)


def test_a_house_is_measured(small: House) -> None:
    assert list(small.figures().values()) == [5, 3, 1, 0]
    assert small.unused() == ["core.upload.lost", "core.uploading.f"]
    assert small.gerunds() == ["uploading"]


def test_imports_in_functions_make_circles_and_those_for_types_do_not(small: House) -> None:
    assert small.circle() == []
    (small.root / "ci/job.py").write_text("def g():\n    from core.uploading import f\n")
    assert set(House(small.root).circle()) == {"core.upload", "core.uploading", "ci.job"}
