import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from core import process
from core.env import installer
from core.env.installer import Install
from core.errors import CheckError, EnvironmentSetupError, MissingInputError, RocmError
from core.http import fetch
from core.packages import resolution
from core.packages.candidates import Candidate
from core.packages.options import SourceOptions
from core.packages.resolution import ResolvedPackage
from core.run import records
from core.run.records import FileRecord
from pytorch_build.context import Context
from pytorch_build.sdk import RocmOptions
from pytorch_build.test import installation
from pytorch_build.test.gpus import Assignment
from pytorch_build.test.installation import Tested, amd_targets, planned, require_device_code, wheels_of
from tests.kit.builds import LocalRun
from tests.kit.wheels import write_sdist, write_wheel

FAMILY = "gfx94X-dcgpu"
FOUR_TARGETS = "gfx110X-all"
ROCM_VERSION = "7.99.0.dev0+sample"
LIBRARIES = ("rocm-sdk-core", "rocm-sdk-libraries", "rocm-sdk-devel")
DEVICE_KINDS = ("rocm-sdk", "amd-torch", "amd-torchvision")

NUMPY_WHEEL = Candidate(
    name="numpy.whl", distribution="numpy", version="2", url="https://invalid/numpy.whl", sha256="b" * 64
)
NUMPY = ResolvedPackage(name="numpy", version="2", files=(NUMPY_WHEEL,))


@pytest.fixture(autouse=True)
def _machine_without_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(installation, "detect", lambda: ())


