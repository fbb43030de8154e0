"""The nightly image, built by buildah on a base that debootstrap makes, with the sample's ROCm inside.

Only with ``--images``: it takes some minutes, some gigabytes, root, and a mirror of the distribution.
buildah isolates by chroot and keeps everything in a folder of the test's own, so no engine has to run.
"""

import os
import platform
import re
import shutil
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import quote

import pytest

from core import process
from core.cli.options import ROOT
from core.env.installer import configured_sources
from rocm_packaging.packages.build import BuildRequest, build
from rocm_packaging.sample import FAMILIES, ROCM_VERSION
from tests.kit.servers import served

FAMILY = "gfx94X-dcgpu"
NAME = "pytorch-therock-rocm-ci-gfx94x-dcgpu"
STORAGE = """
[storage]
driver = "{driver}"
graphroot = "{folder}/graph"
runroot = "{folder}/run"
"""


@dataclass(frozen=True, kw_only=True)
class Machine:
    """What the image is built with."""

    env: dict[str, str]
    folder: Path
    python: str

    def buildah(self, *arguments: str | Path) -> str:
        return process.capture(["buildah", *arguments], env=self.env).stdout.strip()

    def build_image(self, *options: str, check: bool = True) -> process.Completed:
        command = [sys.executable, "-m", "ci", "build-image", "--engine=buildah", *options]
        return process.capture(command, cwd=ROOT, env=self.env, check=check)

    @contextmanager
    def container(self, image: str) -> Iterator[str]:
        name = self.buildah("from", image)
        try:
            yield name
        finally:
            self.buildah("rm", name)


@pytest.fixture(scope="module", name="machine")
def machine_fixture(
    pytestconfig: pytest.Config, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Machine]:
    if not pytestconfig.getoption("--images"):
        pytest.skip("--images is not given: images are built with it only")
    absent_programs = [name for name in ("buildah", "debootstrap") if shutil.which(name) is None]
    if absent_programs or os.geteuid() != 0:
        absent = ", ".join(absent_programs) or "root"
        pytest.skip(f"images take buildah, debootstrap and root; absent: {absent}")
    folder = tmp_path_factory.mktemp("images")
    conf = STORAGE.format(folder=folder, driver=storage_driver(folder))
    (folder / "storage.conf").write_text(conf, encoding="utf-8")
    (folder / "registries.conf").write_text("", encoding="utf-8")
    env = process.inherited(
        BUILDAH_ISOLATION="chroot",
        BUILDAH_LAYERS="true",
        CONTAINERS_STORAGE_CONF=str(folder / "storage.conf"),
        CONTAINERS_REGISTRIES_CONF=str(folder / "registries.conf"),
        STORAGE_DRIVER=None,
    )
    machine = Machine(env=env, folder=folder, python=make_base(folder, env))
    yield machine
    machine.buildah("rm", "--all")
    machine.buildah("rmi", "--all", "--force")


def storage_driver(folder: Path) -> str:
    """Find how layers can be kept: vfs works everywhere, but copies everything at each step."""
    folders = ("--root", folder / "probe", "--runroot", folder / "probe-run")
    probe = process.capture(["buildah", "--storage-driver=overlay", *folders, "info"], check=False)
    return "overlay" if probe.returncode == 0 else "vfs"


def make_base(folder: Path, env: dict[str, str]) -> str:
    """Make `localhost/base`: this machine's distribution, with an older ROCm in it."""
    root = folder / "root"
    suite = platform.freedesktop_os_release()["VERSION_CODENAME"]
    process.run(["debootstrap", "--variant=minbase", "--include=python3-minimal", suite, root])
    (root / "opt" / "rocm-6.4.0").mkdir()
    (root / "opt" / "rocm").symlink_to("rocm-6.4.0")
    if cert := configured_sources().cert:
        shutil.copyfile(cert, root / "etc" / "own.crt")
        (root / "etc" / "pip.conf").write_text("[global]\ncert = /etc/own.crt\n", encoding="utf-8")
    archive = folder / "base.tar"
    process.run(["tar", "--create", "--file", archive, "--directory", root, "."])
    container = process.capture(["buildah", "from", "scratch"], env=env).stdout.strip()
    process.capture(["buildah", "add", container, archive, "/"], env=env)
    process.capture(["buildah", "commit", "--rm", container, "localhost/base"], env=env)
    python = (root / "usr" / "bin" / "python3").readlink().name.removeprefix("python")
    shutil.rmtree(root)
    archive.unlink()
    return python


