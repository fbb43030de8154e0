"""Which packages are tested: a run's own, staged ones, or those of a source that is named."""

from collections.abc import Collection, Sequence
from pathlib import Path
from typing import Any

import pytest

from core.errors import EnvironmentSetupError, MissingInputError, RocmError
from core.packages.options import SourceOptions
from core.packages.sources import path_of
from core.run import records
from core.run.records import FileRecord
from pytorch_build.sdk import RocmOptions
from pytorch_build.test import tested_packages
from pytorch_build.test.tested_packages import TestedPackages, find_tested_packages, packages_of_run
from tests.kit.builds import LocalRun
from tests.kit.front_doors import run_ci
from tests.kit.split_packages import DEVICE_KINDS, FOUR_TARGETS, LIBRARIES, publish_split_packages
from tests.kit.wheels import write_sdist, write_wheel

FAMILY = "gfx94X-dcgpu"
ROCM_VERSION = "7.99.0.dev0+sample"


@pytest.fixture(autouse=True)
def _machine_without_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    set_gpus(monkeypatch)


def set_gpus(monkeypatch: pytest.MonkeyPatch, *targets: str) -> None:
    """Give the machine GPUs of these targets."""
    monkeypatch.setattr(tested_packages, "detect", lambda: targets)


def file_names(files: Collection[Any]) -> set[str]:
    """Return the names of files."""
    return {file.name for file in files}


def device_packages(*targets: str, kinds: Sequence[str] = DEVICE_KINDS) -> list[str]:
    """Return the names of the device packages for some targets."""
    names: list[str] = []
    for kind in kinds:
        names += [f"{kind}-device-{target}" for target in targets]
    return names


# A run's own packages


def test_wheels_of_a_run_are_those_of_its_ref_python_family_and_rocm(run: LocalRun) -> None:
    run.put_lock()
    torch = run.built("torch")
    audio = run.built("audio")
    rocm_files = run.rocm()
    run.built("torch", python="cp313")
    run.built("torch", gpu_family="cpu")
    run.rocm("7.1.0")

    packages = packages_of_run(run.context(), run.target())

    assert file_names(packages.files) == {torch.name, audio.name} | file_names(rocm_files)


def test_a_run_without_wheels_of_a_ref_names_what_builds_them(run: LocalRun) -> None:
    run.put_lock(run.lock(torch_ref="nightly"))
    run.built("torch")

    with pytest.raises(MissingInputError, match="nightly") as caught:
        packages_of_run(run.context(ref="nightly"), run.target())

    assert "nox -s build_torch" in caught.value.hint


def test_uploaded_wheels_are_of_no_ref_and_tested_from_their_page(run: LocalRun) -> None:
    torch = run.wheel("torch", "2.10.0")
    place = ("--run-id", "888", "--store", run.store.url, "--gpu-family", "cpu")
    assert run_ci("upload", "--input-dir", torch.parent, *place) == 0

    with pytest.raises(MissingInputError) as caught:
        packages_of_run(run.context("cpu", run_id="888"), run.target())

    _advice, _option, link = caught.value.hint.partition("--find-links ")
    packages = find_in_folder(run, Path(path_of(link)))
    assert "1 wheel" in caught.value.message
    assert file_names(packages.files) == {torch.name}


def test_failed_builds_have_no_wheels(run: LocalRun) -> None:
    group = "gfx950-dcgpu"
    run.built("torch", gpu_family=group)
    outputs = run.common().outputs
    (record,) = run.context(group).records
    run.store.delete(outputs.record_key(group, record.name))
    records.write(run.store, outputs, group, record.model_copy(update={"status": "failed"}))

    with pytest.raises(MissingInputError):
        packages_of_run(run.context(group), run.target())


