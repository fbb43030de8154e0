"""The sample's torch and ROCm, installed from a run's index and the index of dependencies alone."""

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from ci.install import dependencies
from core import http_server, process
from core.env import installer
from core.errors import EnvironmentSetupError
from core.run import RunOutputs
from core.stores import Store
from core.stores.location import open_store
from tests.kit.clones import FAMILY, Clone
from tests.kit.environments import Venv, create_environment, installed
from tests.kit.front_doors import run_ci
from tests.kit.s3_servers import S3Server

pytestmark = pytest.mark.nightly

OUTPUTS = RunOutputs(run_id="local", platform="linux")
# ci/mirror.toml for this Python on Linux alone.
MIRROR = f"""
prefix = "python-deps"
components = true
pythons = ["{sys.version_info[0]}.{sys.version_info[1]}"]
[platforms.linux]
uv = "x86_64-manylinux_2_28"
pip = ["manylinux_2_28_x86_64", "manylinux_2_17_x86_64", "manylinux2014_x86_64", "linux_x86_64"]
[requirements]
rocm = ["setuptools", "wheel"]
"""
# What torch requires of others, and what builds the sdist of rocm.
MIRRORED_PACKAGES = {"typing-extensions", "sympy", "networkx", "jinja2", "setuptools", "wheel"}


def use_mirror_data(folder: Path, text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let `mirror_deps` read other data than ci/mirror.toml."""
    file = folder / "mirror.toml"
    file.write_text(text)
    monkeypatch.setattr(dependencies, "MIRROR_FILE", file)
    dependencies.mirror.cache_clear()


@pytest.fixture(autouse=True)
def _mirror_for_this_python(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    use_mirror_data(tmp_path, MIRROR, monkeypatch)
    yield
    dependencies.mirror.cache_clear()


@pytest.fixture
def location(place: str, sample_clone: Clone, request: pytest.FixtureRequest) -> str:
    """Return where the sample's run lies: in its folder, or in a bucket that it was uploaded to."""
    folder = str(sample_clone.path / "out")
    if place != "bucket":
        return folder

    server: S3Server = request.getfixturevalue("rclone")
    bucket = f"s3://{server.make_bucket()}"
    assert run_ci("upload", "--from", folder, "--store", bucket) == 0
    return bucket


@contextmanager
def address_of(store: Store, location: str, place: str) -> Iterator[str]:
    """Yield the address of a store's files: of a folder itself, else of a server in front of the store."""
    if place == "folder":
        yield Path(location).as_uri()
        return

    with http_server.served_store(store) as url:
        yield url


def install(environment: Venv, client: str, address: str) -> None:
    """Install torch and ROCm with its compilers from the two indexes, and from nowhere else."""
    python = environment.python
    command: list[str | Path]
    if client == "pip":
        command = [python, "-m", "pip", "install", "--isolated", "--pre"]
    else:
        command = [installer.uv_program(), "pip", "install", "--no-config", "--prerelease=allow"]
        command += ["--python", python]
    command += ["--index-url", f"{address}/python-deps/simple/"]
    command += ["--extra-index-url", f"{address}/{OUTPUTS.python_index_prefix(FAMILY)}/"]
    command += ["rocm[libraries,devel]", "torch"]

    variables = process.inherited(
        # The sdist of rocm reads for which GPUs its libraries are.
        ROCM_SDK_TARGET_FAMILY=FAMILY,
        # pip reads these also where it is isolated.
        PIP_CONFIG_FILE="/dev/null",
        PIP_CONSTRAINT=None,
        PIP_FIND_LINKS=None,
    )
    process.run(command, env=variables)


@pytest.mark.parametrize("client", ["pip", "uv"])
@pytest.mark.parametrize("place", ["folder", "http", "bucket"])
def test_two_indexes_alone_install_torch_and_rocm_with_its_compilers(
    tmp_path: Path, location: str, place: str, client: str
) -> None:
    assert run_ci("mirror-deps", "--store", location, "--from-run-id", "local") == 0
    environment = create_environment(tmp_path / "venv", "pip")
    store = open_store(location, root=tmp_path)

    with address_of(store, location, place) as address:
        install(environment, client, address)

    packages = installed(environment.python)
    assert "sample" in packages["torch"]
    assert {"rocm", "rocm-sdk-core", "rocm-sdk-libraries", "rocm-sdk-devel"} <= set(packages)
    mirrored_pages = {file.key.split("/")[2] for file in store.list("python-deps/simple/")}
    assert mirrored_pages >= MIRRORED_PACKAGES
    assert "torch" not in mirrored_pages
    process.run([environment.python, "-c", "import torch"])


@pytest.mark.parametrize("place", ["folder"])
def test_names_a_requirement_without_a_wheel_for_the_platform(
    tmp_path: Path, location: str, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    # pywin32 has wheels for Windows alone.
    use_mirror_data(tmp_path, f'{MIRROR}windows = ["pywin32"]\n', monkeypatch)

    exit_code = run_ci("mirror-deps", "--store", location, "--from-run-id", "local")

    assert exit_code == EnvironmentSetupError.exit_code
    message = capfd.readouterr().err
    assert "pywin32" in message
    assert "windows (mirror.toml)" in message
    assert open_store(location, root=tmp_path).list("python-deps") == []
