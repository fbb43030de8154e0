"""Split packages as installers see them: a torch with its device code, from pages and runs."""

from collections.abc import Sequence
from pathlib import Path

import pytest

from ci.install import devices as install_devices
from core.cli.options import Common
from core.env import Interpreter, installer, interpreter
from core.errors import CheckError
from core.packages.options import SourceOptions
from core.run import RunOutputs
from core.stores.directory import DirectoryStore
from pytorch_build.context import Context
from pytorch_build.refs.torch_refs import torch_ref
from pytorch_build.sdk import RocmOptions
from pytorch_build.test import installation
from pytorch_build.test.tested_packages import find_tested_packages
from tests.kit.environments import create_environment, installed
from tests.kit.front_doors import run_ci
from tests.kit.recorded_runs import publish_with_pages, write_rocm_sdist
from tests.kit.wheels import write_wheel

ROCM_VERSION = "7.99.0a20251120"
TORCH_VERSION = f"2.10.0+rocm{ROCM_VERSION}"
FAMILIES = ("gfx94X-dcgpu", "gfx950-dcgpu")
FAMILY = ";".join(FAMILIES)
TARGETS = ("gfx942", "gfx950")
# Upstream's split sdist refuses the name of a family.
ROCM_SETUP = """
import os
from setuptools import setup
known = {known}
family = os.environ.get("ROCM_SDK_TARGET_FAMILY", known[0])
if family not in known:
    raise ValueError(f"{{family}} is not available")
libraries = "rocm-sdk-libraries" + ("" if {is_split} else "-" + family.lower()) + "=={version}"
setup(name="rocm", version="{version}", py_modules=["rocm"], extras_require={{"libraries": [libraries]}})
open("rocm.py", "w").write("")
"""


def device_packages(*kinds: str) -> set[str]:
    """Return the names of the packages of device code of some kinds, for every target."""
    return {f"{kind}-device-{target}" for kind in kinds for target in TARGETS}


def write_split_rocm(folder: Path) -> list[Path]:
    """Write ROCm's packages with device code in packages of its own."""
    setup = ROCM_SETUP.format(known=TARGETS, is_split=True, version=ROCM_VERSION)
    names = ["rocm-sdk-libraries", *sorted(device_packages("rocm-sdk"))]
    wheels = [write_wheel(folder, name=name, version=ROCM_VERSION) for name in names]
    return [write_rocm_sdist(folder, ROCM_VERSION, setup), *wheels]


def write_unsplit_rocm(folder: Path) -> list[Path]:
    """Write ROCm's packages with libraries of each family."""
    setup = ROCM_SETUP.format(known=FAMILIES, is_split=False, version=ROCM_VERSION)
    names = [f"rocm-sdk-libraries-{family.lower()}" for family in FAMILIES]
    wheels = [write_wheel(folder, name=name, version=ROCM_VERSION) for name in names]
    return [write_rocm_sdist(folder, ROCM_VERSION, setup), *wheels]


def write_fat_torch(folder: Path) -> list[Path]:
    """Write a torch that has its device code in itself."""
    return [
        write_wheel(
            folder,
            version=TORCH_VERSION,
            requires=[f"rocm[libraries]=={ROCM_VERSION}"],
        )
    ]


def write_split_torch(folder: Path, *, has_bootstrap: bool = False) -> list[Path]:
    """Write a host wheel of torch and its device code, as our or (with bootstrap) TheRock's splitter does."""
    requires = [f"rocm[libraries]=={ROCM_VERSION}"]
    wheels = []
    if has_bootstrap:
        requires.append("rocm-bootstrap")
        wheels.append(write_wheel(folder, name="rocm-bootstrap", version="0.1.0"))

    extras = []
    for target in TARGETS:
        extra = f"device-{target}"
        extras.append(("Provides-Extra", extra))
        requires.append(f"amd-torch-{extra}=={TORCH_VERSION}; extra == '{extra}'")
        needed = [f"torch=={TORCH_VERSION}", f"rocm-sdk-{extra}=={ROCM_VERSION}"]
        wheels.append(
            write_wheel(
                folder,
                name=f"amd-torch-{extra}",
                version=TORCH_VERSION,
                requires=needed,
            )
        )
    host_wheel = write_wheel(folder, version=TORCH_VERSION, requires=requires, metadata_fields=extras)
    return [host_wheel, *wheels]


@pytest.fixture
def target(tmp_path: Path) -> Interpreter:
    """Return an empty environment's interpreter."""
    environment = create_environment(tmp_path / "env", "pip")
    return interpreter.__wrapped__(environment.python)


