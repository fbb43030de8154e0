"""Wheels of folders, installed by uv and by pip into environments of their own."""

from pathlib import Path

import pytest

from core import process
from core.env import Interpreter, installer, interpreter
from tests.conftest import MakeWheel
from tests.kit.environments import installed

BACKENDS = pytest.mark.parametrize("backend", ["uv", "pip"])


@pytest.fixture(name="target")
def target_fixture(tmp_path: Path) -> Interpreter:
    process.run([installer.uv_program(), "venv", "--no-config", "--quiet", tmp_path / "venv"])
    return interpreter(tmp_path / "venv" / "bin" / "python")


@BACKENDS
def test_an_environment_is_kept_by_its_digest_and_emptied_for_another(
    tmp_path: Path, target: Interpreter, make_wheel: MakeWheel, backend: installer.Backend
) -> None:
    dist = make_wheel(tmp_path / "dist", "numpy", "2.0").parent
    make_wheel(dist, "jinja2", "3.1")
    sources = installer.Sources(find_links=(str(dist),), no_index=True)
    stray = target.purelib / "stray.py"
    for wanted, kept in (("numpy", False), ("numpy", True), ("jinja2", False)):
        calls = [installer.Install(requirements=(wanted,), sources=sources)]
        digest = installer.digest_of_calls(target, calls)
        with installer.prepared(target, calls, digest=digest, backend=backend, cache_dir=tmp_path / "cache"):
            assert [*installed(target.executable)] == [wanted]
            assert stray.exists() is kept
            assert interpreter.__wrapped__(target.executable) == target
        stray.write_text("")


@BACKENDS
def test_a_dependency_that_is_missing_is_reported(
    tmp_path: Path, target: Interpreter, make_wheel: MakeWheel, backend: installer.Backend
) -> None:
    dist = make_wheel(tmp_path / "dist", "torch", "2.10.0", fields=[("Requires-Dist", "rocm")]).parent
    sources = installer.Sources(find_links=(str(dist),), no_index=True)
    call = installer.Install(requirements=("torch",), sources=sources, dependencies=False)
    installer.install(target, call, backend=backend, cache_dir=tmp_path / "cache")
    (missing,) = installer.missing_dependencies(target)
    assert "rocm" in missing
