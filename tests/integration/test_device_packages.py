"""Split packages as installers see them: a torch with its device code, from pages and runs."""

import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from ci import install as user_install
from core import process
from core.cli.options import Common
from core.env import Interpreter, installer, interpreter
from core.errors import CheckError
from core.packages.sources import SourceOptions
from core.run import RunOutputs
from core.stores.directory import DirectoryStore
from pytorch_build.context import Context
from pytorch_build.refs.torch_refs import torch_ref
from pytorch_build.sdk import RocmOptions
from pytorch_build.test import installation
from tests.conftest import MakeWheel
from tests.kit.environments import installed
from tests.kit.front_doors import run_ci
from tests.kit.recorded_runs import indexed, rocm_sdist

ROCM, TORCH = "7.99.0a20251120", "2.10.0+rocm7.99.0a20251120"
FAMILY, TARGETS = "gfx94X-dcgpu;gfx950-dcgpu", ("gfx942", "gfx950")
BACKENDS = pytest.mark.parametrize("backend", ["uv", "pip"])
# upstream's split sdist refuses the name of a family
SETUP = f"""
import os
from setuptools import setup
known = {{known}}
family = os.environ.get("ROCM_SDK_TARGET_FAMILY", known[0])
if family not in known:
    raise ValueError(f"{{{{family}}}} is not available")
libraries = "rocm-sdk-libraries" + ("" if {{split}} else "-" + family.lower()) + "=={ROCM}"
setup(name="rocm", version="{ROCM}", py_modules=["rocm"], extras_require={{{{"libraries": [libraries]}}}})
open("rocm.py", "w").write("")
"""


@pytest.fixture(name="wheels")
def wheels_fixture(tmp_path: Path, make_wheel: MakeWheel) -> Callable[..., list[Path]]:
    """Write ROCm of a layout, and a torch: fat, or a host wheel as ours or TheRock's splitter leaves it."""

    def made(*, split: bool = True, host: bool = True, bootstrap: bool = False) -> list[Path]:
        dist = tmp_path / "dist"
        fields = [("Requires-Dist", f"rocm[libraries]=={ROCM}")]
        fields += [("Requires-Dist", "rocm-bootstrap")] if bootstrap else []
        for gpu in TARGETS if host else ():
            extra = f"device-{gpu}"
            fields.append(("Provides-Extra", extra))
            fields.append(("Requires-Dist", f"amd-torch-{extra}=={TORCH}; extra == '{extra}'"))
        known = TARGETS if split else ("gfx94X-dcgpu", "gfx950-dcgpu")
        sdist = rocm_sdist(dist, ROCM, SETUP.format(known=known, split=split))
        paths = [make_wheel(dist, "torch", TORCH, fields=fields), sdist]
        names = (
            ["rocm-sdk-libraries"]
            if split
            else [f"rocm-sdk-libraries-{one.lower()}" for one in FAMILY.split(";")]
        )
        names += [f"rocm-sdk-device-{gpu}" for gpu in TARGETS if split]
        paths += [make_wheel(dist, name, ROCM) for name in names]
        paths += [make_wheel(dist, "rocm-bootstrap", "0.1.0")] if bootstrap else []
        for gpu in TARGETS if host else ():
            needs = [f"torch=={TORCH}", f"rocm-sdk-device-{gpu}=={ROCM}"]
            more = [("Requires-Dist", one) for one in needs]
            paths.append(make_wheel(dist, f"amd-torch-device-{gpu}", TORCH, fields=more))
        return paths

    return made


@pytest.fixture(name="target")
def target_fixture(tmp_path: Path) -> Interpreter:
    process.run([sys.executable, "-m", "virtualenv", "--quiet", tmp_path / "env"])
    return interpreter.__wrapped__(tmp_path / "env" / "bin" / "python")


