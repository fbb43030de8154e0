"""Wheels of folders, installed into environments of their own."""

from pathlib import Path

import pytest

from core.env import Interpreter, installer, interpreter
from tests.kit.environments import create_environment, installed
from tests.kit.wheels import write_wheel


@pytest.fixture
def target(tmp_path: Path) -> Interpreter:
    """Return an empty environment's interpreter."""
    return interpreter(create_environment(tmp_path / "venv").python)


def test_an_environment_is_kept_by_its_digest_and_emptied_for_another(
    tmp_path: Path, target: Interpreter
) -> None:
    for name in ("numpy", "jinja2"):
        write_wheel(tmp_path / "dist", name=name, version="2.0")
    sources = installer.Sources(find_links=(str(tmp_path / "dist"),), no_index=True)
    stray_file = target.purelib / "stray.py"

    for name, is_kept in (("numpy", False), ("numpy", True), ("jinja2", False)):
        calls = [installer.InstallerCall(requirements=(name,), sources=sources)]
        digest = installer.digest_of_calls(target, calls)
        with installer.prepared(target, calls, digest=digest, cache_dir=tmp_path / "cache"):
            assert [*installed(target.executable)] == [name]
            assert stray_file.exists() is is_kept
            assert interpreter.__wrapped__(target.executable) == target
        stray_file.write_text("")


def test_reports_a_dependency_that_is_missing(tmp_path: Path, target: Interpreter) -> None:
    write_wheel(tmp_path / "dist", version="2.10.0", requires=["rocm"])
    sources = installer.Sources(find_links=(str(tmp_path / "dist"),), no_index=True)
    call = installer.InstallerCall(requirements=("torch",), sources=sources, dependencies=False)

    installer.install(target, call, cache_dir=tmp_path / "cache")

    (problem,) = installer.missing_dependencies(target)
    assert "rocm" in problem
