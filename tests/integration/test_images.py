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
IMAGE = "pytorch-therock-rocm-ci-gfx94x-dcgpu"
STORAGE = """
[storage]
driver = "{driver}"
graphroot = "{folder}/graph"
runroot = "{folder}/run"
"""


@dataclass(frozen=True, kw_only=True)
class Machine:
    """What images are built with: buildah's variables, a folder for all that it keeps, the base's Python."""

    env: dict[str, str]
    folder: Path
    python: str

    def buildah(self, *arguments: str | Path) -> str:
        """Run buildah; return what it prints."""
        completed = process.capture(["buildah", *arguments], env=self.env)
        return completed.stdout.strip()

    def run_in(self, container: str, *command: str) -> str:
        """Run a command in a container; return what it prints."""
        return self.buildah("run", container, "--", *command)

    def build_image(self, *options: str, check: bool = True) -> process.Completed:
        """Run the front door that builds an image."""
        command = [sys.executable, "-m", "ci", "build-image", "--engine=buildah", *options]
        return process.capture(command, cwd=ROOT, env=self.env, check=check)

    @contextmanager
    def container(self, image: str) -> Iterator[str]:
        """Give a container of an image, which is deleted at the end."""
        container = self.buildah("from", image)
        try:
            yield container
        finally:
            self.buildah("rm", container)


@pytest.fixture(scope="module", name="machine")
def machine_fixture(
    pytestconfig: pytest.Config, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Machine]:
    skip_unless_images_are_built(pytestconfig)
    folder = tmp_path_factory.mktemp("images")
    storage = STORAGE.format(folder=folder, driver=storage_driver(folder))
    (folder / "storage.conf").write_text(storage, encoding="utf-8")
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


def skip_unless_images_are_built(config: pytest.Config) -> None:
    """Skip the test where images are not asked for, or cannot be built."""
    if not config.getoption("--images"):
        pytest.skip("--images is not given: images are built with it only")

    absent_programs = [name for name in ("buildah", "debootstrap") if shutil.which(name) is None]
    if absent_programs or os.geteuid() != 0:
        absent = ", ".join(absent_programs) or "root"
        pytest.skip(f"images take buildah, debootstrap and root; absent: {absent}")


def storage_driver(folder: Path) -> str:
    """Find how layers can be kept: vfs works everywhere, but copies everything at each step."""
    folders = ("--root", folder / "probe", "--runroot", folder / "probe-run")
    probe = process.capture(["buildah", "--storage-driver=overlay", *folders, "info"], check=False)
    return "overlay" if probe.returncode == 0 else "vfs"


def make_base(folder: Path, env: dict[str, str]) -> str:
    """Make `localhost/base`, this machine's distribution with an older ROCm; return its Python's version."""
    root = folder / "root"
    suite = platform.freedesktop_os_release()["VERSION_CODENAME"]
    process.run(["debootstrap", "--variant=minbase", "--include=python3-minimal", suite, root])
    (root / "opt" / "rocm-6.4.0").mkdir()
    (root / "opt" / "rocm").symlink_to("rocm-6.4.0")
    copy_certificate(root / "etc")

    archive = folder / "base.tar"
    process.run(["tar", "--create", "--file", archive, "--directory", root, "."])
    container = process.capture(["buildah", "from", "scratch"], env=env).stdout.strip()
    process.capture(["buildah", "add", container, archive, "/"], env=env)
    process.capture(["buildah", "commit", "--rm", container, "localhost/base"], env=env)

    python = (root / "usr" / "bin" / "python3").readlink()
    shutil.rmtree(root)
    archive.unlink()
    return python.name.removeprefix("python")


def copy_certificate(etc: Path) -> None:
    """Let pip in the image trust what this machine's configuration trusts."""
    certificate = configured_sources().cert
    if certificate:
        shutil.copyfile(certificate, etc / "own.crt")
        (etc / "pip.conf").write_text("[global]\ncert = /etc/own.crt\n", encoding="utf-8")


@pytest.fixture(scope="module", name="page")
def page_fixture(artifacts: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Serve a flat page of the sample's ROCm packages, for several families; return its address."""
    packages = tmp_path_factory.mktemp("packages")
    request = BuildRequest(artifact_dir=artifacts, output_dir=packages, families=FAMILIES)
    links = []
    for file in build(request).files:
        name = file.path.name
        links.append(f'<a href="{quote(name)}">{name}</a>')
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
def test_a_login_shell_uses_the_nightly_rocm(machine: Machine) -> None:
    with machine.container(f"{IMAGE}:latest") as container:
        printed = machine.run_in(container, "bash", "--login", "-c", "rocm-sdk version; which hipcc")

    version, hipcc = printed.splitlines()
    assert version == ROCM_VERSION
    assert hipcc.startswith("/opt/conda/envs/")


@pytest.mark.usefixtures("archive")
def test_a_shell_finds_rocm_by_the_profile(machine: Machine) -> None:
    script = ". /etc/profile.d/rocm-sdk.sh; echo $ROCM_PATH; rocm-sdk path --root; hipcc --version"

    with machine.container(f"{IMAGE}:latest") as container:
        printed = machine.run_in(container, "bash", "-c", script)

    rocm_path, root, *version_of_hipcc = printed.splitlines()
    assert rocm_path == root
    assert version_of_hipcc


@pytest.mark.usefixtures("archive")
def test_the_image_holds_no_other_rocm(machine: Machine) -> None:
    with machine.container(f"{IMAGE}:latest") as container:
        older_rocms = machine.run_in(container, "find", "/opt", "-maxdepth", "1", "-name", "rocm*")

    assert older_rocms == ""


@pytest.mark.usefixtures("archive")
def test_the_image_names_its_gpu_family(machine: Machine) -> None:
    variables = machine.buildah(
        "inspect",
        "--format",
        "{{range .OCIv1.Config.Env}}{{println .}}{{end}}",
        f"{IMAGE}:nightly-20251121",
    )

    assert set(variables.splitlines()) >= {
        "PYTORCH_ROCM_ARCH=gfx942",
        "PYTORCH_NIGHTLY_REF=nightly",
        "BUILD_ENVIRONMENT=therock-nightly-rocm6.4",
        "USE_THEROCK_NIGHTLY=1",
        f"ANACONDA_PYTHON_VERSION={machine.python}",
    }


def test_the_archive_is_the_image_for_the_next_job(machine: Machine, archive: Path) -> None:
    with machine.container(f"docker-archive:{archive}") as container:
        version = machine.run_in(container, "rocm-sdk", "version")

    assert ROCM_VERSION in version


@pytest.mark.usefixtures("archive")
def test_a_new_day_installs_rocm_anew_and_nothing_else(machine: Machine, options: tuple[str, ...]) -> None:
    printed = machine.build_image(*options, "--date=20251122").stderr
    printed_again = machine.build_image(*options, "--date=20251122").stderr

    assert re.findall(r"nightly of (\d+)", printed)[0] == "20251122"
    assert "Setting up git " not in printed
    assert "Successfully installed rocm" in printed
    assert "Successfully installed" not in printed_again


def test_a_base_with_a_rocm_is_no_test_image(machine: Machine) -> None:
    refused = machine.build_image("--image=no-rocm", "--base=localhost/base", check=False)

    assert refused.returncode == 5
    assert "this base has a ROCm of its own" in refused.stderr


def test_names_a_base_image_that_does_not_exist(machine: Machine) -> None:
    refused = machine.build_image("--base=localhost/nothing:1", check=False)

    assert refused.returncode == 4
    assert "Could not pull the base image localhost/nothing:1" in refused.stderr
