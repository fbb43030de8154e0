"""Installing what is tested, and what a record holds of it."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from core.env import installer
from core.env.installer import InstallerCall
from core.errors import CheckError
from core.http import fetch
from core.packages import resolution
from core.packages.candidates import Candidate, pin_of
from core.packages.options import SourceOptions
from core.packages.resolution import ResolvedPackage
from pytorch_build.context import Context
from pytorch_build.sdk import RocmOptions
from pytorch_build.test import tested_packages
from pytorch_build.test.gpus import Assignment
from pytorch_build.test.installation import (
    amd_targets,
    plan_installation,
    recorded_inputs,
    require_device_code,
)
from pytorch_build.test.tested_packages import TestedPackages, find_tested_packages, packages_of_run
from tests.kit.builds import LocalRun
from tests.kit.split_packages import FOUR_TARGETS, publish_split_packages
from tests.kit.wheels import write_sdist, write_wheel

FAMILY = "gfx94X-dcgpu"

NUMPY_WHEEL = Candidate(
    name="numpy.whl", distribution="numpy", version="2", url="https://invalid/numpy.whl", sha256="b" * 64
)
NUMPY = ResolvedPackage(name="numpy", version="2", files=(NUMPY_WHEEL,))


@pytest.fixture(autouse=True)
def _machine_without_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tested_packages, "detect", lambda: ())


@pytest.fixture
def questions(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """Answer every question for other people's packages with numpy; return the questions."""
    questions: list[Any] = []

    def resolve(question: Any) -> tuple[ResolvedPackage, ...]:
        questions.append(question)
        return (NUMPY,)

    monkeypatch.setattr(resolution, "resolve", resolve)
    return questions


# The calls that install


def plan_calls(run: LocalRun, context: Context, *, find_links: tuple[str, ...] = ()) -> list[InstallerCall]:
    """Plan the installation of a run's wheels; ROCm may come from folders."""
    rocm = RocmOptions(source=SourceOptions(prefix="--rocm-", find_links=find_links))
    packages = find_tested_packages(context, run.target(), SourceOptions(), rocm)
    tools = [InstallerCall(requirements=("pytest",))]
    with plan_installation(context, run.target(), packages, tools) as calls:
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

    tools, _call_for_numpy, call_for_wheels = plan_calls(run, run.context())

    wheels = packages_of_run(run.context(), run.target()).files
    pins = [pin_of(wheel.distribution, wheel.version, [wheel]) for wheel in wheels]
    assert tools.requirements == ("pytest",)
    assert call_for_wheels.files[0].read_text().splitlines() == sorted(pins)
    assert call_for_wheels.hashed
    assert not call_for_wheels.dependencies


@pytest.mark.usefixtures("questions")
def test_recorded_files_come_from_the_run_alone(run: LocalRun) -> None:
    publish_audio(run, requires=["numpy>=2"])

    *_, call_for_wheels = plan_calls(run, run.context())

    sources = call_for_wheels.sources
    assert sources is not None
    assert sources.no_index
    assert sources.find_links[0].startswith("http://127.0.0.1:")
    assert call_for_wheels.config_settings == (f"gpu-family={FAMILY}",)


def test_other_peoples_packages_come_from_the_users_indexes(run: LocalRun, questions: list[Any]) -> None:
    publish_audio(run, requires=["numpy>=2", "torch==2.10.0", "x; extra == 'y'"])

    _tools, call_for_numpy, _call_for_wheels = plan_calls(run, run.context())

    (question,) = questions
    assert call_for_numpy.files[0].read_text() == f"numpy==2 --hash=sha256:{NUMPY_WHEEL.sha256}\n"
    assert call_for_numpy.sources is None
    assert question.requirements == ("numpy>=2",)
    assert {"torch", "rocm", "rocm-sdk-core"} < set(question.excludes)


def test_the_sdist_of_rocm_is_built_for_a_target_of_split_packages(run: LocalRun) -> None:
    rocm_devices = [f"rocm-sdk-device-gfx110{number}" for number in range(4)]
    publish_split_packages(run, "amd-torch-device-gfx1101", *rocm_devices)

    _tools, call_for_wheels = plan_calls(run, run.context(FOUR_TARGETS))

    assert dict(call_for_wheels.env) == {"ROCM_SDK_TARGET_FAMILY": "gfx1101"}


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
    rocm_inputs = {"rocm": ["7.1.0", layout, "https://host/whl-next/"]}
    run.record("build_torch", run.built("torch"), inputs=rocm_inputs, torch_ref="sample", python="cp312")
    folder = tmp_path / "rocm"
    for name in ("rocm-sdk-core", *packages):
        write_wheel(folder, name=name, version="7.1.0")
    write_sdist(folder, name="rocm", version="7.1.0")

    _tools, call_for_torch, call_for_rocm = plan_calls(run, run.context(), find_links=(str(folder),))

    pins = call_for_rocm.files[0].read_text()
    assert "torch" in call_for_torch.files[0].read_text()
    assert ("rocm-sdk-device-gfx942==7.1.0 --hash" in pins) is (layout == "split")
    assert dict(call_for_rocm.env) == {"ROCM_SDK_TARGET_FAMILY": family}


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

    _tools, call_for_torch, call_for_audio = plan_calls(run, context)

    assert call_for_torch.files[0].read_text().startswith("torch==2.13.0 --hash")
    assert call_for_audio.files[0].read_text().startswith("torchaudio==")
    assert dict(call_for_audio.env) == {}