@pytest.fixture
def questions(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """Answer every question for other people's packages with numpy; return the questions."""
    asked: list[Any] = []

    def resolve(question: Any) -> tuple[ResolvedPackage, ...]:
        asked.append(question)
        return (NUMPY,)

    monkeypatch.setattr(resolution, "resolve", resolve)
    return asked


def file_names(files: Sequence[FileRecord]) -> set[str]:
    """Return the names of files."""
    return {file.name for file in files}


def test_wheels_of_a_run_are_those_of_its_ref_python_family_and_rocm(run: LocalRun) -> None:
    run.put_lock()
    torch = run.built("torch")
    audio = run.built("audio")
    rocm_files = run.rocm()
    run.built("torch", python="cp313")
    run.built("torch", gpu_family="cpu")
    run.rocm("7.1.0")

    wheels = wheels_of(run.context(), run.target())

    assert file_names(wheels) == {torch.name, audio.name} | file_names(rocm_files)


def test_a_run_without_wheels_of_a_ref_names_what_builds_them(run: LocalRun) -> None:
    run.put_lock(run.lock(torch_ref="nightly"))
    run.built("torch")

    with pytest.raises(MissingInputError, match="nightly") as caught:
        wheels_of(run.context(ref="nightly"), run.target())

    assert "nox -s build_torch" in caught.value.hint


def test_failed_builds_have_no_wheels(run: LocalRun) -> None:
    group = "gfx950-dcgpu"
    torch = run.built("torch", gpu_family=group)
    (record,) = run.context(group).records
    failed_record = record.model_copy(update={"status": "failed"})
    run.store.delete(run.common().outputs.record_key(group, record.name))
    records.write(run.store, run.common().outputs, group, failed_record)

    with pytest.raises(MissingInputError):
        wheels_of(run.context(group), run.target())

    assert torch.distribution == "torch"


def publish_split_packages(run: LocalRun, *devices: str) -> None:
    """Put split packages of ROCm and a torch into the run, with device packages of these names."""
    run.put_lock()
    torch = run.built("torch", gpu_family=FOUR_TARGETS)

    rocm_devices = [name for name in devices if name.startswith("rocm")]
    rocm_paths = [
        run.wheel(name, ROCM_VERSION, "py3-none-linux_x86_64") for name in (*LIBRARIES, *rocm_devices)
    ]
    rocm_paths.append(run.sdist("rocm", ROCM_VERSION))
    torch_devices = [run.wheel(name, torch.version) for name in devices if name not in rocm_devices]

    rocm_files = [run.publish(path, group=FOUR_TARGETS) for path in rocm_paths]
    torch_files = [run.publish(path, group=FOUR_TARGETS) for path in torch_devices]
    cell: dict[str, Any] = {"torch_ref": "sample", "python": "cp312", "gpu_family": FOUR_TARGETS}
    run.record("build_torch", torch, *torch_files, group=FOUR_TARGETS, **cell)
    run.record("build_rocm", *rocm_files, group=FOUR_TARGETS)


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
    monkeypatch.setattr(installation, "detect", lambda: machine)
    built = [
        f"{kind}-device-{target}" for kind in DEVICE_KINDS for target in ("gfx1100", "gfx1101", "gfx942")
    ]
    publish_split_packages(run, *built, "amd-torch-device-gfx11", "amd-torch-device-gfx12-0")

    wheels = wheels_of(run.context(FOUR_TARGETS), run.target())
    _tools, ours = planned_calls(run, run.context(FOUR_TARGETS))

    devices = {f"{kind}-device-{target}" for kind in DEVICE_KINDS for target in targets}
    assert {wheel.distribution for wheel in wheels} == {
        *("torch", "rocm", *LIBRARIES),
        *devices,
        "amd-torch-device-gfx11",
    }
    assert dict(ours.env) == {"ROCM_SDK_TARGET_FAMILY": targets[0]}


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
    monkeypatch.setattr(installation, "detect", lambda: machine)
    publish_split_packages(run, package)

    with pytest.raises((MissingInputError, RocmError)) as caught:
        wheels_of(run.context(FOUR_TARGETS), run.target())

    assert caught.value.hint
    for name in names:
        assert name in caught.value.message


def planned_calls(run: LocalRun, context: Context, *, find_links: tuple[str, ...] = ()) -> list[Install]:
    """Plan the installation of a run's wheels; ROCm may come from folders."""
    rocm = RocmOptions(source=SourceOptions(prefix="--rocm-", find_links=find_links))
    tested = installation.tested(context, run.target(), SourceOptions(), rocm)
    tools = [Install(requirements=("pytest",))]
    with planned(context, run.target(), tested, tools=tools) as (calls, _digest):
        return list(calls)


def publish_audio(run: LocalRun, *, requires: Sequence[str]) -> None:
    """Put an audio into the run, beside torch and ROCm."""
    run.put_lock()
    run.built("torch")
    run.rocm()
    audio = run.publish(run.wheel("torchaudio", "2.10.0", requires=requires))
    run.record("build_audio", audio, torch_ref="sample", python="cp312", gpu_family=FAMILY)


@pytest.mark.usefixtures("questions")
def test_recorded_files_are_installed_by_digest_alone(run: LocalRun) -> None:
    publish_audio(run, requires=["numpy>=2"])

    tools, _others, ours = planned_calls(run, run.context())

    wheels = wheels_of(run.context(), run.target())
    pins = [f"{wheel.distribution}=={wheel.version} --hash=sha256:{wheel.sha256}" for wheel in wheels]
    assert tools.requirements == ("pytest",)
    assert ours.files[0].read_text().splitlines() == sorted(pins)
    assert ours.hashed
    assert not ours.dependencies


@pytest.mark.usefixtures("questions")
def test_recorded_files_come_from_the_run_alone(run: LocalRun) -> None:
    publish_audio(run, requires=["numpy>=2"])

    *_, ours = planned_calls(run, run.context())

    assert ours.sources is not None
    assert ours.sources.no_index
    assert ours.sources.find_links[0].startswith("http://127.0.0.1:")
    assert ours.config_settings == (f"gpu-family={FAMILY}",)


def test_other_peoples_packages_come_from_the_users_indexes(run: LocalRun, questions: list[Any]) -> None:
    publish_audio(run, requires=["numpy>=2", "torch==2.10.0", "x; extra == 'y'"])

    _tools, others, _ours = planned_calls(run, run.context())

    assert others.files[0].read_text() == f"numpy==2 --hash=sha256:{'b' * 64}\n"
    assert others.sources is None
    assert questions[0].requirements == ("numpy>=2",)
    assert {"torch", "rocm", "rocm-sdk-core"} < set(questions[0].excludes)


@pytest.mark.parametrize(
    ("layout", "packages", "family"),
    [
        pytest.param("split", ["rocm-sdk-libraries", "rocm-sdk-device-gfx942"], "gfx942", id="split"),
        pytest.param("unsplit", [f"rocm-sdk-libraries-{FAMILY.lower()}"], FAMILY, id="unsplit"),
    ],
)
def test_rocm_from_elsewhere_has_the_layout_that_torch_was_built_with(
    run: LocalRun, tmp_path: Path, layout: str, packages: list[str], family: str
) -> None:
    run.put_lock()
    cell: dict[str, Any] = {"torch_ref": "sample", "python": "cp312"}
    rocm_inputs = {"rocm": ["7.1.0", layout, "https://host/whl-next/"]}
    run.record("build_torch", run.built("torch"), inputs=rocm_inputs, **cell)
    for name in ("rocm-sdk-core", *packages):
        write_wheel(tmp_path / "rocm", name=name, version="7.1.0")
    write_sdist(tmp_path / "rocm", name="rocm", version="7.1.0")

    _tools, ours, rocm = planned_calls(run, run.context(), find_links=(str(tmp_path / "rocm"),))

    pins = rocm.files[0].read_text()
    assert "torch" in ours.files[0].read_text()
    assert ("rocm-sdk-device-gfx942==7.1.0 --hash" in pins) is (layout == "split")
    assert dict(rocm.env) == {"ROCM_SDK_TARGET_FAMILY": family}


def test_a_prebuilt_torch_is_resolved_with_other_peoples_packages(
    run: LocalRun, monkeypatch: pytest.MonkeyPatch
) -> None:
    torch = replace(NUMPY, name="torch", version="2.13.0")
    monkeypatch.setattr(resolution, "resolve", lambda _question: (torch,))
    run.put_lock()
    run.built("audio", gpu_family="cpu")
    context = run.context("cpu")
    prebuilt = replace(context.ref.projects["torch"], prebuilt="torch==2.13.0")
    context = replace(context, ref=replace(context.ref, projects={"torch": prebuilt}))

    _tools, others, ours = planned_calls(run, context)

    assert others.files[0].read_text().startswith("torch==2.13.0 --hash")
    assert ours.files[0].read_text().startswith("torchaudio==")
    assert dict(ours.env) == {}


@pytest.fixture
def links(tmp_path: Path) -> Path:
    """Return a folder with two versions of torch."""
    folder = tmp_path / "links"
    for version in ("2.10.0", "2.9.0"):
        write_wheel(folder, name="torch", version=version, requires=["numpy"])
    return folder


def find_tested(run: LocalRun, folder: Path, *, version: str = "") -> Tested:
    """Find what is tested of a folder, in the place of the run's wheels."""
    options = SourceOptions(find_links=(str(folder),), version=version)
    return installation.tested(run.context("cpu"), run.target(), options, RocmOptions())


@pytest.mark.usefixtures("questions")
@pytest.mark.parametrize(
    ("version", "tested_version"),
    [pytest.param("", "2.10.0", id="the newest"), pytest.param("2.9.0", "2.9.0", id="a given one")],
)
def test_a_named_source_takes_the_place_of_the_run(
    run: LocalRun, links: Path, version: str, tested_version: str
) -> None:
    tested = find_tested(run, links, version=version)

    assert [file.version for file in tested.files] == [tested_version]
    assert tested.words == str(links)
    assert tested.others == ("numpy",)


def test_a_named_source_without_the_version_is_refused(run: LocalRun, links: Path) -> None:
    with pytest.raises(EnvironmentSetupError, match="torch==3"):
        find_tested(run, links, version="3")


def test_a_named_source_without_torch_is_refused(run: LocalRun, tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()

    with pytest.raises(MissingInputError, match=r"torch for Python 3\.12"):
        find_tested(run, tmp_path / "empty")


# What is up for testing


def build_torch_alone(run: LocalRun, *, run_id: str = "local") -> FileRecord:
    """Put a torch into a run whose lock promises nothing else."""
    lock = run.lock()
    run.put_lock(run.lock(projects={"torch": lock.projects["torch"]}), run_id=run_id)
    return run.built("torch", run_id=run_id)


def find_staged(run: LocalRun, options: SourceOptions, *, rocm: RocmOptions | None = None) -> Tested:
    """Find what is tested of the local run in staging."""
    return installation.tested(run.context(), run.target(), options, rocm or RocmOptions())


def test_staged_wheels_are_those_that_the_runs_lock_names(run: LocalRun) -> None:
    torch = build_torch_alone(run)
    rocm_files = run.rocm()
    run.built("torch", python="cp313")
    run.rocm("7.98.0+sample")
    options = run.stage()
    later_torch = run.built("torch", run_id="local-2", version="2.11.0a0+devrocm7.99.0.dev0.sample")
    run.stage(run_id="local-2")

    tested = find_staged(run, options)

    assert {file.name: file.sha256 for file in tested.files} == {
        file.name: file.sha256 for file in (torch, *rocm_files)
    }
    assert later_torch.name not in tested.inputs["files"]  # type: ignore[operator]


def test_a_record_says_that_wheels_were_staged(run: LocalRun) -> None:
    build_torch_alone(run)
    run.rocm()
    options = run.stage()

    staged_inputs = find_staged(run, options).inputs
    run_inputs = find_staged(run, SourceOptions()).inputs

    assert staged_inputs["files"] == run_inputs["files"]
    assert staged_inputs["source"] == f"staging ({options.distribution_store}/v2-staging/{FAMILY})"
    assert run_inputs["source"] == ""


def test_staged_wheels_are_installed_from_the_page_that_users_read(run: LocalRun) -> None:
    torch = build_torch_alone(run)
    run.rocm()
    tested = find_staged(run, run.stage())

    with planned(run.context(), run.target(), tested, tools=()) as (calls, _digest):
        (call,) = calls
        assert call.sources is not None
        (page,) = call.sources.find_links
        assert page.endswith(f"/v2-staging/{FAMILY}/index.html")
        assert torch.sha256 in (fetch(page).text or "")
        assert call.sources.no_index
        assert f"--hash=sha256:{torch.sha256}" in call.files[0].read_text()


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

    tested = find_staged(run, run.stage())

    assert {triton.name, torch.name} <= {file.name for file in tested.files}


def test_nothing_staged_names_what_stages_it(run: LocalRun, tmp_path: Path) -> None:
    build_torch_alone(run)

    with pytest.raises(MissingInputError) as caught:
        find_staged(run, SourceOptions(staged=True, distribution_store=str(tmp_path / "empty")))

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

    tested = find_staged(run, options, rocm=RocmOptions(source=rocm_source))

    (_staged, torch_files), (_folder, rocm_files) = tested.parts
    assert [file.distribution for file in torch_files] == ["torch"]
    assert "rocm-sdk-device-gfx942" in {file.distribution for file in rocm_files}


def test_staged_device_packages_are_those_of_the_tested_targets(
    run: LocalRun, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(installation, "detect", lambda: ("gfx1101",))
    devices = [f"{kind}-device-{target}" for kind in DEVICE_KINDS[:2] for target in ("gfx1100", "gfx1101")]
    publish_split_packages(run, *devices)
    run.put_lock(run.lock(projects={"torch": run.lock().projects["torch"]}))
    options = run.stage()

    tested = installation.tested(run.context(FOUR_TARGETS), run.target(), options, RocmOptions())

    found = {file.distribution for file in tested.files if "-device-" in file.distribution}
    assert found == {"rocm-sdk-device-gfx1101", "amd-torch-device-gfx1101"}


# The digest that says whether an environment still holds what is tested.


class Environment:
    """What an environment is filled with, and the digest of it."""

    def __init__(self, run: LocalRun, monkeypatch: pytest.MonkeyPatch) -> None:
        self.run = run
        self.monkeypatch = monkeypatch
        self.python = "3.12.4"
        self.inputs = {"installed": True}
        self.wheel = write_wheel(run.root / "links", name="torch", version="2.10.0", requires=["numpy"])
        self.tools = run.root / "tools.txt"
        self.tools.write_text("pytest==1 --hash=sha256:aa\n")

    def resolve_numpy(self, sha256: str) -> None:
        """Let the user's indexes answer with a numpy of these bytes."""
        numpy = replace(NUMPY, files=(replace(NUMPY_WHEEL, sha256=sha256),))
        self.monkeypatch.setattr(resolution, "resolve", lambda _question: (numpy,))

    def rebuild_torch(self) -> None:
        """Build other bytes of the same name."""
        files = {"torch.py": "# built again"}
        write_wheel(self.wheel.parent, name="torch", version="2.10.0", requires=["numpy"], files=files)

    def digest(self) -> str:
        """Return the digest that the environment is marked with."""
        digests: list[str] = []

        @contextmanager
        def prepare(_target: Any, _calls: Any, *, digest: str, **_options: Any) -> Iterator[None]:
            digests.append(digest)
            yield

        self.monkeypatch.setattr(installer, "prepared", prepare)
        self.monkeypatch.setattr(installer, "missing_dependencies", lambda _target: ())
        context = self.run.context("cpu")
        target = self.run.target(self.python)
        tested = find_tested(self.run, self.wheel.parent)
        tools = [Install(files=(self.tools,), hashed=True)]
        with installation.prepared(
            context, target, tested, tools=tools, inputs=self.inputs, rocm=RocmOptions()
        ):
            return digests[0]


@pytest.fixture
def environment(run: LocalRun, monkeypatch: pytest.MonkeyPatch) -> Environment:
    environment = Environment(run, monkeypatch)
    environment.resolve_numpy("b" * 64)
    return environment


@pytest.mark.parametrize(
    "change",
    [
        pytest.param(Environment.rebuild_torch, id="wheels"),
        pytest.param(lambda env: env.resolve_numpy("c" * 64), id="other people's packages"),
        pytest.param(
            lambda env: env.tools.write_text("pytest==2 --hash=sha256:aa\n"), id="version of a tool"
        ),
        pytest.param(lambda env: env.tools.write_text("pytest==1 --hash=sha256:bb\n"), id="bytes of a tool"),
        pytest.param(lambda env: setattr(env, "python", "3.12.5"), id="version of Python"),
        pytest.param(lambda env: env.inputs.update(installer="pip"), id="inputs of the record"),
    ],
)
def test_fills_an_environment_again_when_one_input_changes(environment: Environment, change: Any) -> None:
    before = environment.digest()

    change(environment)

    assert environment.digest() != before


def test_leaves_an_environment_whose_inputs_are_the_same(environment: Environment) -> None:
    before = environment.digest()

    environment.rebuild_torch()
    write_wheel(environment.wheel.parent, name="torch", version="2.10.0", requires=["numpy"])

    assert environment.digest() == before


# Device code that lies in packages of its own.

HOST_EXTRAS = ("device-gfx942", "device-all")
FAT_EXTRAS = ("optree",)
INSTALLED = {
    "rocm-sdk-libraries": "7.1",
    "torch": "2.10",
    "torchvision": "0.25",
    "rocm-sdk-device-gfx942": "7.1",
    "amd-torch-device-gfx942": "2.10",
    "amd-torchvision-device-gfx942": "0.25",
}


def write_metadata(folder: Path, *, versions: Mapping[str, str | None], extras: Sequence[str]) -> None:
    """Write the metadata of installed distributions; PyTorch's have extras, and None is not installed."""
    for name, version in versions.items():
        if version is None:
            continue
        lines = ["Metadata-Version: 2.1", f"Name: {name}", f"Version: {version}"]
        if name in {"torch", "torchvision"}:
            lines += [f"Provides-Extra: {extra}" for extra in extras]
        metadata = folder / f"{name.replace('-', '_')}-{version}.dist-info" / "METADATA"
        metadata.parent.mkdir()
        metadata.write_text("\n".join([*lines, ""]))


@pytest.fixture
def install(run: LocalRun, tmp_path: Path) -> Callable[..., Any]:
    """Return what makes an environment, and returns its interpreter."""

    def make(extras: Sequence[str], changes: Mapping[str, str | None]) -> Any:
        process.capture([sys.executable, "-m", "venv", "--without-pip", tmp_path / "venv"])
        (site,) = (tmp_path / "venv").glob("lib/python*/site-packages")
        write_metadata(site, versions={**INSTALLED, **changes}, extras=extras)
        return run.target(executable=tmp_path / "venv" / "bin" / "python")

    return make


WITHOUT_SPLIT_LIBRARIES: dict[str, str | None] = {
    "rocm-sdk-libraries": None,
    "rocm-sdk-device-gfx942": None,
    "amd-torch-device-gfx942": None,
    "amd-torchvision-device-gfx942": None,
}


@pytest.mark.processes
@pytest.mark.parametrize(
    ("extras", "changes"),
    [
        pytest.param(HOST_EXTRAS, {}, id="device packages"),
        pytest.param(
            FAT_EXTRAS,
            {"amd-torch-device-gfx942": None, "amd-torchvision-device-gfx942": None},
            id="fat wheels",
        ),
        pytest.param(FAT_EXTRAS, WITHOUT_SPLIT_LIBRARIES, id="unsplit libraries"),
    ],
)
def test_an_environment_with_device_code_passes(
    install: Callable[..., Any], extras: Sequence[str], changes: Mapping[str, str | None]
) -> None:
    require_device_code(install(extras, changes), ["gfx942"])


@pytest.mark.processes
@pytest.mark.parametrize(
    ("package", "version", "names"),
    [
        pytest.param("rocm-sdk-device-gfx942", None, ["rocm-sdk-libraries 7.1"], id="libraries'"),
        pytest.param("amd-torch-device-gfx942", None, ["torch 2.10"], id="torch's"),
        pytest.param("amd-torchvision-device-gfx942", None, ["torchvision 0.25", "gfx942"], id="vision's"),
        pytest.param("amd-torch-device-gfx942", "2.9", ["2.9", "torch 2.10"], id="other version of torch's"),
        pytest.param(
            "rocm-sdk-device-gfx942", "7.0", ["7.0", "rocm-sdk-libraries 7.1"], id="other version of ROCm's"
        ),
    ],
)
def test_an_environment_without_a_device_package_is_refused(
    install: Callable[..., Any], package: str, version: str | None, names: list[str]
) -> None:
    target = install(HOST_EXTRAS, {package: version})

    with pytest.raises(CheckError) as caught:
        require_device_code(target, ["gfx942"])

    for name in (package, *names):
        assert name in caught.value.message
    assert f'pip install "{package}==' in caught.value.hint


def test_machines_without_a_gpu_need_no_device_code(run: LocalRun) -> None:
    # A process, which would ask the environment, fails this test.
    require_device_code(run.target(), [])


def test_other_vendors_gpus_have_no_device_packages() -> None:
    assigned = [Assignment(target=target, devices=(), env={}) for target in ("gfx942", "sm_90", "", "gfx942")]

    assert amd_targets(assigned) == ("gfx942",)
