"""A run's wheels as people get them: setup_venv, fetch_wheels, the installs by hand; by uv and by pip."""

import re
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import pytest

from ci.install import dependencies
from core import files, http, process
from core.env import installer
from core.run import RunOutputs
from core.stores import Store
from core.stores.directory import DirectoryStore
from core.stores.location import open_store
from tests.conftest import MakeWheel
from tests.kit.environments import installed
from tests.kit.front_doors import run_ci
from tests.kit.recorded_runs import indexed, recorded, rocm_sdist
from tests.kit.s3_servers import S3Server

OUTPUTS = RunOutputs(run_id="17", platform="linux")
GROUP = "gfx94X-dcgpu"
PREFIX = OUTPUTS.python_prefix(GROUP)
ROCM, TORCH, OLD = "7.99.0+sample", "2.10.0+rocm7.99.0.sample", "2.9.0+rocm7.99.0.sample"
FETCHED = {f"torch-{TORCH}", "triton-3.6.0.dev1", f"rocm_sdk_core-{ROCM}", "tinydep-1.0", "tinier-1.5"}
BACKENDS = pytest.mark.parametrize("backend", ["uv", "pip"])
STORES = pytest.mark.parametrize("place", ["directory", "rclone"])
MIRROR = f"""
prefix = "python-deps"
pythons = ["{sys.version_info[0]}.{sys.version_info[1]}"]
[platforms.linux]
uv = "x86_64-manylinux_2_28"
pip = ["manylinux_2_28_x86_64", "linux_x86_64"]
[requirements]
rocm = ["setuptools"]
torch = ["tinydep"]
"""
# what a distribution of ours requires depends on the GPU family, as it does in ROCm's own sdist
SETUP = f"""
import os
from setuptools import setup
family = os.environ["ROCM_SDK_TARGET_FAMILY"].lower()
setup(name="rocm", version="{ROCM}", py_modules=["rocm"],
      extras_require={{"libraries": ["rocm-sdk-libraries-" + family + "=={ROCM}"]}})
open("rocm.py", "w").write("FAMILY = " + repr(family))
"""


@dataclass(frozen=True)
class Asked:
    """What clients asked our servers for: method and path, whole."""

    requests: list[tuple[str, str]] = field(default_factory=list)

    def fetched(self) -> set[str]:
        """Name the files of which bytes went out, as NAME-VERSION; setuptools may be there or not."""
        names = [path.rpartition("/")[2] for method, path in self.requests if method == "GET"]
        found = {"-".join(name.split("-")[:2]) for name in names if name.endswith((".whl", ".gz"))}
        return {unquote(one).removesuffix(".tar.gz") for one in found if not one.startswith("setuptools-")}


@pytest.fixture(name="asked")
def asked_fixture(monkeypatch: pytest.MonkeyPatch) -> Asked:
    asked = Asked()

    def note(handler: Any, *_code: object) -> None:
        asked.requests.append((handler.command, handler.path))

    monkeypatch.setattr(http._Handler, "log_request", note)
    return asked


