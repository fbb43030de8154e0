from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from core.cli.options import Common
from core.env.locks import TORCH_TESTS, locked_call, target_lock
from core.errors import DataError
from tests.unit.target_samples import target_in

if TYPE_CHECKING:
    from core.env import Interpreter

LOCK = """\
iniconfig==2.0.0 \\
    --hash=sha256:aa
    # via pytest
numpy==2.1.0 \\
    --hash=sha256:bb
    # via -r requirements/target.in
pytest==8.3.0 \\
    --hash=sha256:cc
    # via -r requirements/target.in
setuptools==80.0.0 \\
    --hash=sha256:dd
    # via -r requirements/target.in
"""


def target(version: str = "3.12.4", **facts: Any) -> Interpreter:
    return target_in(Path("/env"), version=version, **facts)


@pytest.fixture
def common(tmp_path: Path) -> Common:
    return Common(root=tmp_path, platform="linux")


@pytest.fixture
def lock(common: Common) -> Path:
    path = common.root / "requirements" / "target-linux-3.12.txt"
    path.parent.mkdir()
    path.write_text(LOCK)
    (path.parent / "target.in").write_text("numpy\n")
    return path


def test_a_lock_is_one_a_python(common: Common, lock: Path) -> None:
    assert target_lock(common, target()) == lock
    assert target_lock(common, target("3.13.0")) is None
    assert target_lock(common, target(free_threaded=True)) == lock


def test_the_whole_lock_is_installed_as_it_stands(common: Common, lock: Path) -> None:
    call = locked_call(common, target())
    assert call.files == (lock,)
    assert call.hashed


def test_tests_have_a_lock_of_their_own(
    common: Common, lock: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    own = lock.with_name("torch-tests-linux-3.12.txt")
    own.write_text("expecttest==0.3.0 \\\n    --hash=sha256:ee\n")
    assert locked_call(common, target(), lock=TORCH_TESTS).files == (own,)
    # a Python without a lock gets what the lock is made from
    call = locked_call(common, target("3.13.0"), lock=TORCH_TESTS)
    assert [path.name for path in call.files] == ["torch-tests.in"]
    assert not call.hashed
    assert "torch-tests.in lists is not pinned" in capsys.readouterr().err


@pytest.mark.usefixtures("lock")
def test_a_part_of_the_lock_keeps_what_it_requires(common: Common) -> None:
    call = locked_call(common, target(), only=("pytest",))
    text = call.files[0].read_text()
    assert call.hashed
    assert "pytest==8.3.0" in text
    assert "iniconfig==2.0.0" in text
    assert "numpy" not in text
    with pytest.raises(DataError):
        locked_call(common, target(), only=("flit",))


def test_a_refs_own_requirement_takes_the_place_of_the_locked_one(common: Common, lock: Path) -> None:
    call = locked_call(common, target(), replaced=("Setuptools<70",))
    text = call.files[0].read_text()
    assert "setuptools" not in text
    assert "numpy==2.1.0" in text
    assert "setuptools" in lock.read_text()


def test_a_python_without_a_lock_is_warned_of(
    common: Common, lock: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    call = locked_call(common, target("3.14.0"))
    assert (call.files, call.hashed) == ((lock.parent / "target.in",), False)
    assert "no lock for Python 3.14" in capsys.readouterr().err
    assert locked_call(common, target("3.14.0"), only=("pytest",)).requirements == ("pytest",)
