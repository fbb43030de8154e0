"""Wheels of a run, fetched into a folder with what they require, and the command that installs them."""

from collections.abc import Sequence
from pathlib import Path

import pytest

from ci.install import download
from ci.install.devices import Devices
from ci.install.download import closure, command, dependencies, fetch
from core.errors import MissingInputError, StoreError
from core.packages.candidates import Candidate
from core.packages.groups import RunGroup, recorded_candidates
from core.run import RunOutputs, records
from core.run.records import FileRecord, Record
from core.shell import command_line
from core.stores import Store
from core.wheel.distributions import describe
from tests.kit.front_doors import run_verb
from tests.kit.runs import STARTED
from tests.kit.small_runs import GROUP, publish_wheel
from tests.kit.wheels import sha256, write_wheel

REQUIRED_BY_TORCH = ("triton==3.6", "numpy>=2", "apex; extra == 'x'")


@pytest.fixture
def group(store: Store, outputs: RunOutputs, tmp_path: Path) -> RunGroup:
    """A run with torch for two Pythons, what it requires, and something else."""
    dist = tmp_path / "dist"
    publish_wheel(
        store,
        outputs,
        dist,
        version="2.10",
        tag="cp312-cp312-linux_x86_64",
        requires=REQUIRED_BY_TORCH,
    )
    publish_wheel(
        store,
        outputs,
        dist,
        version="2.11",
        tag="cp311-cp311-linux_x86_64",
        requires=REQUIRED_BY_TORCH,
    )
    publish_wheel(store, outputs, dist, name="triton", version="3.6")
    publish_wheel(store, outputs, dist, name="apex", version="1")
    return RunGroup(store=store, outputs=outputs, name=GROUP)


@pytest.fixture
def target(tmp_path: Path) -> Path:
    """The folder that wheels are fetched into."""
    return tmp_path / "wheels"


def offer(
    name: str,
    version: str,
    *,
    filename: str = "",
    key: str = "",
) -> Candidate:
    """Return what a run offers, by default a wheel for any Python."""
    default = f"{name.replace('-', '_')}-{version}-py3-none-any.whl"
    return Candidate(name=filename or default, distribution=name, version=version, key=key)


def offer_of(group: RunGroup, distribution: str) -> Candidate:
    return next(offer for offer in recorded_candidates(group) if offer.distribution == distribution)


def releases(offers: Sequence[Candidate]) -> list[str]:
    return [f"{offer.distribution} {offer.version}" for offer in offers]


# --- Fetching files --------------------------------------------------------------------------


def test_fetches_files_with_their_content(group: RunGroup, target: Path) -> None:
    offers = recorded_candidates(group)

    assert sorted(fetch(group, offers, target)) == sorted(offer.name for offer in offers)

    for offer in offers:
        assert (target / offer.name).read_bytes() == group.store.read(str(offer.key))


def test_fetches_only_what_is_not_there_by_its_digest(group: RunGroup, target: Path) -> None:
    offers = recorded_candidates(group)
    fetch(group, offers, target)
    (target / offers[0].name).write_bytes(b"half of it")

    assert fetch(group, offers, target) == [offers[0].name]


def test_a_file_that_differs_from_its_record_never_gets_its_name(group: RunGroup, target: Path) -> None:
    torch = offer_of(group, "torch")
    stored_path = Path(group.store.url) / str(torch.key)
    # The published file may be a hard link.
    stored_path.unlink()
    stored_path.write_bytes(b"somebody else's")

    with pytest.raises(StoreError, match="record"):
        fetch(group, [torch], target)

    assert list(target.glob("*.whl")) == []
    assert list(target.glob(".*.part")) == []


def test_refuses_a_folder_with_another_file_of_the_same_version(group: RunGroup, target: Path) -> None:
    torch = offer_of(group, "torch")
    target.mkdir()
    stranger = target / f"Torch-{torch.version}-1-py3-none-any.whl"
    stranger.touch()

    # An installer would take it.
    with pytest.raises(StoreError, match="Torch-"):
        fetch(group, [torch], target)


def test_another_version_in_the_folder_does_no_harm(group: RunGroup, target: Path) -> None:
    torch = offer_of(group, "torch")
    target.mkdir()
    (target / "torch-0.1-py3-none-any.whl").touch()

    assert fetch(group, [torch], target) == [torch.name]


# --- What is required ------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("requirement", "expected"),
    [("torch==2.10", ["torch 2.10", "triton 3.6"]), ("apex", ["apex 1"])],
)
def test_a_wheel_comes_with_what_it_requires_of_the_run(
    group: RunGroup,
    requirement: str,
    expected: list[str],
) -> None:
    assert releases(closure(group, recorded_candidates(group), [requirement])) == expected


