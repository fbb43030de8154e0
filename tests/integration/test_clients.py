"""A run's wheels as people get them: setup_venv, the installs by hand; by uv, and by pip by hand.

A place is a kind of store.
"""

import re
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from urllib.parse import unquote

import pytest

from ci.install import dependencies
from core import files, http_server, process
from core.env import installer
from core.errors import EnvironmentSetupError
from core.run import RunOutputs
from core.stores import Store
from core.stores.directory import DirectoryStore
from core.stores.location import open_store
from tests.kit.environments import create_environment, installed
from tests.kit.front_doors import run_ci
from tests.kit.recorded_runs import publish_with_pages, publish_with_records, write_rocm_sdist
from tests.kit.s3_servers import S3Server
from tests.kit.wheels import write_wheel

pytestmark = pytest.mark.nightly

OUTPUTS = RunOutputs(run_id="17", platform="linux")
GROUP = "gfx94X-dcgpu"
OTHER_FAMILY = "gfx110X-all"
ROCM_VERSION = "7.99.0+sample"
TORCH_VERSION = "2.10.0+rocm7.99.0.sample"
NEEDED_FILES = {
    f"torch-{TORCH_VERSION}",
    "triton-3.6.0.dev1",
    f"rocm_sdk_core-{ROCM_VERSION}",
    "tinydep-1.0",
    "tinier-1.5",
}
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
# What a distribution of ours requires depends on the GPU family, as it does in ROCm's own sdist.
ROCM_SETUP = f"""
import os
from setuptools import setup
family = os.environ["ROCM_SDK_TARGET_FAMILY"].lower()
setup(name="rocm", version="{ROCM_VERSION}", py_modules=["rocm"],
      extras_require={{"libraries": ["rocm-sdk-libraries-" + family + "=={ROCM_VERSION}"]}})
open("rocm.py", "w").write("FAMILY = " + repr(family))
"""


@dataclass(frozen=True)
class Requests:
    """What clients asked our servers for: method and whole path."""

    received: list[tuple[str, str]] = field(default_factory=list)

    def fetched_files(self) -> set[str]:
        """Return the files of which bytes went out, as NAME-VERSION; setuptools may be among them or not."""
        names = set()
        for method, path in self.received:
            filename = unquote(path.rpartition("/")[2])
            if method == "GET" and filename.endswith((".whl", ".tar.gz")):
                names.add("-".join(filename.removesuffix(".tar.gz").split("-")[:2]))
        return {name for name in names if not name.startswith("setuptools-")}

    def wheel_paths(self) -> list[str]:
        """Return the paths of wheels that were asked for, by any method."""
        return [path for _method, path in self.received if path.endswith(".whl")]


@pytest.fixture
def requests(monkeypatch: pytest.MonkeyPatch) -> Requests:
    """Return what is asked from now on."""
    requests = Requests()

    def note(handler: BaseHTTPRequestHandler, *_code: object) -> None:
        requests.received.append((handler.command, handler.path))

    monkeypatch.setattr(BaseHTTPRequestHandler, "log_request", note)
    return requests


