"""A release candidate of the sample becomes a release, and real installers take it."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from ci.promote.candidates import rewrite_set
from ci.promote.version_change import FileChange, final_of
from core import process
from core.wheel import parse_wheel_name, read_metadata
from core.wheel.editor import edit_wheel
from core.wheel.record import require_sound
from core.wheel.writer import WrittenFile
from pytorch_build.check import Expectation
from pytorch_build.components import distributions
from rocm_packaging.packages.build import BuildRequest, build
from rocm_packaging.sample import FAMILIES, ensure_artifacts
from tests.kit.clones import FAMILY, Clone
from tests.kit.environments import UV, Venv, create_environment, download_locked_wheel
from tests.kit.sample import SampleRun
from tests.kit.wheels import read_members

# What each file of a candidate became.
ReleasedFiles = Mapping[FileChange, WrittenFile]

SAMPLE = "7.99.0.dev0+sample"
CANDIDATE = "7.99.0rc2"
FINAL = "7.99.0"
TORCH = f"2.10.0a0+rocm{FINAL}"
SEEDS = ("pip", "setuptools", "wheel", "packaging")
PROMISED = {
    name: Expectation(distribution=name, version="", gpu_targets=("gfx942",), has_full_size=False)
    for name in distributions()
}
USE = """
import json, warnings
warnings.simplefilter("error")
import torch, torchaudio, torchvision, triton, apex, rocm_sdk
print(json.dumps({
    "versions": [module.__version__ for module in (torch, torchaudio, torchvision, apex, rocm_sdk)],
    "commit": torch.version.git_version,
    "sum": (torch.tensor([1.0, 2.0]) + torch.tensor([1.0, 2.0])).tolist(),
}))
"""


def as_candidate(wheel: Path, folder: Path) -> Path:
    """Make a candidate's wheel of the sample's, without the rules that are tested here."""

    def edit(_member: str, content: bytes) -> bytes:
        relabelled = content.replace(b"devrocm7.99.0.dev0.sample", b"rocm7.99.0rc2")
        return relabelled.replace(SAMPLE.encode(), CANDIDATE.encode())

    old = str(parse_wheel_name(wheel.name).version)
    new = old.replace("devrocm7.99.0.dev0.sample", f"rocm{CANDIDATE}")
    return edit_wheel(wheel, folder, version=new, edit=edit).path


@pytest.fixture(scope="module")
def torch_wheels(sample_run: SampleRun, tmp_path_factory: pytest.TempPathFactory) -> Sequence[Path]:
    """Return the sample's PyTorch wheels, built by the pipeline and relabelled as those of a candidate."""
    clone = Clone(path=sample_run.clone)
    folder = tmp_path_factory.mktemp("candidate")
    return [as_candidate(wheel, folder) for wheel in sorted(clone.wheels().glob("*devrocm*.whl"))]


def build_rocm_set(
    folder: Path, version: str, *, split: bool = False, only_family: bool = False
) -> Sequence[Path]:
    """Build ROCm's packages of a version; split ones are for all targets, or for those of one family."""
    artifacts = ensure_artifacts(folder / "artifacts", split=split)
    families = () if split and not only_family else tuple(name for name in FAMILIES if name == FAMILY)
    request = BuildRequest(
        artifact_dir=artifacts, output_dir=folder / "packages", families=families, version=version
    )
    return [file.path for file in build(request).files]


@pytest.fixture(scope="module")
def rocm_packages(tmp_path_factory: pytest.TempPathFactory) -> Sequence[Path]:
    """Return a candidate's split packages for all targets."""
    return build_rocm_set(tmp_path_factory.mktemp("rocm"), CANDIDATE, split=True)


@pytest.fixture(scope="module")
def released(
    rocm_packages: Sequence[Path], torch_wheels: Sequence[Path], tmp_path_factory: pytest.TempPathFactory
) -> ReleasedFiles:
    """Return the release that the candidate's whole set becomes."""
    host_wheels = {path.name.partition("-")[0] for path in torch_wheels if "_device_gfx" not in path.name}
    assert host_wheels == set(distributions())
    folder = tmp_path_factory.mktemp("released")
    return rewrite_set([*rocm_packages, *torch_wheels], folder, final_of(CANDIDATE), expected=PROMISED)