def install(
    target: Interpreter, folder: Path, *, family: str, targets: Sequence[str], backend: Any = "uv"
) -> set[str]:
    """Install torch from a folder as `test_torch` does; say what was installed."""
    common = Common(root=folder.parent)
    chosen = Context(common=common, ref=torch_ref("sample"), gpu_family=family, gpu_targets=tuple(targets))
    what = installation.tested(
        chosen, target, SourceOptions(find_links=(str(folder),), version=TORCH), RocmOptions()
    )
    tools = installer.Install(requirements=("setuptools",))
    with (
        installation.planned(chosen, target, what, tools=[tools]) as (calls, _),
        installer.prepared(target, calls, digest="x", backend=backend, force=True),
    ):
        return {*installed(target.executable)}


def device_names(*kinds: str) -> set[str]:
    return {f"{kind}-device-{gpu}" for kind in kinds for gpu in TARGETS}


@BACKENDS
@pytest.mark.parametrize("bootstrap", [False, True])
def test_a_host_wheel_is_installed_with_its_device_code(
    target: Interpreter, wheels: Callable[..., list[Path]], tmp_path: Path, backend: str, bootstrap: Any
) -> None:
    wheels(bootstrap=bootstrap)
    found = install(target, tmp_path / "dist", family=FAMILY, targets=TARGETS, backend=backend)
    own = {"torch", "rocm", "rocm-sdk-libraries", *(["rocm-bootstrap"] if bootstrap else [])}
    assert found == own | device_names("amd-torch", "rocm-sdk")
    installation.require_device_code(target, TARGETS)
    (gone,) = (tmp_path / "env").glob("lib/*/site-packages/amd_torch_device_gfx950-*.dist-info")
    gone.rename(gone.with_name("x"))
    with pytest.raises(CheckError, match="amd-torch-device-gfx950 is not installed"):
        installation.require_device_code(target, TARGETS)


def test_a_fat_wheel_gets_rocms_device_code_from_split_packages(
    target: Interpreter, wheels: Callable[..., list[Path]], tmp_path: Path
) -> None:
    wheels(host=False)
    found = install(target, tmp_path / "dist", family=FAMILY, targets=TARGETS)
    assert found == {"torch", "rocm", "rocm-sdk-libraries"} | device_names("rocm-sdk")


def test_unsplit_libraries_are_those_of_the_family(
    target: Interpreter, wheels: Callable[..., list[Path]], tmp_path: Path
) -> None:
    wheels(split=False, host=False)
    found = install(target, tmp_path / "dist", family="gfx950-dcgpu", targets=("gfx950",))
    assert found == {"torch", "rocm", "rocm-sdk-libraries-gfx950-dcgpu"}


@BACKENDS
@pytest.mark.parametrize(
    ("here", "packages", "wanted"),
    [
        ((), "torch", device_names("amd-torch", "rocm-sdk")),
        (("gfx950",), "torch", {"amd-torch-device-gfx950", "rocm-sdk-device-gfx950"}),
        (("gfx950",), "torch[device-gfx942]", {"amd-torch-device-gfx942", "rocm-sdk-device-gfx942"}),
        ((), "rocm[libraries,device-gfx942]", {"rocm-sdk-device-gfx942"}),
    ],
)
def test_a_persons_environment_gets_device_code(
    tmp_path: Path,
    wheels: Callable[..., list[Path]],
    monkeypatch: pytest.MonkeyPatch,
    backend: str,
    here: tuple[str, ...],
    packages: str,
    wanted: set[str],
) -> None:
    monkeypatch.setattr(user_install, "detect", lambda: here)
    group, outputs = "gfx94X-dcgpu-gfx950-dcgpu", RunOutputs(run_id="local", platform="linux")
    indexed(DirectoryStore(tmp_path / "store"), outputs, group, *wheels())
    words = ["--store", tmp_path / "store", "--from-run-id", "local", "--backend", backend]
    said = ["setup-venv", tmp_path / "venv", "--packages", packages, *words]
    assert run_ci(*said) == 0
    found = installed(tmp_path / "venv" / "bin" / "python")
    assert {one for one in found if "-device-" in one} == wanted
    assert "rocm-sdk-libraries" in found