def test_all_of_rocm_comes_with_its_sdist(group: RunGroup) -> None:
    # What rocm requires is decided where it is installed.
    key = f"{group.prefix}/rocm_sdk_core-7.1-py3-none-any.whl"
    group.store.put_bytes(f"{key}.metadata", b"Name: rocm-sdk-core\n")
    offers = [
        offer("rocm", "7.1", filename="rocm-7.1.tar.gz"),
        offer("rocm", "7.2", filename="rocm-7.2.tar.gz"),
        offer("rocm-sdk-core", "7.1", key=key),
        offer_of(group, "apex"),
    ]

    assert releases(closure(group, offers, ["rocm[libraries]==7.1"])) == ["rocm 7.1", "rocm-sdk-core 7.1"]


@pytest.fixture
def rocm_offers(group: RunGroup) -> list[Candidate]:
    """A split ROCm with device code for two targets; its libraries require its core."""
    offers = [offer("rocm", "7.1", filename="rocm-7.1.tar.gz")]
    for name in ("rocm-sdk-device-gfx942", "rocm-sdk-device-gfx950", "rocm-sdk-libraries", "rocm-sdk-core"):
        requires = "Requires-Dist: rocm-sdk-core==7.1\n" if name == "rocm-sdk-libraries" else ""
        group.store.put_bytes(f"{name}.metadata", f"Name: {name}\n{requires}".encode())
        offers.append(offer(name, "7.1", key=name))
    return offers


def test_device_code_of_the_targets_comes_with_libraries(
    group: RunGroup,
    rocm_offers: list[Candidate],
) -> None:
    devices = Devices(family="gfx94X-dcgpu", targets=("gfx942",))

    selected = closure(group, rocm_offers, ["rocm-sdk-libraries==7.1"], devices)

    assert releases(selected) == ["rocm-sdk-core 7.1", "rocm-sdk-device-gfx942 7.1", "rocm-sdk-libraries 7.1"]


def test_refuses_targets_without_device_code(group: RunGroup, rocm_offers: list[Candidate]) -> None:
    devices = Devices(family="gfx94X-dcgpu", targets=("gfx1100",), exact=True)

    with pytest.raises(MissingInputError, match="rocm-sdk-device-gfx1100"):
        closure(group, rocm_offers, ["rocm[libraries]"], devices)


# --- Dependencies of others ------------------------------------------------------------------


def mirror_wheel(
    store: Store,
    folder: Path,
    name: str,
    version: str,
    *,
    tag: str = "py3-none-any",
) -> FileRecord:
    """Put a wheel into the index of dependencies, as `mirror_deps` does; return what its record says."""
    path = write_wheel(folder, name=name, version=version, tag=tag)
    file, sidecar = describe(path, key=f"python-deps/{path.name}", sha256=sha256(path))
    store.put_file(file.key, path, sha256=file.sha256, replace=False)
    store.put_bytes(f"{file.key}.metadata", sidecar or b"")
    return file


@pytest.fixture
def mirror(store: Store, tmp_path: Path) -> None:
    """An index of dependencies in the store."""
    folder = tmp_path / "deps"
    files = (
        mirror_wheel(store, folder, "numpy", "2.1", tag="cp312-cp312-manylinux_2_28_x86_64"),
        mirror_wheel(store, folder, "numpy", "2.2", tag="cp311-cp311-manylinux_2_28_x86_64"),
        mirror_wheel(store, folder, "numpy", "2.3", tag="cp312-cp312-win_amd64"),
        mirror_wheel(store, folder, "sympy", "1"),
        mirror_wheel(store, folder, "setuptools", "80"),
    )
    record = Record(
        stage="mirror_deps",
        run_id="local",
        platform="linux",
        started=STARTED,
        seconds=0,
        files=files,
    )
    store.put_bytes("python-deps/manifests/mirror_deps-1.json", records.serialize(record))


def test_refuses_a_store_without_an_index_of_dependencies(group: RunGroup) -> None:
    with pytest.raises(MissingInputError) as caught:
        dependencies(group, [offer_of(group, "torch")], "cp312")

    assert "mirror_deps" in caught.value.hint


@pytest.mark.usefixtures("mirror")
@pytest.mark.parametrize(
    ("python", "expected"), [("cp312", ["numpy 2.1"]), (None, ["numpy 2.1", "numpy 2.2"])]
)
def test_takes_dependencies_for_the_python_and_the_platform(
    group: RunGroup,
    python: str | None,
    expected: list[str],
) -> None:
    assert releases(dependencies(group, [offer_of(group, "torch")], python)) == expected


@pytest.mark.usefixtures("mirror")
def test_an_sdist_needs_setuptools(group: RunGroup) -> None:
    sdist = offer("rocm", "7.1", filename="rocm-7.1.tar.gz")

    assert releases(dependencies(group, [sdist], "cp312")) == ["setuptools 80"]


# --- The command that installs ---------------------------------------------------------------