@pytest.mark.parametrize(
    ("machine", "targets"),
    [
        pytest.param((), ("gfx1100", "gfx1101"), id="no GPU, and two built targets of four"),
        pytest.param(("gfx1101", "gfx1030"), ("gfx1101",), id="a GPU of the family"),
    ],
)
def test_device_packages_are_those_of_this_machine_or_of_the_family(
    run: LocalRun, monkeypatch: pytest.MonkeyPatch, machine: tuple[str, ...], targets: tuple[str, ...]
) -> None:
    set_gpus(monkeypatch, *machine)
    built_devices = device_packages("gfx1100", "gfx1101", "gfx942")
    publish_split_packages(run, *built_devices, "amd-torch-device-gfx11", "amd-torch-device-gfx12-0")

    packages = packages_of_run(run.context(FOUR_TARGETS), run.target())

    hosts = {"torch", "rocm", *LIBRARIES}
    devices = {*device_packages(*targets), "amd-torch-device-gfx11"}
    assert set(packages.names) == hosts | devices


@pytest.mark.parametrize(
    ("machine", "package", "names"),
    [
        pytest.param(("gfx1103",), "rocm-sdk-device-gfx1100", ["gfx1103", "gfx1100"], id="this machine's"),
        pytest.param((), "rocm-sdk-device-gfx1100", ["gfx1101, gfx1102, gfx1103"], id="the family's"),
        pytest.param((), f"rocm-sdk-libraries-{FOUR_TARGETS.lower()}", ["both layouts"], id="both layouts"),
    ],
)
def test_a_run_that_lacks_device_code_is_refused(
    run: LocalRun, monkeypatch: pytest.MonkeyPatch, machine: tuple[str, ...], package: str, names: list[str]
) -> None:
    set_gpus(monkeypatch, *machine)
    publish_split_packages(run, package)

    with pytest.raises((MissingInputError, RocmError)) as caught:
        packages_of_run(run.context(FOUR_TARGETS), run.target())

    assert caught.value.hint
    for name in names:
        assert name in caught.value.message


# A source that is named


@pytest.fixture
def links(tmp_path: Path) -> Path:
    """Return a folder with two versions of torch."""
    folder = tmp_path / "links"
    for version in ("2.10.0", "2.9.0"):
        write_wheel(folder, name="torch", version=version, requires=["numpy"])
    return folder


def find_in_folder(run: LocalRun, folder: Path, *, version: str = "") -> TestedPackages:
    """Find what is tested of a folder, in the place of the run's wheels."""
    options = SourceOptions(find_links=(str(folder),), version=version)
    return find_tested_packages(run.context("cpu"), run.target(), options, RocmOptions())


@pytest.mark.parametrize(
    ("version", "tested_version"),
    [pytest.param("", "2.10.0", id="the newest"), pytest.param("2.9.0", "2.9.0", id="a given one")],
)
def test_a_named_source_takes_the_place_of_the_run(
    run: LocalRun, links: Path, version: str, tested_version: str
) -> None:
    packages = find_in_folder(run, links, version=version)

    (torch,) = packages.files
    assert torch.version == tested_version
    assert packages.description == str(links)
    assert packages.foreign_requirements == ("numpy",)


def test_a_named_source_without_the_version_is_refused(run: LocalRun, links: Path) -> None:
    with pytest.raises(EnvironmentSetupError, match="torch==3"):
        find_in_folder(run, links, version="3")