def test_staged_wheels_are_installed_from_the_page_that_users_read(run: LocalRun) -> None:
    run.put_lock(run.lock(projects={"torch": run.lock().projects["torch"]}))
    torch = run.built("torch")
    run.rocm()
    packages = find_tested_packages(run.context(), run.target(), run.stage(), RocmOptions())

    with plan_installation(run.context(), run.target(), packages, tools=()) as (call,):
        assert call.sources is not None
        (page,) = call.sources.find_links
        assert page.endswith(f"/v2-staging/{FAMILY}/index.html")
        assert torch.sha256 in (fetch(page).text or "")
        assert call.sources.no_index
        assert f"--hash=sha256:{torch.sha256}" in call.files[0].read_text()


# Whether an environment holds what is tested, and whether a record's results still are those of today


class Installation:
    """What is installed: a torch of a folder, numpy, which it requires, and the tests' tools."""

    def __init__(self, run: LocalRun, monkeypatch: pytest.MonkeyPatch) -> None:
        self.run = run
        self.monkeypatch = monkeypatch
        self.python = "3.12.4"
        self.folder = run.root / "links"
        self.lock = run.root / "tools.txt"
        self.requirements: tuple[str, ...] = ()
        self.build_torch("")
        self.resolve_numpy("b" * 64)
        self.lock_tool("pytest==1 --hash=sha256:aa")

    def build_torch(self, code: str) -> None:
        """Build a torch, of the same name each time."""
        files = {"torch.py": code}
        write_wheel(self.folder, name="torch", version="2.10.0", requires=["numpy"], files=files)

    def resolve_numpy(self, sha256: str) -> None:
        """Let the user's indexes answer with a numpy of these bytes."""
        numpy = replace(NUMPY, files=(replace(NUMPY_WHEEL, sha256=sha256),))
        self.monkeypatch.setattr(resolution, "resolve", lambda _question: (numpy,))

    def lock_tool(self, line: str) -> None:
        """Lock one tool."""
        self.lock.write_text(f"{line}\n")

    def require_tool(self, requirement: str) -> None:
        """Ask for another version of a tool, as a tree's own CI has it."""
        self.requirements = (requirement,)

    def update_python(self) -> None:
        """Take the next patch of Python."""
        self.python = "3.12.5"

    @property
    def tools(self) -> list[InstallerCall]:
        """Return the calls that install the tools."""
        return [InstallerCall(files=(self.lock,), hashed=True), InstallerCall(requirements=self.requirements)]

    @property
    def packages(self) -> TestedPackages:
        """Return what is tested."""
        options = SourceOptions(find_links=(str(self.folder),))
        target = self.run.target(self.python)
        return find_tested_packages(self.run.context("cpu"), target, options, RocmOptions())

    @property
    def environment_digest(self) -> str:
        """The digest of what the environment is filled with."""
        context = self.run.context("cpu")
        target = self.run.target(self.python)
        with plan_installation(context, target, self.packages, self.tools) as calls:
            return installer.digest_of_calls(target, calls)

    def inputs(self) -> Mapping[str, object]:
        """Return what a record holds of the installation."""
        return recorded_inputs(self.packages, self.run.target(self.python), self.tools)


@pytest.fixture
def installed(run: LocalRun, monkeypatch: pytest.MonkeyPatch) -> Installation:
    return Installation(run, monkeypatch)


CHANGES = [
    pytest.param(lambda installed: installed.build_torch("# built again"), id="wheels"),
    pytest.param(lambda installed: installed.lock_tool("pytest==2 --hash=sha256:aa"), id="version of a tool"),
    pytest.param(lambda installed: installed.lock_tool("pytest==1 --hash=sha256:bb"), id="bytes of a tool"),
    pytest.param(lambda installed: installed.require_tool("numpy==1.26"), id="version that a tree asks for"),
    pytest.param(Installation.update_python, id="patch of Python"),
]


@pytest.mark.parametrize(
    "change",
    [
        *CHANGES,
        pytest.param(lambda installed: installed.resolve_numpy("c" * 64), id="other people's packages"),
    ],
)
def test_fills_an_environment_again_when_one_input_changes(installed: Installation, change: Any) -> None:
    digest_before = installed.environment_digest

    change(installed)

    assert installed.environment_digest != digest_before