FOLDER = Path("wheels")
PIP = "pip install --no-index --find-links wheels"

SDIST = offer("rocm", "7.1", filename="rocm-7.1.tar.gz")
CORE = offer("rocm-sdk-core", "7.1")
TORCH = (
    offer("torch", "2+rocm7.1", filename="torch-2-cp312-cp312-linux_x86_64.whl"),
    offer("torch", "2+rocm7.1", filename="torch-2-cp311-cp311-linux_x86_64.whl"),
)


def test_the_command_pins_every_package() -> None:
    assert command(FOLDER, [CORE, *TORCH]) == f"{PIP} rocm-sdk-core==7.1 torch==2+rocm7.1"


def test_the_command_pins_only_what_was_named() -> None:
    assert command(FOLDER, [CORE, *TORCH], ["torch==2+rocm7.1"]) == f"{PIP} torch==2+rocm7.1"


def test_the_command_quotes_the_folder() -> None:
    printed = command(Path("my wheels"), [CORE])

    assert printed == command_line(
        ["pip", "install", "--no-index", "--find-links", "my wheels", "rocm-sdk-core==7.1"]
    )


def test_the_command_builds_the_sdist_with_what_is_installed_first() -> None:
    printed = command(FOLDER, [SDIST, CORE, *TORCH], (), ["numpy>=2"])

    first, second = printed.split(" && ")
    assert first == command_line(["pip", "install", "setuptools", "wheel", "numpy>=2"])
    assert second == f"{PIP} --no-cache-dir --no-build-isolation rocm==7.1 torch==2+rocm7.1"


def test_the_command_builds_the_sdist_with_setuptools_of_the_folder() -> None:
    printed = command(FOLDER, [SDIST, CORE, *TORCH, offer("setuptools", "80")])

    assert printed == f"{PIP} --no-cache-dir rocm==7.1 torch==2+rocm7.1 setuptools==80"


DEVICE_OFFERS = [
    offer("rocm", "7.1"),
    offer("rocm-sdk-libraries", "7.1"),
    offer("rocm-sdk-device-gfx942", "7.1"),
    offer("torch", "2"),
    offer("amd-torch-device-gfx942", "2"),
]


def test_the_command_names_device_code_of_what_was_named() -> None:
    printed = command(FOLDER, DEVICE_OFFERS, ["torch==2"])

    assert printed == f"{PIP} torch==2 amd-torch-device-gfx942==2 rocm-sdk-device-gfx942==7.1"


def test_the_command_names_all_device_code() -> None:
    printed = command(FOLDER, DEVICE_OFFERS)

    rocm = command_line(["rocm[libraries]==7.1", "rocm-sdk-device-gfx942==7.1"])
    assert printed == f"{PIP} {rocm} torch==2 amd-torch-device-gfx942==2"


# --- The verb --------------------------------------------------------------------------------


@pytest.fixture
def run_options(group: RunGroup, target: Path, tmp_path: Path) -> list[str]:
    """The options that name the run and the folder."""
    run_id = group.outputs.run_id
    return ["--run-id", run_id, "--store", str(tmp_path / "out"), "--download", str(target)]


def test_a_dry_run_fetches_nothing(run_options: list[str], target: Path) -> None:
    assert run_verb("ci", "setup-venv", *run_options, "--packages", "torch==2.10", "--dry-run") == 0

    assert not target.exists()


def test_suggests_the_package_that_is_meant(
    run_options: list[str],
    capfd: pytest.CaptureFixture[str],
) -> None:
    exit_code = run_verb("ci", "setup-venv", *run_options, "--packages", "torch tritom")

    assert exit_code == MissingInputError.exit_code
    assert "'triton'" in capfd.readouterr().err


def test_fetches_packages_and_prints_the_command(
    run_options: list[str],
    target: Path,
    capfd: pytest.CaptureFixture[str],
) -> None:
    assert run_verb("ci", "setup-venv", *run_options, "--packages", "torch==2.10") == 0

    assert {path.name.partition("-")[0] for path in target.glob("*.whl")} == {"torch", "triton"}
    numpy = command_line(["numpy>=2"])
    assert f"pip install {numpy} && pip install --no-index --find-links" in capfd.readouterr().err


def test_fetches_the_whole_run_by_default(run_options: list[str], target: Path) -> None:
    assert run_verb("ci", "setup-venv", *run_options) == 0

    assert len(list(target.glob("*.whl"))) == 4


def test_fetches_only_what_is_for_a_python(
    run_options: list[str],
    target: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    class Target:
        tag = "cp312"

    monkeypatch.setattr(download, "base_python", Path)
    monkeypatch.setattr(download, "interpreter", lambda _: Target())

    assert run_verb("ci", "setup-venv", *run_options, "--python", "3.12") == 0

    assert [path.name.split("-")[1] for path in target.glob("torch*.whl")] == ["2.10"]
