"""Wheels of a run, installed by uv and by pip from the index that was written for them."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from core import files, process
from core.env import Interpreter, installer, interpreter
from core.errors import EnvironmentSetupError
from core.run import RunOutputs
from core.stores.directory import DirectoryStore
from tests.conftest import MakeWheel
from tests.folders import served
from tests.integration.recorded_runs import indexed
from tests.venvs import installed

OUTPUTS = RunOutputs(run_id="17", platform="linux")
GROUP = "gfx110X-all"
ROCM = "7.99.0+sample"
TORCH = "2.10.0+devrocm7.99.0.sample"
BACKENDS = pytest.mark.parametrize("backend", ["uv", "pip"])


@pytest.fixture(name="run")
def run_fixture(tmp_path: Path, make_wheel: MakeWheel) -> Iterator[str]:
    """The address of a run's wheels: torch, and the ROCm that it requires."""
    dist = tmp_path / "dist"
    rocm = make_wheel(dist, "rocm", ROCM)
    torch = make_wheel(dist, "torch", TORCH, fields=[("Requires-Dist", f"rocm=={ROCM}")])
    prefix = indexed(DirectoryStore(tmp_path / "out"), OUTPUTS, GROUP, rocm, torch)
    with served(tmp_path / "out") as url:
        yield f"{url}/{prefix}"


@pytest.fixture(name="target")
def target_fixture(tmp_path: Path) -> Interpreter:
    process.run([installer.uv_program(), "venv", "--no-config", "--quiet", tmp_path / "venv"])
    return interpreter(tmp_path / "venv" / "bin" / "python")


def version_of(target: Interpreter, module: str) -> str:
    return process.capture(
        [target.executable, "-c", f"import {module}; print({module}.VERSION)"]
    ).stdout.strip()


@BACKENDS
def test_a_hash_pinned_install_refuses_a_changed_wheel(
    tmp_path: Path, target: Interpreter, make_wheel: MakeWheel, backend: installer.Backend
) -> None:
    honest = make_wheel(tmp_path / "honest", "rocm", ROCM)
    changed = make_wheel(tmp_path / "changed", "rocm", ROCM, content="CHANGED = True")
    lock = tmp_path / "lock.txt"
    lock.write_text(f"rocm=={ROCM} --hash=sha256:{files.sha256(honest)}\n")
    for folder in (changed.parent, honest.parent):
        sources = installer.Sources(find_links=(str(folder),), no_index=True)
        call = installer.Install(files=(lock,), sources=sources, hashed=True)
        if folder == changed.parent:
            with pytest.raises(EnvironmentSetupError, match=r"lock\.txt could not be installed"):
                installer.install(target, call, backend=backend, cache_dir=tmp_path / "cache")
            assert installed(target.executable) == {}
        else:
            installer.install(target, call, backend=backend, cache_dir=tmp_path / "cache")
            assert version_of(target, "rocm") == ROCM


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


@pytest.fixture(name="placeholders")
def placeholders_fixture(
    tmp_path: Path, make_wheel: MakeWheel, monkeypatch: pytest.MonkeyPatch
) -> Iterator[str]:
    """An index that the person has configured in every way there is, with packages of our names."""
    dist = tmp_path / "placeholders"
    names = ("rocm", "rocm-sdk-core", "torch")
    wheels = [make_wheel(dist, name, version) for name in names for version in ("0.1", "99.0")]
    prefix = indexed(DirectoryStore(tmp_path / "elsewhere"), OUTPUTS, "placeholders", *wheels)
    with served(tmp_path / "elsewhere") as url:
        simple, flat = f"{url}/{prefix}/simple/", f"{url}/{prefix}/index.html"
        configuration = tmp_path / "pip.conf"
        configuration.write_text(f"[global]\nindex-url = {simple}\n[install]\nfind-links = {flat}\n")
        monkeypatch.setenv("PIP_CONFIG_FILE", str(configuration))
        for name in ("PIP_EXTRA_INDEX_URL", "UV_EXTRA_INDEX_URL", "UV_DEFAULT_INDEX", "UV_INDEX"):
            monkeypatch.setenv(name, simple)
        for name in ("PIP_FIND_LINKS", "UV_FIND_LINKS"):
            monkeypatch.setenv(name, flat)
        yield url


@BACKENDS
@pytest.mark.usefixtures("placeholders")
def test_both_honour_configuration(tmp_path: Path, target: Interpreter, backend: installer.Backend) -> None:
    installer.configured.cache_clear()
    try:
        call = installer.Install(requirements=("rocm",), whose="prebuilt")
        installer.install(target, call, backend=backend, cache_dir=tmp_path / "cache")
    finally:
        installer.configured.cache_clear()
    assert version_of(target, "rocm") == "99.0"


@BACKENDS
def test_a_dependency_that_is_missing_is_reported(
    tmp_path: Path, target: Interpreter, run: str, backend: installer.Backend
) -> None:
    call = installer.Install(
        requirements=(f"torch=={TORCH}",),
        sources=installer.Sources(find_links=(f"{run}/index.html",), no_index=True),
        dependencies=False,
    )
    installer.install(target, call, backend=backend, cache_dir=tmp_path / "cache")
    (missing,) = installer.missing_dependencies(target)
    assert "rocm" in missing