@pytest.fixture(scope="module", name="page")
def page_fixture(artifacts: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The sample's ROCm packages, of several families, on a flat page."""
    packages = tmp_path_factory.mktemp("packages")
    files = build(BuildRequest(artifact_dir=artifacts, output_dir=packages, families=FAMILIES)).files
    links = [f'<a href="{quote(file.path.name)}">{file.path.name}</a>' for file in files]
    (packages / "index.html").write_text("\n".join(links), encoding="utf-8")
    with served(packages) as url:
        yield f"{url}/index.html"


@pytest.fixture(scope="module", name="options")
def options_fixture(machine: Machine, page: str) -> tuple[str, ...]:
    return (
        "--base=localhost/base",
        "--conda-installer-url=",
        f"--anaconda-python-version={machine.python}",
        f"--gpu-family={FAMILY}",
        f"--therock-nightly-index-url={page}",
        f"--rocm-sdk-target-family={FAMILY}",
    )


@pytest.fixture(scope="module", name="archive")
def archive_fixture(machine: Machine, options: tuple[str, ...]) -> Path:
    archive = machine.folder / "image.tar"
    machine.build_image(*options, "--date=20251121", f"--output={archive}")
    return archive


@pytest.mark.usefixtures("archive")
def test_the_image_holds_the_nightly_rocm_and_no_other(machine: Machine) -> None:
    with machine.container(f"{NAME}:latest") as name:
        login = machine.buildah("run", name, "--", "bash", "--login", "-c", "rocm-sdk version; which hipcc")
        script = ". /etc/profile.d/rocm-sdk.sh; echo $ROCM_PATH; rocm-sdk path --root; hipcc --version"
        sourced = machine.buildah("run", name, "--", "bash", "-c", script).splitlines()
        old = machine.buildah("run", name, "--", "find", "/opt", "-maxdepth", "1", "-name", "rocm*")
    version, hipcc = login.splitlines()
    assert version == ROCM_VERSION
    assert sourced[0] == sourced[1]
    assert hipcc.startswith("/opt/conda/envs/")
    assert len(sourced) > 2
    assert old == ""


@pytest.mark.usefixtures("archive")
def test_the_image_names_its_gpu_family(machine: Machine) -> None:
    format_ = "{{range .OCIv1.Config.Env}}{{println .}}{{end}}"
    env = machine.buildah("inspect", "--format", format_, f"{NAME}:nightly-20251121").splitlines()
    assert {
        "PYTORCH_ROCM_ARCH=gfx942",
        "PYTORCH_NIGHTLY_REF=nightly",
        "BUILD_ENVIRONMENT=therock-nightly-rocm6.4",
        "USE_THEROCK_NIGHTLY=1",
        f"ANACONDA_PYTHON_VERSION={machine.python}",
    } <= set(env)


def test_the_archive_is_the_image_for_the_next_job(machine: Machine, archive: Path) -> None:
    with machine.container(f"docker-archive:{archive}") as name:
        assert ROCM_VERSION in machine.buildah("run", name, "--", "rocm-sdk", "version")


@pytest.mark.usefixtures("archive")
def test_a_new_day_installs_rocm_anew_and_nothing_else(machine: Machine, options: tuple[str, ...]) -> None:
    printed = machine.build_image(*options, "--date=20251122").stderr

    assert re.findall(r"nightly of (\d+)", printed)[0] == "20251122"
    assert "Setting up git " not in printed
    assert "Successfully installed rocm" in printed
    assert "Successfully installed" not in machine.build_image(*options, "--date=20251122").stderr


def test_a_base_with_a_rocm_is_no_test_image(machine: Machine) -> None:
    refused = machine.build_image("--image=no-rocm", "--base=localhost/base", check=False)
    assert refused.returncode == 5
    assert "this base has a ROCm of its own" in refused.stderr


def test_names_a_base_image_that_does_not_exist(machine: Machine) -> None:
    refused = machine.build_image("--base=localhost/nothing:1", check=False)
    assert refused.returncode == 4
    assert "Could not pull the base image localhost/nothing:1" in refused.stderr
