"""Strangers' packages of our names, by every way that pip and uv would find them, and by every way in."""

import json
import shutil
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from core import files, process
from core.env import Interpreter, installer, interpreter
from core.errors import CheckError, EnvironmentSetupError
from core.packages.candidates import with_digest
from core.packages.resolution import call_for_ours
from core.packages.sources import linked_source
from core.run import RunOutputs
from core.stores.directory import DirectoryStore
from core.wheel import parse_wheel_name
from tests.kit.front_doors import run_ci
from tests.kit.recorded_runs import publish_with_pages, write_rocm_sdist, write_sdist_of_files
from tests.kit.servers import served
from tests.kit.wheels import add_record, write_members, write_wheel

ROCM_VERSION = "7.99.0+sample"
TORCH_VERSION = "2.10.0+rocm7.99.0.sample"
FAMILY = "gfx94X-dcgpu"
LIBRARIES = "rocm-sdk-libraries-gfx94x-dcgpu"
OUR_NAMES = (
    "rocm",
    "Rocm",
    "rocm_sdk_core",
    "rocm.sdk.core",
    "torch",
    "triton",
    "rocm-bootstrap",
    "rocm-sdk-x",
    LIBRARIES,
)
ROCM_SETUP = f"from setuptools import setup\nsetup(name='rocm', version={ROCM_VERSION!r}, py_modules=[])\n"

# What a stranger's sdist runs, wherever it is only looked at.
TRACE = "import os, pathlib\npathlib.Path(os.environ['PIP_LOG']).with_name('ran').touch()\n"
TRACE_FILE = "ran"

# How a package of others, `helper`, brings a stranger's along -> what it requires.
REQUIREMENTS = {
    "a dependency": "rocm",
    "a higher version": "rocm-sdk-core>=90",
    "a pre-release": "triton>=100.dev0",
    "another spelling": "ROCm.SDK_core>=90",
    "an unknown name": "rocm-sdk-x",
    "an sdist": "rocm-sdk-devel",
    "an address": "triton @ {public}/triton-99.0-py3-none-any.whl",
    "a dependency's dependency": "deeper",
    "a build requirement": None,
}


def write_others_sdist(folder: Path, name: str, version: str, *requires: str, code: str = "") -> None:
    """Write an sdist that needs packages to be built, and that runs code when it is looked at."""
    backend = f"[build-system]\nrequires = {json.dumps(requires)}\nbuild-backend = 'setuptools.build_meta'\n"
    script = f"{code}from setuptools import setup\nsetup(name={name!r}, version={version!r})\n"
    write_sdist_of_files(folder, name, version, {"pyproject.toml": backend, "setup.py": script})


def write_helper(public: Path, entrance: str) -> None:
    """Put a package of others into the public folder that brings a stranger's along."""
    requirement = REQUIREMENTS[entrance]
    if requirement is None:
        write_others_sdist(public, "helper", "1.0", "setuptools", "rocm")
        return
    required = requirement.format(public=public.as_uri())
    write_wheel(public, name="deeper", version="1.0", requires=["torch>=90"])
    write_wheel(public, name="helper", version="1.0", requires=[required])


