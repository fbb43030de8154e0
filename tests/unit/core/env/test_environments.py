from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from core import files, process
from core.env import installer
from core.env.installer import MARKER, Install, Sources, digest_of_calls, prepared
from core.errors import EnvironmentSetupError, ProcessError
from tests.unit.target_samples import target_in

if TYPE_CHECKING:
    from collections.abc import Sequence

    from core.env import Interpreter

CALLS = (Install(requirements=("a==1",)), Install(requirements=("b==2",)))


@pytest.fixture(name="target")
def target_fixture(tmp_path: Path) -> Interpreter:
    (tmp_path / "venv").mkdir()
    return target_in(tmp_path / "venv")


@pytest.fixture(name="done")
def done_fixture(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What was run and installed, in order."""
    done: list[str] = []

    def run(argv: Sequence[object]) -> None:
        done.append(" ".join(str(word) for word in argv[1:]))

    def install(_target: Interpreter, call: Install, *, backend: str, cache_dir: Path | None) -> None:
        done.append(f"{backend} installs {call.requirements[0]} with {cache_dir}")

    monkeypatch.setattr(process, "run", run)
    monkeypatch.setattr(installer, "install", install)
    return done


def test_an_environment_is_emptied_filled_and_marked(target: Interpreter, done: list[str]) -> None:
    with prepared(target, CALLS, digest="d1", cache_dir=Path("/cache")):
        assert json.loads((target.prefix / MARKER).read_text()) == {"digest": "d1"}
    assert done == [
        f"venv --no-config --quiet --clear --python /usr/bin/python3.12 {target.prefix}",
        "uv installs a==1 with /cache",
        "uv installs b==2 with /cache",
    ]


def test_pips_environments_are_made_by_virtualenv(target: Interpreter, done: list[str]) -> None:
    with prepared(target, CALLS[:1], digest="d1", backend="pip"):
        pass
    assert done == [
        f"-m virtualenv --quiet --clear --python /usr/bin/python3.12 {target.prefix}",
        "pip installs a==1 with None",
    ]


def test_the_same_digest_is_used_as_it_is(target: Interpreter, done: list[str]) -> None:
    for digest, made in (("d1", True), ("d1", False), ("d2", True), ("d1", True)):
        done.clear()
        with prepared(target, CALLS, digest=digest):
            pass
        assert bool(done) is made, digest
    done.clear()
    with prepared(target, CALLS, digest="d1", force=True):
        pass
    assert len(done) == 3


def test_a_half_filled_environment_is_made_anew(
    target: Interpreter, done: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    with prepared(target, CALLS, digest="d1"):
        pass

    def fail(*_arguments: object, **_options: object) -> None:
        raise EnvironmentSetupError("b==2 could not be installed.")

    with monkeypatch.context() as patch:
        patch.setattr(installer, "install", fail)
        with pytest.raises(EnvironmentSetupError), prepared(target, CALLS, digest="d2"):
            pytest.fail("It was used half filled.")
    assert not (target.prefix / MARKER).exists()
    done.clear()
    with prepared(target, CALLS, digest="d1"):
        pass
    assert len(done) == 3


def test_an_environment_that_cannot_be_emptied_is_named(
    target: Interpreter, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(_argv: object) -> None:
        raise ProcessError("uv ended with status 1.")

    monkeypatch.setattr(process, "run", fail)
    problem = pytest.raises(EnvironmentSetupError, match=r"venv could not be made anew")
    with problem, prepared(target, CALLS, digest="d1"):
        pass


def test_a_bare_interpreter_is_left_alone(tmp_path: Path, done: list[str]) -> None:
    bare = target_in(tmp_path, virtual=False)
    problem = pytest.raises(EnvironmentSetupError, match="is no virtual environment")
    with problem, prepared(bare, CALLS, digest="d1"):
        pass
    assert done == []


def test_the_lock_lies_beside_the_environment_and_is_held_in_use(
    target: Interpreter, monkeypatch: pytest.MonkeyPatch
) -> None:
    from contextlib import contextmanager

    held: list[Path] = []

    @contextmanager
    def locked(path: Path, *, what: str) -> Any:
        assert what == str(target.prefix)
        held.append(path)
        yield
        held.remove(path)

    monkeypatch.setattr(files, "locked", locked)
    (target.prefix / MARKER).write_text('{"digest": "d1"}')
    with prepared(target, CALLS, digest="d1"):
        assert held == [target.prefix.parent / ".venv.lock"]
    assert held == []


def test_a_digest_covers_all_that_an_environment_is_made_from(tmp_path: Path) -> None:
    target = target_in(tmp_path)
    lock = tmp_path / "lock.txt"
    lock.write_text("a==1")
    call = Install(requirements=("a==1",), files=(lock,))
    digest = digest_of_calls(target, [call])
    assert digest == digest_of_calls(target_in(tmp_path / "elsewhere"), [call])
    others = [
        digest_of_calls(target_in(tmp_path, version="3.12.2"), [call]),
        digest_of_calls(target_in(tmp_path, base_executable=Path("/other")), [call]),
        digest_of_calls(target, [call, call]),
        digest_of_calls(target, [Install(requirements=("a==2",), files=(lock,))]),
        digest_of_calls(
            target, [Install(requirements=("a==1",), files=(lock,), sources=Sources(no_index=True))]
        ),
        digest_of_calls(target, [Install(requirements=("a==1",), files=(lock,), gpu_family="gfx110X-all")]),
        digest_of_calls(target, [call], salt=["abc"]),
    ]
    lock.write_text("a==2")
    others.append(digest_of_calls(target, [call]))
    assert len({digest, *others}) == len(others) + 1