@pytest.fixture(name="public", autouse=True)
def public_fixture(
    tmp_path: Path, make_wheel: MakeWheel, setuptools_wheel: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[str]:
    """The person's public index: others' packages, and placeholders of our names by others."""
    dist = tmp_path / "dist-public"
    outputs = RunOutputs(run_id="1", platform="linux")
    wheels = [
        make_wheel(dist, "tinydep", "1.0", fields=[("Requires-Dist", "tinier>=1")]),
        make_wheel(dist, "tinydep", "0.9"),
        make_wheel(dist, "tinier", "1.5"),
        make_wheel(dist, "unused", "1.0"),
        make_wheel(dist, "torch", "99.0"),
        make_wheel(dist, "rocm", "99.0"),
        # a wheel is taken before our sdist wherever both are seen
        make_wheel(dist, "rocm", ROCM, content="PLACEHOLDER = True"),
        make_wheel(dist, "triton", "99.0"),
        make_wheel(dist, "rocm-sdk-core", ROCM, content="PLACEHOLDER = True"),
        setuptools_wheel,
    ]
    store = DirectoryStore(tmp_path / "public")
    indexed(store, outputs, "public", *wheels)
    with http.served_store(store) as url:
        simple = f"{url}/{outputs.python_index_prefix('public')}/"
        for name in ("PIP_INDEX_URL", "PIP_EXTRA_INDEX_URL"):
            monkeypatch.setenv(name, simple)
        monkeypatch.setenv("PIP_FIND_LINKS", str(files.made(tmp_path / "nothing")))
        monkeypatch.setenv("PIP_CACHE_DIR", str(tmp_path / "pip-cache"))
        monkeypatch.setenv("UV_CACHE_DIR", str(tmp_path / "uv-cache"))
        monkeypatch.delenv("PIP_NO_INDEX", raising=False)
        for name in ("RELEASE_TYPE", "GITHUB_EVENT_PATH", "GITHUB_REPOSITORY", "GITHUB_PATH", "GITHUB_ENV"):
            monkeypatch.delenv(name, raising=False)
        (tmp_path / "mirror.toml").write_text(MIRROR)
        monkeypatch.setattr(dependencies, "MIRROR_FILE", tmp_path / "mirror.toml")
        for cached in (installer.configured, dependencies.mirror):
            cached.cache_clear()
        yield simple
    for cached in (installer.configured, dependencies.mirror):
        cached.cache_clear()


@pytest.fixture(name="wheels")
def wheels_fixture(tmp_path: Path, make_wheel: MakeWheel) -> list[Path]:
    """A run's own: torch in two versions, what both require, ROCm for two families."""
    dist = tmp_path / "dist"
    requires = [("Requires-Dist", one) for one in ("tinydep", "triton", f"rocm-sdk-core=={ROCM}")]
    return [
        make_wheel(dist, "torch", TORCH, fields=requires),
        make_wheel(dist, "triton", "3.6.0.dev1"),
        make_wheel(dist, "rocm-sdk-core", ROCM),
        make_wheel(dist, "rocm-sdk-libraries-gfx94x-dcgpu", ROCM),
        make_wheel(dist, "rocm-sdk-libraries-gfx110x-all", ROCM),
        rocm_sdist(dist, ROCM, SETUP),
    ]


@dataclass(frozen=True)
class Run:
    """A run in a store, as ``--store`` names it."""

    location: str
    store: Store


@pytest.fixture(name="run")
def run_fixture(tmp_path: Path, wheels: list[Path], place: str, request: pytest.FixtureRequest) -> Run:
    location = str(tmp_path / "store")
    if place == "rclone":
        server: S3Server = request.getfixturevalue("rclone")
        location = f"s3://{server.make_bucket()}"
    store = open_store(location, root=tmp_path)
    indexed(store, OUTPUTS, GROUP, *wheels)
    return Run(location=location, store=store)


def set_up(tmp_path: Path, run: Run, backend: str, *words: str, packages: str = "torch") -> int:
    common = ("--store", run.location, "--from-run-id", "17", "--artifact-group", GROUP, "--wait", "5")
    return run_ci(
        "setup-venv", tmp_path / "venv", "--packages", packages, *common, "--backend", backend, *words
    )


@BACKENDS
@STORES
def test_packages_come_beside_the_persons_index(tmp_path: Path, run: Run, backend: str, asked: Asked) -> None:
    assert set_up(tmp_path, run, backend) == 0
    assert installed(tmp_path / "venv/bin/python") == {
        "torch": TORCH,
        "triton": "3.6.0.dev1",
        "rocm-sdk-core": ROCM,
        "tinydep": "1.0",
        "tinier": "1.5",
    }
    core = process.capture([tmp_path / "venv/bin/python", "-c", "import rocm_sdk_core as r; print(dir(r))"])
    assert "PLACEHOLDER" not in core.stdout, "the same version by somebody else is not ours"
    # metadata decided; of what is not installed no byte went out
    assert asked.fetched() == FETCHED


@BACKENDS
@pytest.mark.parametrize("place", ["rclone"])
def test_no_installer_is_given_the_credentials_of_a_bucket(
    tmp_path: Path,
    run: Run,
    backend: str,
    rclone: S3Server,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    started: list[str] = []
    real = process.run

    def noted(argv: Any, **options: Any) -> Any:
        started.append(f"{argv} {options.get('env') or {}}")
        return real(argv, **options)

    monkeypatch.setattr(process, "run", noted)
    assert set_up(tmp_path, run, backend, packages="torch rocm") == 0
    installs = [one for one in started if "'install'" in one]
    assert len(installs) == 3
    for one in (*installs, capfd.readouterr().err):
        assert rclone.access_key not in one
        assert rclone.secret_key not in one


@BACKENDS
@STORES
def test_a_mirror_is_asked_alone(tmp_path: Path, run: Run, backend: str, asked: Asked, public: str) -> None:
    assert run_ci("mirror-deps", "--store", run.location, "--from-run-id", "17") == 0
    simple = {
        one.key.split("/")[2] for one in run.store.list("python-deps/simple") if one.key.count("/") == 3
    }
    assert simple == {"setuptools", "tinydep", "tinier"}
    asked.requests.clear()
    assert set_up(tmp_path, run, backend, packages="torch rocm[libraries]") == 0
    found = installed(tmp_path / "venv/bin/python")
    assert (found["torch"], found["tinydep"], found["rocm"]) == (TORCH, "1.0", ROCM)
    assert found["rocm-sdk-libraries-gfx94x-dcgpu"] == ROCM
    public_path = public.split("/", 3)[3]
    assert [path for _, path in asked.requests if public_path in path] == []
    # a second time there is nothing to mirror, and nothing is fetched for it
    asked.requests.clear()
    before = run.store.list("python-deps")
    assert run_ci("mirror-deps", "--store", run.location, "--from-run-id", "17") == 0
    assert [path for _, path in asked.requests if path.endswith(".whl")] == []
    assert run.store.list("python-deps") == before


@BACKENDS
@pytest.mark.parametrize("place", ["directory"])
def test_an_sdist_is_built_for_the_family_despite_any_cache(tmp_path: Path, run: Run, backend: str) -> None:
    for family, other in (("gfx94X-dcgpu", "gfx110X-all"), ("gfx110X-all", "gfx94X-dcgpu")):
        words = ("--clean", "--gpu-family", family)
        assert set_up(tmp_path, run, backend, *words, packages="rocm[libraries]") == 0
        found = installed(tmp_path / "venv/bin/python")
        assert f"rocm-sdk-libraries-{family.lower()}" in found
        assert f"rocm-sdk-libraries-{other.lower()}" not in found


@BACKENDS
@pytest.mark.parametrize("place", ["directory"])
def test_a_rebuilt_wheel_of_the_same_version_replaces_the_one_that_is_installed(
    tmp_path: Path, run: Run, backend: str, make_wheel: MakeWheel
) -> None:
    local = RunOutputs(run_id="local", platform="linux")
    for content in ("BUILT = 1", "BUILT = 22"):  # of another size: one second's files share a .pyc
        one = make_wheel(tmp_path / "again", "triton", "3.6.0.dev1", content=content)
        recorded(run.store, local, GROUP, one)
        words = ("--store", run.location, "--from-run-id", "local", "--backend", backend)
        assert run_ci("setup-venv", tmp_path / "venv", "--packages", "triton", *words) == 0
        said = process.capture([tmp_path / "venv/bin/python", "-c", "import triton; print(triton.BUILT)"])
        assert said.stdout.split() == content.split()[-1:]


@pytest.mark.parametrize(
    ("place", "more"),
    [("directory", ["--with-dependencies"]), ("rclone", ["--with-dependencies"]), ("directory", [])],
)
def test_fetched_wheels_install_by_the_command_that_is_printed(
    tmp_path: Path, run: Run, capfd: pytest.CaptureFixture[str], more: list[str]
) -> None:
    """Without dependencies what others have comes from the person's own index, else from none."""
    assert run_ci("mirror-deps", "--store", run.location) == 0
    words = ("--run-id", "17", "--store", run.location, "--packages", "torch", *more)
    capfd.readouterr()
    assert run_ci("fetch-wheels", *words, "--output-dir", tmp_path / "my wheels") == 0
    (command,) = re.findall("Install them: (.*)", capfd.readouterr().err)
    process.run([sys.executable, "-m", "virtualenv", "--quiet", tmp_path / "venv"])
    settings = {"PATH": f"{tmp_path}/venv/bin:/usr/bin:/bin", "PIP_CONFIG_FILE": "/dev/null"}
    with http.served_store(run.store) as url:
        index = {"PIP_NO_INDEX": "1"} if more else {"PIP_INDEX_URL": f"{url}/python-deps/simple/"}
        process.run(["sh", "-c", command], env=process.inherited(**settings, **index))
    there = installed(tmp_path / "venv/bin/python")
    assert (there["torch"], there["tinydep"], there["tinier"]) == (TORCH, "1.0", "1.5")