@pytest.mark.parametrize("change", CHANGES)
def test_a_record_is_of_other_inputs_when_one_changes(installed: Installation, change: Any) -> None:
    inputs_before = installed.inputs()

    change(installed)

    assert installed.inputs() != inputs_before


@pytest.mark.parametrize(
    "change",
    [
        pytest.param(lambda _installed: None, id="nothing"),
        pytest.param(lambda installed: installed.build_torch(""), id="the same wheels built again"),
    ],
)
def test_nothing_has_changed_when_the_inputs_are_the_same(installed: Installation, change: Any) -> None:
    digest_before = installed.environment_digest
    inputs_before = installed.inputs()

    change(installed)

    assert installed.environment_digest == digest_before
    assert installed.inputs() == inputs_before


def test_inputs_of_a_record_do_not_depend_on_where_the_lock_lies(installed: Installation) -> None:
    inputs_before = installed.inputs()

    installed.lock = installed.lock.rename(installed.lock.with_name("other.txt"))

    assert installed.inputs() == inputs_before


# Device code that lies in packages of its own

HOST_EXTRAS = ("device-gfx942", "device-all")
FAT_EXTRAS = ("optree",)
INSTALLED_VERSIONS = {
    "rocm-sdk-libraries": "7.1",
    "torch": "2.10",
    "torchvision": "0.25",
    "rocm-sdk-device-gfx942": "7.1",
    "amd-torch-device-gfx942": "2.10",
    "amd-torchvision-device-gfx942": "0.25",
}

MakeEnvironment = Callable[..., Any]


def write_metadata(folder: Path, *, versions: Mapping[str, str | None], extras: Sequence[str]) -> None:
    """Write the metadata of installed distributions; PyTorch's have extras, and None is not installed."""
    for name, version in versions.items():
        if version is None:
            continue
        lines = ["Metadata-Version: 2.1", f"Name: {name}", f"Version: {version}"]
        if name in {"torch", "torchvision"}:
            lines += [f"Provides-Extra: {extra}" for extra in extras]
        module = name.replace("-", "_")
        metadata = folder / f"{module}-{version}.dist-info" / "METADATA"
        metadata.parent.mkdir(parents=True)
        metadata.write_text("\n".join([*lines, ""]))


@pytest.fixture
def environment_with(run: LocalRun, tmp_path: Path) -> MakeEnvironment:
    """Return what makes an environment, and returns its interpreter."""

    def make(extras: Sequence[str], changes: Mapping[str, str | None]) -> Any:
        site_packages = tmp_path / "site-packages"
        write_metadata(site_packages, versions={**INSTALLED_VERSIONS, **changes}, extras=extras)
        return run.target(search_path=(site_packages,))

    return make


NO_DEVICE_PACKAGES_OF_PYTORCH: dict[str, str | None] = {
    "amd-torch-device-gfx942": None,
    "amd-torchvision-device-gfx942": None,
}
UNSPLIT_LIBRARIES: dict[str, str | None] = {
    "rocm-sdk-libraries": None,
    "rocm-sdk-device-gfx942": None,
    **NO_DEVICE_PACKAGES_OF_PYTORCH,
}


@pytest.mark.parametrize(
    ("extras", "changes"),
    [
        pytest.param(HOST_EXTRAS, {}, id="device packages"),
        pytest.param(FAT_EXTRAS, NO_DEVICE_PACKAGES_OF_PYTORCH, id="fat wheels"),
        pytest.param(FAT_EXTRAS, UNSPLIT_LIBRARIES, id="unsplit libraries"),
    ],
)
def test_an_environment_with_device_code_passes(
    environment_with: MakeEnvironment, extras: Sequence[str], changes: Mapping[str, str | None]
) -> None:
    require_device_code(environment_with(extras, changes), ["gfx942"])


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
    environment_with: MakeEnvironment, package: str, version: str | None, names: list[str]
) -> None:
    target = environment_with(HOST_EXTRAS, {package: version})

    with pytest.raises(CheckError) as caught:
        require_device_code(target, ["gfx942"])

    for name in (package, *names, str(target.prefix)):
        assert name in caught.value.message
    assert f'pip install "{package}==' in caught.value.hint


def test_machines_without_a_gpu_need_no_device_code(environment_with: MakeEnvironment) -> None:
    target = environment_with(HOST_EXTRAS, NO_DEVICE_PACKAGES_OF_PYTORCH)

    require_device_code(target, [])


def test_other_vendors_gpus_have_no_device_packages() -> None:
    assignments = [
        Assignment(target=target, devices=(), env={}) for target in ("gfx942", "sm_90", "", "gfx942")
    ]

    assert amd_targets(assignments) == ("gfx942",)