@pytest.fixture(autouse=True)
def public(tmp_path: Path, setuptools_wheel: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """Serve the person's public index: others' packages, and placeholders of our names by others."""
    dist = tmp_path / "dist-public"
    run = RunOutputs(run_id="1", platform="linux")
    wheels = [
        write_wheel(dist, name="tinydep", version="1.0", requires=["tinier>=1"]),
        write_wheel(dist, name="tinydep", version="0.9"),
        write_wheel(dist, name="tinier", version="1.5"),
        write_wheel(dist, name="unused", version="1.0"),
        write_wheel(dist, name="torch", version="99.0"),
        write_wheel(dist, name="rocm", version="99.0"),
        # A wheel is taken before our sdist wherever both are seen.
        write_wheel(dist, name="rocm", version=ROCM_VERSION, files={"rocm.py": "PLACEHOLDER = True"}),
        write_wheel(dist, name="triton", version="99.0"),
        write_wheel(
            dist,
            name="rocm-sdk-core",
            version=ROCM_VERSION,
            files={"rocm_sdk_core.py": "PLACEHOLDER = True"},
        ),
        setuptools_wheel,
    ]
    store = DirectoryStore(tmp_path / "public")
    publish_with_pages(store, run, "public", *wheels)

    with http_server.served_store(store) as url:
        index = f"{url}/{run.python_index_prefix('public')}/"
        for name in ("PIP_INDEX_URL", "PIP_EXTRA_INDEX_URL"):
            monkeypatch.setenv(name, index)
        monkeypatch.setenv("PIP_FIND_LINKS", str(files.ensure_folder(tmp_path / "nothing")))
        monkeypatch.setenv("PIP_CACHE_DIR", str(tmp_path / "pip-cache"))
        monkeypatch.setenv("UV_CACHE_DIR", str(tmp_path / "uv-cache"))
        monkeypatch.delenv("PIP_NO_INDEX", raising=False)
        for name in ("RELEASE_TYPE", "GITHUB_EVENT_PATH", "GITHUB_REPOSITORY", "GITHUB_PATH", "GITHUB_ENV"):
            monkeypatch.delenv(name, raising=False)
        (tmp_path / "mirror.toml").write_text(MIRROR)
        monkeypatch.setattr(dependencies, "MIRROR_FILE", tmp_path / "mirror.toml")
        forget_configuration()
        yield index
    forget_configuration()


def forget_configuration() -> None:
    """Let the installers' settings and the mirror's data be read again."""
    installer.configured_sources.cache_clear()
    dependencies.mirror.cache_clear()


@dataclass(frozen=True)
class Run:
    """A run in a store, as ``--store`` names it."""

    location: str
    store: Store


@pytest.fixture
def run(tmp_path: Path, place: str, request: pytest.FixtureRequest) -> Run:
    """Return a run in a place: torch, what it requires, and ROCm for two families."""
    dist = tmp_path / "dist"
    requires = ["tinydep", "triton", f"rocm-sdk-core=={ROCM_VERSION}"]
    distributions = [
        write_wheel(dist, name="torch", version=TORCH_VERSION, requires=requires),
        write_wheel(dist, name="triton", version="3.6.0.dev1"),
        write_rocm_sdist(dist, ROCM_VERSION, ROCM_SETUP),
    ]
    for name in ("core", "libraries-gfx94x-dcgpu", "libraries-gfx110x-all"):
        distributions += [write_wheel(dist, name=f"rocm-sdk-{name}", version=ROCM_VERSION)]

    location = str(tmp_path / "store")
    if place == "bucket":
        server: S3Server = request.getfixturevalue("rclone")
        location = f"s3://{server.make_bucket()}"
    store = open_store(location, root=tmp_path)
    publish_with_pages(store, OUTPUTS, GROUP, *distributions)
    return Run(location=location, store=store)


def set_up_environment(
    tmp_path: Path, run: Run, *options: str, packages: str = "torch", run_id: str = "17"
) -> Path:
    """Install packages of a run into an environment; return its Python."""
    source = ("--store", run.location, "--from-run-id", run_id, "--artifact-group", GROUP, "--wait", "5")
    target = ("setup-venv", tmp_path / "venv", "--packages", packages)
    assert run_ci(*target, *source, *options) == 0
    return tmp_path / "venv" / "bin" / "python"


@pytest.mark.parametrize("place", ["folder", "bucket"])
def test_packages_come_beside_the_persons_index(tmp_path: Path, run: Run, requests: Requests) -> None:
    python = set_up_environment(tmp_path, run)

    assert installed(python) == {
        "torch": TORCH_VERSION,
        "triton": "3.6.0.dev1",
        "rocm-sdk-core": ROCM_VERSION,
        "tinydep": "1.0",
        "tinier": "1.5",
    }
    core = process.capture([python, "-c", "import rocm_sdk_core; print(dir(rocm_sdk_core))"])
    assert "PLACEHOLDER" not in core.stdout, "the same version by somebody else is not ours"
    # Metadata decided: of what is not installed no byte went out.
    assert requests.fetched_files() == NEEDED_FILES


@pytest.fixture
def started_commands(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Return the processes that are started from now on, with their arguments and variables."""
    commands: list[str] = []
    run_process: Callable[..., object] = process.run

    def note(argv: object, **options: object) -> object:
        commands.append(f"{argv} {options.get('env') or {}}")
        return run_process(argv, **options)

    monkeypatch.setattr(process, "run", note)
    return commands


@pytest.mark.parametrize("place", ["bucket"])
def test_no_installer_is_given_the_credentials_of_a_bucket(
    tmp_path: Path,
    run: Run,
    rclone: S3Server,
    started_commands: list[str],
    capfd: pytest.CaptureFixture[str],
) -> None:
    set_up_environment(tmp_path, run, packages="torch rocm")

    installs = [command for command in started_commands if "'install'" in command]
    assert len(installs) == 3
    for text in (*installs, capfd.readouterr().err):
        assert rclone.access_key not in text
        assert rclone.secret_key not in text


def mirror_dependencies(run: Run) -> None:
    """Mirror what the run's wheels require into its store."""
    assert run_ci("mirror-deps", "--store", run.location, "--from-run-id", "17") == 0


@pytest.mark.parametrize("place", ["folder", "bucket"])
def test_a_mirror_is_asked_alone(tmp_path: Path, run: Run, requests: Requests, public: str) -> None:
    mirror_dependencies(run)
    requests.received.clear()

    python = set_up_environment(tmp_path, run, packages="torch rocm[libraries]")

    versions = installed(python)
    assert versions["torch"] == TORCH_VERSION
    assert versions["tinydep"] == "1.0"
    assert versions["rocm-sdk-libraries-gfx94x-dcgpu"] == ROCM_VERSION
    public_path = public.split("/", 3)[3]
    assert [path for _method, path in requests.received if public_path in path] == []


@pytest.mark.parametrize("client", ["pip", "uv"])
@pytest.mark.parametrize("place", ["folder", "bucket"])
def test_two_indexes_alone_have_all_that_torch_and_rocm_need(tmp_path: Path, run: Run, client: str) -> None:
    mirror_dependencies(run)
    environment = create_environment(tmp_path / "venv", "pip")
    commands: dict[str, list[str | Path]] = {
        "pip": [environment.python, "-m", "pip", "install", "--pre"],
        "uv": [
            installer.uv_program(),
            "pip",
            "install",
            "--python",
            environment.python,
            "--prerelease=allow",
        ],
    }

    with http_server.served_store(run.store) as url:
        indexes = ["--index-url", f"{url}/python-deps/simple/"]
        indexes += ["--extra-index-url", f"{url}/{OUTPUTS.python_index_prefix(GROUP)}/"]
        variables = process.inherited(
            ROCM_SDK_TARGET_FAMILY=GROUP,
            PIP_CONFIG_FILE="/dev/null",
            PIP_EXTRA_INDEX_URL=None,
            PIP_FIND_LINKS=None,
            UV_NO_CONFIG="1",
        )
        process.run([*commands[client], *indexes, "rocm[libraries]", "torch"], env=variables)

    versions = installed(environment.python)
    assert versions["torch"] == TORCH_VERSION
    assert versions["rocm"] == ROCM_VERSION
    assert versions["rocm-sdk-libraries-gfx94x-dcgpu"] == ROCM_VERSION
    assert versions["tinydep"] == "1.0"


@pytest.mark.parametrize("place", ["folder"])
def test_names_a_requirement_that_has_no_wheel(
    tmp_path: Path, run: Run, capfd: pytest.CaptureFixture[str]
) -> None:
    data = MIRROR.replace('torch = ["tinydep"]', 'torch = ["tinydep", "absent"]')
    (tmp_path / "mirror.toml").write_text(data)

    exit_code = run_ci("mirror-deps", "--store", run.location, "--from-run-id", "17")

    assert exit_code == EnvironmentSetupError.exit_code
    message = capfd.readouterr().err
    assert "absent" in message
    assert "torch (mirror.toml)" in message
    assert run.store.list("python-deps") == []


@pytest.mark.parametrize("place", ["folder", "bucket"])
def test_mirrors_what_wheels_require_once(run: Run, requests: Requests) -> None:
    mirror_dependencies(run)
    mirrored = run.store.list("python-deps")
    pages = [file.key for file in mirrored if re.fullmatch(r"python-deps/simple/[^/]+/[^/]+", file.key)]
    assert {key.split("/")[2] for key in pages} == {"setuptools", "tinydep", "tinier"}

    requests.received.clear()
    mirror_dependencies(run)

    assert requests.wheel_paths() == []
    assert run.store.list("python-deps") == mirrored


@pytest.mark.parametrize("place", ["folder"])
def test_an_sdist_is_built_for_the_family_despite_any_cache(tmp_path: Path, run: Run) -> None:
    families = (GROUP, OTHER_FAMILY)

    for family in families:
        options = ("--clean", "--gpu-family", family)
        python = set_up_environment(tmp_path, run, *options, packages="rocm[libraries]")

        libraries = {name for name in installed(python) if name.startswith("rocm-sdk-libraries")}
        assert libraries == {f"rocm-sdk-libraries-{family.lower()}"}


@pytest.mark.parametrize("place", ["folder"])
def test_a_rebuilt_wheel_replaces_the_installed_one_of_its_version(tmp_path: Path, run: Run) -> None:
    local_run = RunOutputs(run_id="local", platform="linux")

    # Of another size, as byte code does not tell two files of one second apart.
    for build in ("1", "22"):
        wheel = write_wheel(
            tmp_path / "rebuilt",
            name="triton",
            version="3.6.0.dev1",
            files={"triton.py": f"BUILD = {build}"},
        )
        publish_with_records(run.store, local_run, GROUP, wheel)
        python = set_up_environment(tmp_path, run, packages="triton", run_id="local")

        printed = process.capture([python, "-c", "import triton; print(triton.BUILD)"]).stdout
        assert printed.strip() == build


@pytest.mark.parametrize(
    ("place", "has_dependencies"), [("bucket", True), ("folder", False)], ids=["all", "own wheels alone"]
)
def test_fetched_wheels_install_by_the_command_that_is_printed(
    tmp_path: Path, run: Run, capfd: pytest.CaptureFixture[str], *, has_dependencies: bool
) -> None:
    mirror_dependencies(run)
    options = ["--with-dependencies"] if has_dependencies else []
    source = ("--run-id", "17", "--store", run.location, "--packages", "torch")
    capfd.readouterr()

    assert run_ci("setup-venv", "--download", tmp_path / "my wheels", *source, *options) == 0

    (command,) = re.findall("Install them: (.*)", capfd.readouterr().err)
    environment = create_environment(tmp_path / "venv", "pip")
    with http_server.served_store(run.store) as url:
        # Without dependencies, those of others come from the person's own index.
        index = {"PIP_NO_INDEX": "1"} if has_dependencies else {"PIP_INDEX_URL": f"{url}/python-deps/simple/"}
        path = f"{environment.python.parent}:/usr/bin:/bin"
        variables = process.inherited(PATH=path, PIP_CONFIG_FILE="/dev/null", **index)
        process.run(["sh", "-c", command], env=variables)
    versions = installed(environment.python)
    assert versions["torch"] == TORCH_VERSION
    assert versions["tinydep"] == "1.0"
    assert versions["tinier"] == "1.5"
