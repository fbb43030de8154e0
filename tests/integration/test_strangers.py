"""Strangers' packages of our names, by every way that pip and uv would find them, and by every way in."""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from core import process
from core.env import Interpreter, installer, interpreter
from core.errors import CheckError, EnvironmentSetupError
from core.packages.resolution import pinned_call
from core.packages.sources import PackageSource
from tests.conftest import MakeWheel
from tests.kit.front_doors import run_ci
from tests.kit.recorded_runs import rocm_sdist, sdist
from tests.kit.servers import served
from tests.kit.wheels import add_record, write_members

ROCM, TORCH = "7.99.0+sample", "2.10.0+rocm7.99.0.sample"
SETUP = f"from setuptools import setup\nsetup(name='rocm', version={ROCM!r}, py_modules=[])\n"
BACKENDS = pytest.mark.parametrize("backend", ["uv", "pip"])
NAMES = ("rocm", "Rocm", "rocm_sdk_core", "rocm.sdk.core", "torch", "triton", "rocm-bootstrap", "rocm-sdk-x")
LIBRARIES = "rocm-sdk-libraries-gfx94x-dcgpu"
# what a stranger's sdist runs, wherever it is only looked at
LOOKED_AT = "import os, pathlib\npathlib.Path(os.environ['PIP_LOG']).with_name('ran').touch()\n"


def built(folder: Path, name: str, version: str, *requires: str, setup: str = "") -> None:
    backend = f"[build-system]\nrequires = {json.dumps(requires)}\nbuild-backend = 'setuptools.build_meta'\n"
    script = f"{setup}from setuptools import setup\nsetup(name={name!r}, version={version!r})\n"
    sdist(folder, name, version, {"pyproject.toml": backend, "setup.py": script})


@pytest.fixture(name="public", autouse=True)
def public_fixture(
    tmp_path: Path, make_wheel: MakeWheel, setuptools_wheel: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Path]:
    """The folder of the person's public packages, which every setting of pip and uv leads to."""
    folder = tmp_path / "public"
    for name in (*NAMES, LIBRARIES):
        for version in (ROCM if name.lower().startswith("rocm") else TORCH, "99.0", "100.0.dev1"):
            make_wheel(folder, name, version, content="STRANGER = True")
    built(folder, "rocm_sdk_devel", "99.0", "setuptools", setup=LOOKED_AT)
    make_wheel(folder, "tinydep", "1.0")
    (folder / setuptools_wheel.name).write_bytes(setuptools_wheel.read_bytes())
    configuration = tmp_path / "pip.conf"
    configuration.write_text(f"[install]\nfind-links = {folder}\n[global]\nno-index = true\n")
    monkeypatch.setenv("PIP_CONFIG_FILE", str(configuration))
    monkeypatch.setenv("PIP_LOG", str(tmp_path / "pip.log"))
    for name in ("PIP_FIND_LINKS", "UV_FIND_LINKS"):
        monkeypatch.setenv(name, str(folder))
    for name in ("PIP_CACHE_DIR", "UV_CACHE_DIR"):
        monkeypatch.setenv(name, str(tmp_path / name))
    installer.configured.cache_clear()
    yield folder
    installer.configured.cache_clear()


@pytest.fixture(name="target")
def target_fixture(tmp_path: Path) -> Interpreter:
    process.run([installer.uv_program(), "venv", "--no-config", "--quiet", tmp_path / "env"])
    return interpreter(tmp_path / "env" / "bin" / "python")


@pytest.fixture(name="ours")
def ours_fixture(tmp_path: Path, make_wheel: MakeWheel) -> Path:
    """A folder with the run's own: torch, and a rocm whose sdist any wheel would win over."""
    folder = tmp_path / "ours"
    make_wheel(folder, "torch", TORCH, fields=[("Requires-Dist", one) for one in ("helper", f"rocm=={ROCM}")])
    make_wheel(folder, "rocm-sdk-core", ROCM)
    rocm_sdist(folder, ROCM, SETUP)
    return folder


def helper(make_wheel: MakeWheel, public: Path, way: str) -> None:
    """Put a package of others into the public folder that brings a stranger's along."""
    lines = {
        "a dependency": ["rocm"],
        "a higher version": ["rocm-sdk-core>=90"],
        "a pre-release": ["triton>=100.dev0"],
        "another spelling": ["ROCm.SDK_core>=90"],
        "an unknown name": ["rocm-sdk-x"],
        "an sdist": ["rocm-sdk-devel"],
        "an address": [f"triton @ {(public / 'triton-99.0-py3-none-any.whl').as_uri()}"],
        "a dependency's dependency": ["deeper"],
    }
    if way == "a build requirement":
        built(public, "helper", "1.0", "setuptools", "rocm")
        return
    make_wheel(public, "deeper", "1.0", fields=[("Requires-Dist", "torch>=90")])
    make_wheel(public, "helper", "1.0", fields=[("Requires-Dist", one) for one in lines.get(way, ())])


WAYS = (
    *("a dependency", "a higher version", "a pre-release", "another spelling", "an unknown name", "an sdist"),
    *("an address", "a dependency's dependency", "a build requirement"),
)


def strangers(target: Interpreter) -> list[Path]:
    return [path for path in target.purelib.glob("*.py") if "STRANGER" in path.read_text()]


def ours_call(tmp_path: Path, folder: Path, *names: str) -> installer.Install:
    source = PackageSource(find_links=(str(folder),))
    files = [source.sealed(one) for one in source.listed if one.distribution in names]
    return pinned_call(tmp_path / "locks", files, installer.Sources(find_links=(str(folder),), no_index=True))