@pytest.fixture(autouse=True)
def public(tmp_path: Path, setuptools_wheel: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Return the folder of the person's public packages, which every setting of pip and uv leads to."""
    folder = tmp_path / "public"
    for name in OUR_NAMES:
        version = ROCM_VERSION if name.lower().startswith("rocm") else TORCH_VERSION
        for offered_version in (version, "99.0", "100.0.dev1"):
            modules = {f"{name.replace('-', '_')}.py": "STRANGER = True\n"}
            write_wheel(folder, name=name, version=offered_version, files=modules)
    write_others_sdist(folder, "rocm_sdk_devel", "99.0", "setuptools", code=TRACE)
    (folder / setuptools_wheel.name).write_bytes(setuptools_wheel.read_bytes())

    configuration = tmp_path / "pip.conf"
    configuration.write_text(f"[install]\nfind-links = {folder}\n[global]\nno-index = true\n")
    monkeypatch.setenv("PIP_CONFIG_FILE", str(configuration))
    monkeypatch.setenv("PIP_LOG", str(tmp_path / "pip.log"))
    for name in ("PIP_FIND_LINKS", "UV_FIND_LINKS"):
        monkeypatch.setenv(name, str(folder))
    for name in ("PIP_CACHE_DIR", "UV_CACHE_DIR"):
        monkeypatch.setenv(name, str(tmp_path / name))
    installer.configured_sources.cache_clear()
    yield folder
    installer.configured_sources.cache_clear()


@pytest.fixture
def target(tmp_path: Path) -> Interpreter:
    """Return an empty environment's interpreter."""
    process.run([installer.uv_program(), "venv", "--no-config", "--quiet", tmp_path / "env"])
    return interpreter(tmp_path / "env" / "bin" / "python")


@pytest.fixture
def our_folder(tmp_path: Path) -> Path:
    """Return a folder with the run's own: torch, and a rocm whose sdist any wheel would win over."""
    folder = tmp_path / "ours"
    write_wheel(folder, name="torch", version=TORCH_VERSION, requires=["helper", f"rocm=={ROCM_VERSION}"])
    write_wheel(folder, name="rocm-sdk-core", version=ROCM_VERSION)
    write_rocm_sdist(folder, ROCM_VERSION, ROCM_SETUP)
    return folder


def strangers_in(python: Interpreter) -> list[Path]:
    """Return the strangers' modules that an environment has."""
    return [path for path in python.purelib.glob("*.py") if "STRANGER" in path.read_text()]


def read_environment(tmp_path: Path) -> Interpreter:
    """Return the interpreter of the environment that `setup-venv` has made."""
    return interpreter.__wrapped__(tmp_path / "env" / "bin" / "python")


def installation_of_ours(tmp_path: Path, folder: Path, *names: str) -> installer.InstallerCall:
    """Return the call that installs some of our packages, by their digests."""
    source = linked_source(str(folder))
    pinned_files = [with_digest(file) for file in source.listed if file.distribution in names]
    return call_for_ours(
        tmp_path / "locks", pinned_files, installer.Sources(find_links=(str(folder),), no_index=True)
    )


# Every way by both entrances, and both orders of the calls of a build.
ENTERS_BUILD = pytest.mark.parametrize(
    ("entrance", "helper_is_first"),
    [
        ("a dependency", True),
        ("a higher version", False),
        ("a pre-release", False),
        ("another spelling", True),
        ("an unknown name", True),
        ("an sdist", True),
        ("an address", True),
        ("a dependency's dependency", True),
        ("a build requirement", True),
    ],
)
ENTERS_USERS_ENVIRONMENT = pytest.mark.parametrize("entrance", REQUIREMENTS)


@ENTERS_BUILD
@pytest.mark.nightly
def test_no_call_for_others_brings_a_stranger_into_a_builds_environment(
    tmp_path: Path,
    target: Interpreter,
    public: Path,
    our_folder: Path,
    entrance: str,
    *,
    helper_is_first: bool,
) -> None:
    write_helper(public, entrance)
    others = installer.InstallerCall(requirements=("helper",))
    core = installation_of_ours(tmp_path, our_folder, "rocm-sdk-core")
    calls = [others, core] if helper_is_first else [core, others]

    refusal = pytest.raises((EnvironmentSetupError, CheckError))
    with refusal, installer.prepared(target, calls, digest="1"):
        pytest.fail(f"{entrance} got in: {strangers_in(target)}")

    assert not (tmp_path / TRACE_FILE).exists(), "a stranger's code ran"
    assert [path for path in strangers_in(target) if path.name != "rocm_sdk_x.py"] == []


@ENTERS_USERS_ENVIRONMENT
@pytest.mark.nightly
def test_setup_venv_refuses_whoever_brings_a_stranger(
    tmp_path: Path, public: Path, our_folder: Path, entrance: str
) -> None:
    write_helper(public, entrance)
    source = ("--packages", "torch", "--find-links", our_folder, "--gpu-family", FAMILY)

    exit_code = run_ci("setup-venv", tmp_path / "env", *source)

    # Our own are excluded from the others' resolution, so that requiring a name of ours is harmless.
    is_harmless = entrance == "a dependency"
    assert (exit_code == 0) == is_harmless
    assert not (tmp_path / TRACE_FILE).exists(), "a stranger's code ran"
    if is_harmless:
        assert strangers_in(read_environment(tmp_path)) == []


# Each attack on the choice of packages, and how it ends. The person's public packages have all of our names
# in newer versions and in the same ones; what an attack adds to that, its function arranges.


def nothing_more(_public: Path, _our_folder: Path) -> None:
    """Leave it at the strangers that are there."""


def offer_a_better_tag(public: Path, _our_folder: Path) -> None:
    """Offer our version of torch with the tag that installers prefer."""
    tag = f"cp3{sys.version_info.minor}-cp3{sys.version_info.minor}-linux_x86_64"
    write_wheel(public, name="torch", version=TORCH_VERSION, tag=tag, files={"torch.py": "STRANGER = True\n"})


def require_what_our_page_lacks(_public: Path, our_folder: Path) -> None:
    """Let our torch require a package of ours that only strangers offer."""
    write_wheel(our_folder, name="torch", version=TORCH_VERSION, requires=[f"{LIBRARIES}=={ROCM_VERSION}"])


def offer_ours_for_another_python_alone(_public: Path, our_folder: Path) -> None:
    """Offer our torch for a Python that is not the environment's."""
    for wheel in our_folder.glob("torch-*.whl"):
        wheel.unlink()
    write_wheel(our_folder, name="torch", version=TORCH_VERSION, tag="cp39-cp39-linux_x86_64")


def offer_the_newest_for_another_python(_public: Path, our_folder: Path) -> None:
    """Offer a newer torch of ours, which is not for the environment's Python."""
    write_wheel(our_folder, name="torch", version="2.11.0", tag="cp39-cp39-linux_x86_64")


def offer_the_newest_without_the_global_lock(_public: Path, our_folder: Path) -> None:
    """Offer a newer torch of ours for this Python without its global lock, which is another ABI."""
    series = f"cp3{sys.version_info.minor}"
    write_wheel(our_folder, name="torch", version="2.11.0", tag=f"{series}-{series}t-linux_x86_64")


def offer_others_for_a_newer_machine(public: Path, _our_folder: Path) -> None:
    """Offer a newer helper that needs a newer C library than any machine has."""
    series = f"cp3{sys.version_info.minor}"
    tag = f"{series}-{series}-manylinux_2_99_x86_64"
    write_wheel(public, name="helper", version="2.0", tag=tag, files={"helper.py": "STRANGER = True\n"})


def require_a_name_that_we_lack(public: Path, _our_folder: Path) -> None:
    """Let a package of others require a name of ours that our source does not have."""
    write_wheel(public, name="helper", version="1.0", requires=["rocm-bootstrap"])


def require_a_name_like_ours(public: Path, _our_folder: Path) -> None:
    """Let a package of others require a name that is like ours, and that no list has."""
    write_wheel(public, name="helper", version="1.0", requires=["rocm-sdk-x"])


INSTALLS_OURS = True
REFUSES = False
ATTACKS = [
    pytest.param("torch", nothing_more, INSTALLS_OURS, id="higher, same and pre-release versions"),
    pytest.param("Torch", nothing_more, INSTALLS_OURS, marks=pytest.mark.nightly, id="another spelling"),
    pytest.param("torch", offer_a_better_tag, INSTALLS_OURS, id="better tag"),
    pytest.param(
        "torch",
        offer_the_newest_for_another_python,
        INSTALLS_OURS,
        marks=pytest.mark.nightly,
        id="newest for another Python",
    ),
    pytest.param(
        "torch",
        offer_the_newest_without_the_global_lock,
        INSTALLS_OURS,
        marks=pytest.mark.nightly,
        id="newest for another ABI",
    ),
    pytest.param(
        "torch",
        offer_others_for_a_newer_machine,
        INSTALLS_OURS,
        marks=pytest.mark.nightly,
        id="others' newest runs elsewhere",
    ),
    pytest.param("torch", require_what_our_page_lacks, REFUSES, id="our page lacks a required name"),
    pytest.param(
        "torch",
        offer_ours_for_another_python_alone,
        REFUSES,
        marks=pytest.mark.nightly,
        id="ours for another Python alone",
    ),
    pytest.param(
        "torch",
        require_a_name_that_we_lack,
        REFUSES,
        marks=pytest.mark.nightly,
        id="others require a name that we lack",
    ),
    pytest.param(
        "torch",
        require_a_name_like_ours,
        REFUSES,
        marks=pytest.mark.nightly,
        id="others require a name like ours",
    ),
    pytest.param("rocm[libraries]", nothing_more, REFUSES, id="an extra requires what our page lacks"),
]


@pytest.mark.parametrize(("package", "attack", "is_installed"), ATTACKS)
def test_an_attack_on_the_choice_installs_ours_or_nothing(
    tmp_path: Path,
    public: Path,
    our_folder: Path,
    package: str,
    attack: Callable[[Path, Path], None],
    *,
    is_installed: bool,
) -> None:
    write_wheel(public, name="helper", version="1.0")
    attack(public, our_folder)
    source = ("--packages", package, "--find-links", our_folder, "--gpu-family", FAMILY)

    exit_code = run_ci("setup-venv", tmp_path / "env", *source)

    assert (exit_code == 0) == is_installed
    assert not (tmp_path / TRACE_FILE).exists(), "a stranger's code ran"
    if is_installed:
        environment = read_environment(tmp_path)
        assert strangers_in(environment) == []
        assert (environment.purelib / f"torch-{TORCH_VERSION}.dist-info").is_dir()


def test_an_index_of_ours_that_answers_404_installs_nothing(tmp_path: Path, public: Path) -> None:
    write_wheel(public, name="helper", version="1.0")

    with served(tmp_path) as url:
        source = ("--packages", "torch", "--index-url", f"{url}/nowhere/simple/")
        assert run_ci("setup-venv", tmp_path / "env", *source) != 0

    assert not (tmp_path / "env").exists()


def test_a_file_that_was_replaced_after_its_record_is_not_installed(tmp_path: Path, public: Path) -> None:
    outputs = RunOutputs(run_id="17", platform="linux")
    store = DirectoryStore(tmp_path / "store")
    wheel = write_wheel(tmp_path / "dist", name="torch", version=TORCH_VERSION)
    publish_with_pages(store, outputs, FAMILY, wheel)
    stranger = next(public.glob(f"torch-{TORCH_VERSION}-*.whl"))
    shutil.copyfile(stranger, store.root / outputs.python_prefix(FAMILY) / wheel.name)

    source = ("--store", store.root, "--from-run-id", "17", "--artifact-group", FAMILY)
    assert run_ci("setup-venv", tmp_path / "env", "--packages", "torch", *source) != 0

    assert strangers_in(read_environment(tmp_path)) == []


@pytest.mark.nightly
def test_a_builds_sdist_is_built_by_the_locked_setuptools(
    tmp_path: Path, target: Interpreter, public: Path, our_folder: Path, setuptools_wheel: Path
) -> None:
    write_others_sdist(public, "setuptools", "999.0", code=TRACE)
    write_wheel(public, name="setuptools", version="1000.0", files={"setuptools.py": "STRANGER = True\n"})
    lock = tmp_path / "lock.txt"
    version = parse_wheel_name(setuptools_wheel.name).version
    lock.write_text(f"setuptools=={version} --hash=sha256:{files.sha256(setuptools_wheel)}\n")
    tools = installer.InstallerCall(files=(lock,), hashed=True)
    calls = [tools, installation_of_ours(tmp_path, our_folder, "rocm")]

    with installer.prepared(target, calls, digest="1"):
        assert strangers_in(target) == []

    assert not (tmp_path / TRACE_FILE).exists(), "a stranger's code ran"


def test_notices_what_others_alter_of_ours(
    tmp_path: Path, target: Interpreter, public: Path, our_folder: Path
) -> None:
    core = installation_of_ours(tmp_path, our_folder, "rocm-sdk-core")
    members = {
        "rocm_sdk_core.py": b"STRANGER = 1",
        "overlay-1.0.dist-info/METADATA": b"Metadata-Version: 2.1\nName: overlay\nVersion: 1.0\n",
        "overlay-1.0.dist-info/WHEEL": b"Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
    }
    write_members(public / "overlay-1.0-py3-none-any.whl", add_record(members))
    overlay = installer.InstallerCall(requirements=("overlay",))

    refusal = pytest.raises(CheckError, match=r"rocm_sdk_core\.py")
    with refusal, installer.prepared(target, [core, overlay], digest="1"):
        pytest.fail("it was used")


@pytest.mark.nightly
def test_setup_venv_restores_what_was_altered_since(tmp_path: Path, public: Path, our_folder: Path) -> None:
    write_wheel(public, name="helper", version="1.0")
    command = ("setup-venv", tmp_path / "env", "--packages", "torch", "--find-links", our_folder)
    assert run_ci(*command) == 0
    python = read_environment(tmp_path)
    # Not written in place: uv's cache may have a link to it.
    (python.purelib / "torch.py").unlink()
    (python.purelib / "torch.py").write_text("STRANGER = True")

    assert run_ci(*command) == 0

    assert strangers_in(python) == []


@pytest.fixture
def configure_index(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str, str], None]:
    """Return what makes an index the person's own, by one of the settings of pip and uv, and by no other."""

    def configure(setting: str, index: str) -> None:
        for name in ("PIP_FIND_LINKS", "UV_FIND_LINKS"):
            monkeypatch.delenv(name)
        # Not an empty file: without any index pip would ask the public one.
        (tmp_path / "pip.conf").write_text(f"[global]\nindex-url = {index}\n")
        if setting == "uv.toml":
            (tmp_path / "uv").mkdir()
            (tmp_path / "uv" / "uv.toml").write_text(f"index-url = '{index}'\nprerelease = 'allow'\n")
            monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
            # The tests' own isolation switches files of uv off.
            monkeypatch.delenv("UV_NO_CONFIG", raising=False)
        elif setting != "pip.conf":
            monkeypatch.setenv(setting, index)

    return configure