def test_a_named_source_without_torch_is_refused(run: LocalRun, tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()

    with pytest.raises(MissingInputError, match=r"torch for Python 3\.12"):
        find_in_folder(run, tmp_path / "empty")


# What is up for testing


def build_torch_alone(run: LocalRun) -> FileRecord:
    """Put a torch into a run whose lock promises nothing else."""
    lock = run.lock()
    run.put_lock(run.lock(projects={"torch": lock.projects["torch"]}))
    return run.built("torch")


def find_staged(run: LocalRun, options: SourceOptions, *, rocm: RocmOptions | None = None) -> TestedPackages:
    """Find what is tested of the local run in staging."""
    return find_tested_packages(run.context(), run.target(), options, rocm or RocmOptions())


def test_staged_wheels_are_those_that_the_runs_lock_names(run: LocalRun) -> None:
    torch = build_torch_alone(run)
    rocm_files = run.rocm()
    run.built("torch", python="cp313")
    run.rocm("7.98.0+sample")
    options = run.stage()
    run.built("torch", run_id="local-2", version="2.11.0a0+devrocm7.99.0.dev0.sample")
    run.stage(run_id="local-2")

    packages = find_staged(run, options)

    digests = {file.name: file.sha256 for file in (torch, *rocm_files)}
    assert packages.inputs["files"] == digests


def test_a_record_says_that_wheels_were_staged(run: LocalRun) -> None:
    build_torch_alone(run)
    run.rocm()
    options = run.stage()

    staged_inputs = find_staged(run, options).inputs
    run_inputs = find_staged(run, SourceOptions()).inputs

    assert staged_inputs["files"] == run_inputs["files"]
    assert staged_inputs["source"] == f"staging ({options.distribution_store}/v2-staging/{FAMILY})"
    assert run_inputs["source"] == ""


def test_a_locked_wheel_that_is_not_staged_is_named(run: LocalRun) -> None:
    run.put_lock()
    torch = run.built("torch")
    options = run.stage()

    with pytest.raises(MissingInputError) as caught:
        find_staged(run, options)

    assert torch.version not in caught.value.message
    assert "triton 3.6.0+" in caught.value.message
    assert "nox -s stage" in caught.value.hint


def test_a_release_may_leave_out_what_nothing_is_built_on(run: LocalRun) -> None:
    run.put_lock()
    run.rocm()
    triton = run.built("triton")
    torch = run.built("torch")

    packages = find_staged(run, run.stage())

    assert {triton.name, torch.name} <= file_names(packages.files)


def test_nothing_staged_names_what_stages_it(run: LocalRun, tmp_path: Path) -> None:
    build_torch_alone(run)
    empty_store = SourceOptions(staged=True, distribution_store=str(tmp_path / "empty"))

    with pytest.raises(MissingInputError) as caught:
        find_staged(run, empty_store)

    assert f"v2-staging/{FAMILY}" in caught.value.message
    assert "nox -s stage" in caught.value.hint


def test_staged_wheels_need_a_source_lock(run: LocalRun) -> None:
    run.built("torch")
    options = run.stage()

    with pytest.raises(MissingInputError, match="source lock of sample"):
        find_staged(run, options)


def test_a_rocm_that_is_not_staged_comes_from_its_own_source(run: LocalRun, tmp_path: Path) -> None:
    build_torch_alone(run)
    options = run.stage()
    for name in ("rocm-sdk-core", "rocm-sdk-libraries", "rocm-sdk-device-gfx942"):
        write_wheel(tmp_path / "rocm", name=name, version=ROCM_VERSION)
    write_sdist(tmp_path / "rocm", name="rocm", version=ROCM_VERSION)
    rocm_source = SourceOptions(prefix="--rocm-", find_links=(str(tmp_path / "rocm"),))

    packages = find_staged(run, options, rocm=RocmOptions(source=rocm_source))

    staged_files, rocm_files = packages.source_parts
    assert [file.distribution for file in staged_files.files] == ["torch"]
    assert "rocm-sdk-device-gfx942" in {file.distribution for file in rocm_files.files}


def test_staged_device_packages_are_those_of_the_tested_targets(
    run: LocalRun, monkeypatch: pytest.MonkeyPatch
) -> None:
    set_gpus(monkeypatch, "gfx1101")
    kinds = ("rocm-sdk", "amd-torch")
    publish_split_packages(run, *device_packages("gfx1100", "gfx1101", kinds=kinds))
    run.put_lock(run.lock(projects={"torch": run.lock().projects["torch"]}))
    options = run.stage()

    packages = find_tested_packages(run.context(FOUR_TARGETS), run.target(), options, RocmOptions())

    devices = {name for name in packages.names if "-device-" in name}
    assert devices == set(device_packages("gfx1101", kinds=kinds))