@pytest.mark.parametrize(
    ("split", "targets"),
    [
        pytest.param(False, (), marks=pytest.mark.nightly, id="unsplit"),
        pytest.param(True, (), marks=pytest.mark.nightly, id="split"),
        pytest.param(True, ("gfx942",), id="split, one target"),
    ],
)
def test_rocms_packages_become_what_a_build_of_the_release_would_be(
    tmp_path: Path, rocm_packages: Sequence[Path], targets: Sequence[str], *, split: bool
) -> None:
    candidate = rocm_packages if split else build_rocm_set(tmp_path / "candidate", CANDIDATE)
    release = build_rocm_set(tmp_path / "release", FINAL, split=split, only_family=bool(targets))
    change = final_of(CANDIDATE, targets)
    kept = [
        path for path in candidate if change.keeps_package(canonicalize_name(path.name.partition("-")[0]))
    ]
    assert (len(kept) < len(candidate)) is bool(targets)

    released_files = rewrite_set(kept, tmp_path / "released", change)

    expected = {path.name: path for path in release}
    assert {file_change.target for file_change in released_files} == set(expected)
    for file_change, written_file in released_files.items():
        path = written_file.path
        if path.suffix == ".whl":
            require_sound(path)
            assert read_members(path) == read_members(expected[file_change.target])
        else:
            assert path.read_bytes() == expected[file_change.target].read_bytes()


def test_the_whole_set_depends_on_itself_alone(released: ReleasedFiles) -> None:
    versions = {file_change.distribution: file_change.new for file_change in released}
    paths = [written_file.path for written_file in released.values()]
    wheels = [path for path in paths if path.suffix == ".whl"]

    pins = []
    for wheel in wheels:
        pins += [requirement for requirement in read_metadata(wheel).requires_dist if "==" in requirement]

    assert versions["torch"] == TORCH
    assert {f"rocm[libraries]=={FINAL}", f"triton=={versions['triton']}", f"torch=={TORCH}"} <= {*pins}
    for pin in map(Requirement, pins):
        assert str(pin.specifier) == f"=={versions[canonicalize_name(pin.name)]}"


@dataclass(frozen=True, kw_only=True)
class Installer:
    """pip or uv over an environment."""

    name: str
    environment: Venv

    def run(self, *words: str | Path) -> str:
        """Run a command of the installer; return what it printed."""
        command: list[str | Path] = [self.environment.python, "-m", "pip", words[0]]
        if self.name == "uv":
            command = [UV, "pip", words[0], "--python", self.environment.python]
        variables = process.inherited(ROCM_SDK_TARGET_FAMILY=FAMILY)
        return process.capture([*command, *words[1:]], env=variables).stdout

    def uninstall(self, *names: str) -> None:
        """Uninstall distributions."""
        confirmed = ["--yes"] if self.name == "pip" else []
        self.run("uninstall", *confirmed, *names)

    def installed_names(self) -> list[str]:
        """Return the distributions that the installer lists."""
        lines = self.run("freeze").splitlines()
        return [line.partition("==")[0].partition(" @")[0] for line in lines if line]


def run_python(environment: Venv, *words: str) -> str:
    """Run the environment's Python without leaving byte code; return what it printed."""
    variables = process.inherited(PYTHONDONTWRITEBYTECODE="1", ROCM_SDK_TARGET_FAMILY=None)
    return process.capture([environment.python, *words], env=variables).stdout


def installed_files(environment: Venv) -> set[str]:
    """Return the names of an environment's files, without byte code."""
    paths = environment.site.rglob("*")
    return {path.name for path in paths if path.suffix != ".pyc" and path.name != "__pycache__"}


@pytest.fixture(params=[pytest.param("pip", marks=pytest.mark.nightly), "uv"])
def installer(request: pytest.FixtureRequest, tmp_path: Path) -> Installer:
    """Return an installer over an environment with what rocm's sdist is built with."""
    environment = create_environment(tmp_path / "environment", *SEEDS)
    return Installer(name=request.param, environment=environment)


@pytest.fixture(scope="module")
def third_party(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with the one package of others that torch requires."""
    folder = tmp_path_factory.mktemp("third-party")
    download_locked_wheel("typing-extensions", folder)
    return folder


def test_real_installers_take_the_release_and_take_it_out_again(
    installer: Installer, released: ReleasedFiles, third_party: Path
) -> None:
    files_before = installed_files(installer.environment)
    versions = {file_change.distribution: file_change.new for file_change in released}
    requirements = [
        f"{file_change.distribution}=={file_change.new}"
        for file_change in released
        if file_change.kind == "pytorch"
    ]
    folder = next(iter(released.values())).path.parent

    sources: list[str | Path] = ["--no-index", "--no-build-isolation", "--find-links", third_party]
    installer.run("install", *sources, "--find-links", folder, *requirements)

    answers = json.loads(run_python(installer.environment, "-c", USE))
    used = ("torch", "torchaudio", "torchvision", "apex", "rocm")
    assert answers["versions"] == [versions[name] for name in used]
    assert len(answers["commit"]) == 40
    assert answers["sum"] == [2.0, 4.0]
    assert run_python(installer.environment, "-m", "rocm_sdk", "version").strip() == FINAL
    assert CANDIDATE not in installer.run("freeze")

    installer.uninstall(*(name for name in installer.installed_names() if name not in SEEDS))
    assert installed_files(installer.environment) == files_before