@pytest.mark.parametrize("setting", ["PIP_EXTRA_INDEX_URL", "UV_INDEX", "pip.conf", "uv.toml"])
@pytest.mark.nightly
def test_setup_venv_asks_no_index_that_somebody_set_for_ours(
    tmp_path: Path,
    public: Path,
    our_folder: Path,
    configure_index: Callable[[str, str], None],
    setting: str,
) -> None:
    write_helper(public, "a dependency")
    assert run_ci("index", "--directory", public) == 0

    with served(tmp_path) as url:
        configure_index(setting, f"{url}/public/simple/")
        command = ("setup-venv", tmp_path / "env", "--packages", "torch", "--find-links", our_folder)
        assert run_ci(*command) == 0

    assert strangers_in(read_environment(tmp_path)) == []


@pytest.mark.nightly
def test_setup_venv_takes_no_strangers_for_a_yanked_version(
    tmp_path: Path, public: Path, our_folder: Path, configure_index: Callable[[str, str], None]
) -> None:
    write_helper(public, "a dependency")
    (our_folder / "yanked.json").write_text(f'{{"torch=={TORCH_VERSION}": "bad"}}')
    for folder in (public, our_folder):
        assert run_ci("index", "--directory", folder) == 0

    with served(tmp_path) as url:
        configure_index("PIP_EXTRA_INDEX_URL", f"{url}/public/simple/")
        source = ("--index-url", f"{url}/ours/simple/")
        command = ("setup-venv", tmp_path / "env", *source, "--packages")
        assert run_ci(*command, "torch") != 0
        assert run_ci(*command, f"torch=={TORCH_VERSION}") == 0

    assert strangers_in(read_environment(tmp_path)) == []