@BACKENDS
@pytest.mark.parametrize(("way", "first"), [*((way, True) for way in WAYS), ("a higher version", False)])
def test_no_call_for_others_brings_a_stranger_into_a_builds_environment(
    tmp_path: Path,
    target: Interpreter,
    make_wheel: MakeWheel,
    public: Path,
    ours: Path,
    backend: installer.Backend,
    way: str,
    *,
    first: bool,
) -> None:
    helper(make_wheel, public, way)
    others, core = installer.Install(requirements=("helper",)), ours_call(tmp_path, ours, "rocm-sdk-core")
    calls = [others, core] if first else [core, others]
    refusal = pytest.raises((EnvironmentSetupError, CheckError))
    with refusal, installer.prepared(target, calls, digest="1", backend=backend):
        pytest.fail(f"{way} got in: {strangers(target)}")
    assert not (tmp_path / "ran").exists(), "a stranger's code ran"
    assert [path for path in strangers(target) if path.name != "rocm_sdk_x.py"] == []


@BACKENDS
@pytest.mark.parametrize("way", WAYS)
def test_setup_venv_refuses_whoever_brings_a_stranger(
    tmp_path: Path, make_wheel: MakeWheel, public: Path, ours: Path, backend: installer.Backend, way: str
) -> None:
    helper(make_wheel, public, way)
    words = ("--packages", "torch", "--find-links", str(ours), "--gpu-family", "gfx94X-dcgpu")
    code = run_ci("setup-venv", tmp_path / "env", *words, "--backend", backend)
    # what was chosen is excluded from the others' resolution, so that requiring its version is harmless
    harmless = way == "a dependency"
    assert (code == 0) == harmless
    assert not (tmp_path / "ran").exists(), "a stranger's code ran"
    if harmless:
        assert strangers(interpreter.__wrapped__(tmp_path / "env" / "bin" / "python")) == []


@BACKENDS
def test_what_others_alter_of_ours_is_found_after_the_installation(
    tmp_path: Path, target: Interpreter, public: Path, ours: Path, backend: installer.Backend
) -> None:
    core = ours_call(tmp_path, ours, "rocm-sdk-core")
    members = {
        "rocm_sdk_core.py": b"STRANGER = 1",
        "overlay-1.0.dist-info/METADATA": b"Metadata-Version: 2.1\nName: overlay\nVersion: 1.0\n",
        "overlay-1.0.dist-info/WHEEL": b"Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
    }
    write_members(public / "overlay-1.0-py3-none-any.whl", add_record(members))
    overlay = installer.Install(requirements=("overlay",))
    with (
        pytest.raises(CheckError, match=r"rocm_sdk_core\.py is not the file of rocm-sdk-core"),
        installer.prepared(target, [core, overlay], digest="1", backend=backend),
    ):
        pytest.fail("it was used")


@BACKENDS
def test_setup_venv_puts_back_what_was_altered_or_replaced_since(
    tmp_path: Path, make_wheel: MakeWheel, public: Path, ours: Path, backend: installer.Backend
) -> None:
    make_wheel(public, "helper", "1.0")
    words = ("--packages", "torch", "--find-links", str(ours), "--backend", backend)
    front = ["setup-venv", str(tmp_path / "env"), *words]
    assert run_ci(*front) == 0
    target = interpreter.__wrapped__(tmp_path / "env" / "bin" / "python")
    (target.purelib / "torch.py").unlink()  # uv's cache may have a link to it
    (target.purelib / "torch.py").write_text("STRANGER = True")
    assert run_ci(*front) == 0
    assert strangers(target) == []


@pytest.mark.parametrize(
    ("setting", "backend"),
    [("PIP_EXTRA_INDEX_URL", "uv"), ("UV_INDEX", "pip"), ("pip.conf", "pip"), ("uv.toml", "uv")],
)
def test_setup_venv_asks_no_index_that_somebody_set_for_ours(
    tmp_path: Path,
    make_wheel: MakeWheel,
    public: Path,
    ours: Path,
    monkeypatch: pytest.MonkeyPatch,
    setting: str,
    backend: installer.Backend,
) -> None:
    for name in ("PIP_FIND_LINKS", "UV_FIND_LINKS"):
        monkeypatch.delenv(name)
    helper(make_wheel, public, "a dependency")
    assert run_ci("index", "--directory", public) == 0
    with served(tmp_path) as url:
        index = f"{url}/public/simple/"
        (tmp_path / "pip.conf").write_text(f"[global]\nindex-url = {index}\n")
        if setting == "uv.toml":
            (tmp_path / "uv").mkdir()
            (tmp_path / "uv" / setting).write_text(f"index-url = '{index}'\nprerelease = 'allow'\n")
            monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
        monkeypatch.setenv(setting, index)
        words = ["setup-venv", str(tmp_path / "env"), "--find-links", str(ours), "--backend", backend]
        assert run_ci(*words, "--packages", "torch") == 0
        # a release that was taken back is no reason to take a stranger's
        (ours / "yanked.json").write_text(f'{{"torch=={TORCH}": "bad"}}')
        assert run_ci("index", "--directory", ours) == 0
        page = [*words[:2], "--clean", "--index-url", f"{url}/ours/simple/", *words[4:]]
        assert run_ci(*page, "--packages", "torch") != 0
        assert run_ci(*page, "--packages", f"torch=={TORCH}") == 0
    assert strangers(interpreter.__wrapped__(tmp_path / "env" / "bin" / "python")) == []