@pytest.fixture
def dist(tmp_path: Path) -> Path:
    """Return the folder of the packages."""
    return tmp_path / "dist"


def install(
    python: Interpreter,
    dist: Path,
    *,
    family: str = FAMILY,
    targets: Sequence[str] = TARGETS,
) -> set[str]:
    """Install torch from a folder as `test_torch` does; return what was installed."""
    common = Common(root=dist.parent)
    context = Context(
        common=common,
        ref=torch_ref("sample"),
        gpu_family=family,
        gpu_targets=tuple(targets),
    )
    source = SourceOptions(find_links=(str(dist),), version=TORCH_VERSION)
    packages = find_tested_packages(context, python, source, RocmOptions())
    tools = installer.InstallerCall(requirements=("setuptools",))

    with (
        installation.plan_installation(context, python, packages, [tools]) as calls,
        installer.prepared(python, calls, digest="x", force=True),
    ):
        return {*installed(python.executable)}


@pytest.mark.parametrize("has_bootstrap", [True, False])
def test_a_host_wheel_is_installed_with_its_device_code(
    target: Interpreter, dist: Path, *, has_bootstrap: bool
) -> None:
    write_split_rocm(dist)
    write_split_torch(dist, has_bootstrap=has_bootstrap)

    names = install(target, dist)

    host = {"torch", "rocm", "rocm-sdk-libraries"}
    if has_bootstrap:
        host.add("rocm-bootstrap")
    assert names == host | device_packages("amd-torch", "rocm-sdk")
    installation.require_device_code(target, TARGETS)


def test_requires_the_device_code_of_every_target(target: Interpreter, dist: Path) -> None:
    write_split_rocm(dist)
    write_split_torch(dist)
    install(target, dist)
    (info,) = target.purelib.glob("amd_torch_device_gfx950-*.dist-info")
    info.rename(info.with_name("renamed"))

    with pytest.raises(CheckError, match="amd-torch-device-gfx950"):
        installation.require_device_code(target, TARGETS)


def test_a_fat_wheel_gets_rocms_device_code_from_split_packages(target: Interpreter, dist: Path) -> None:
    write_split_rocm(dist)
    write_fat_torch(dist)

    names = install(target, dist)

    assert names == {"torch", "rocm", "rocm-sdk-libraries"} | device_packages("rocm-sdk")


def test_unsplit_libraries_are_those_of_the_family(target: Interpreter, dist: Path) -> None:
    write_unsplit_rocm(dist)
    write_fat_torch(dist)

    names = install(target, dist, family="gfx950-dcgpu", targets=("gfx950",))

    assert names == {"torch", "rocm", "rocm-sdk-libraries-gfx950-dcgpu"}


@pytest.mark.parametrize(
    ("machine_targets", "packages", "expected"),
    [
        pytest.param(
            (), "torch", device_packages("amd-torch", "rocm-sdk"), marks=pytest.mark.nightly, id="no GPU"
        ),
        pytest.param(("gfx950",), "torch", {"amd-torch-device-gfx950", "rocm-sdk-device-gfx950"}, id="a GPU"),
        pytest.param(
            ("gfx950",),
            "torch[device-gfx942]",
            {"amd-torch-device-gfx942", "rocm-sdk-device-gfx942"},
            marks=pytest.mark.nightly,
            id="another GPU's extra",
        ),
        pytest.param(
            (),
            "rocm[libraries,device-gfx942]",
            {"rocm-sdk-device-gfx942"},
            marks=pytest.mark.nightly,
            id="ROCm alone",
        ),
    ],
)
def test_a_persons_environment_gets_device_code(
    tmp_path: Path,
    dist: Path,
    monkeypatch: pytest.MonkeyPatch,
    machine_targets: tuple[str, ...],
    packages: str,
    expected: set[str],
) -> None:
    monkeypatch.setattr(install_devices, "detect", lambda: machine_targets)
    run = RunOutputs(run_id="local", platform="linux")
    distributions = [*write_split_rocm(dist), *write_split_torch(dist)]
    publish_with_pages(DirectoryStore(tmp_path / "store"), run, "-".join(FAMILIES), *distributions)

    source = ("--store", tmp_path / "store", "--from-run-id", "local")
    assert run_ci("setup-venv", tmp_path / "venv", "--packages", packages, *source) == 0

    names = installed(tmp_path / "venv" / "bin" / "python")
    assert {name for name in names if "-device-" in name} == expected
    assert "rocm-sdk-libraries" in names
