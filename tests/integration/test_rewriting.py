"""A release candidate of the sample becomes a release, and real installers take it."""

import json
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from ci.promote.candidates import Rewritten, rewrite_set
from ci.promote.version_change import final_of
from core import process
from core.wheel import parse_wheel_name, read_metadata
from core.wheel.editor import edit_wheel
from core.wheel.record import require_sound
from pytorch_build.check import Expectation
from pytorch_build.refs.torch_refs import DISTRIBUTIONS
from rocm_packaging.packages.build import BuildRequest, build
from rocm_packaging.sample import FAMILIES, ensure_artifacts
from tests.kit.clones import FAMILY, Clone
from tests.kit.wheels import read_members

UV = Path(sys.executable).parent / "uv"
SAMPLE, CANDIDATE, FINAL = "7.99.0.dev0+sample", "7.99.0rc2", "7.99.0"
TORCH = f"2.10.0a0+rocm{FINAL}"
PROMISED = {
    name: Expectation(distribution=name, version="", gpu_targets=("gfx942",), local_label="sample")
    for name in DISTRIBUTIONS.values()
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
def torch_wheels(sample_run: Path, tmp_path_factory: pytest.TempPathFactory) -> Sequence[Path]:
    """The sample's PyTorch wheels, built by the pipeline and relabelled as those of a candidate."""
    clone = Clone(path=sample_run)
    folder = tmp_path_factory.mktemp("candidate")
    return [as_candidate(wheel, folder) for wheel in sorted(clone.wheels().glob("*devrocm*.whl"))]


@pytest.fixture(scope="module")
def rocm_packages(tmp_path_factory: pytest.TempPathFactory) -> Sequence[Path]:
    return rocm_set(tmp_path_factory.mktemp("rocm"), CANDIDATE, split=True)


def rocm_set(folder: Path, version: str, *, split: bool = False, one: bool = False) -> Sequence[Path]:
    artifacts = ensure_artifacts(folder / "artifacts", split=split)
    families = () if split and not one else tuple(name for name in FAMILIES if name == FAMILY)
    request = BuildRequest(
        artifact_dir=artifacts, output_dir=folder / "packages", families=families, version=version
    )
    return [file.path for file in build(request).files]


@pytest.fixture(scope="module")
def released(
    rocm_packages: Sequence[Path], torch_wheels: Sequence[Path], tmp_path_factory: pytest.TempPathFactory
) -> Sequence[Rewritten]:
    built = {path.name.partition("-")[0] for path in torch_wheels if "_device_gfx" not in path.name}
    assert built == set(DISTRIBUTIONS.values())
    folder = tmp_path_factory.mktemp("released")
    return rewrite_set([*rocm_packages, *torch_wheels], folder, final_of(CANDIDATE), expected=PROMISED)


@pytest.mark.parametrize(("split", "targets"), [(False, ()), (True, ()), (True, ("gfx942",))])
def test_rocms_packages_hold_what_a_build_of_the_release_for_these_targets_holds(
    tmp_path: Path, targets: Sequence[str], *, split: bool
) -> None:
    """The same goes for the packages of some targets and a build for these."""
    candidate = rocm_set(tmp_path / "candidate", CANDIDATE, split=split)
    final = rocm_set(tmp_path / "final", FINAL, split=split, one=bool(targets))
    built, change = {path.name: path for path in final}, final_of(CANDIDATE, targets)
    taken = [
        path for path in candidate if change.keeps_package(canonicalize_name(path.name.partition("-")[0]))
    ]
    assert (len(taken) < len(candidate)) is bool(targets)
    done = rewrite_set(taken, tmp_path / "released", change)
    assert {one.plan.target for one in done} == set(built)
    for one in done:
        if one.file.path.suffix == ".whl":
            require_sound(one.file.path)
            assert read_members(one.file.path) == read_members(built[one.plan.target])
        else:
            assert one.file.path.read_bytes() == built[one.plan.target].read_bytes()


def test_the_whole_set_depends_on_itself_alone(released: Sequence[Rewritten]) -> None:
    versions = {one.plan.distribution: one.plan.new for one in released}
    assert versions["torch"] == TORCH
    pins = [
        requirement
        for one in released
        if one.file.path.suffix == ".whl"
        for requirement in read_metadata(one.file.path).requires_dist
        if "==" in requirement
    ]
    assert f"rocm[libraries]=={FINAL}" in pins
    assert f"triton=={versions['triton']}" in pins
    assert f"torch=={TORCH}" in pins
    for pin in map(Requirement, pins):
        assert str(pin.specifier) == f"=={versions[canonicalize_name(pin.name)]}"


@dataclass(frozen=True, kw_only=True)
class Installer:
    name: str
    python: Path
    packages: Path

    def run(self, *words: str | Path) -> process.Completed:
        where: list[str | Path] = [self.python, "-m", "pip", "--disable-pip-version-check", words[0]]
        if self.name == "uv":
            where = [UV, "pip", words[0], "--python", self.python]
        return process.capture([*where, *words[1:]], env=process.inherited(ROCM_SDK_TARGET_FAMILY=FAMILY))

    def use(self, *words: str) -> str:
        env = process.inherited(PYTHONDONTWRITEBYTECODE="1", ROCM_SDK_TARGET_FAMILY=None)
        return process.capture([self.python, *words], env=env).stdout

    @property
    def site(self) -> set[str]:
        folder = next((self.python.parents[1] / "lib").glob("python*")) / "site-packages"
        return {
            path.name for path in folder.rglob("*") if path.suffix != ".pyc" and path.name != "__pycache__"
        }


@pytest.mark.parametrize("name", ["pip", "uv"])
def test_real_installers_take_the_release(name: str, released: Sequence[Rewritten], tmp_path: Path) -> None:
    process.capture([UV, "venv", "--seed", "--python", sys.executable, tmp_path / "venv"])
    python = tmp_path / "venv" / "bin" / "python"
    installer = Installer(name=name, python=python, packages=released[0].file.path.parent)
    before = installer.site
    wanted = [f"{one.plan.distribution}=={one.plan.new}" for one in released if one.plan.kind == "pytorch"]
    installer.run("install", "--find-links", installer.packages, *wanted)
    found = json.loads(installer.use("-c", USE))
    versions = {one.plan.distribution: one.plan.new for one in released}
    names = ("torch", "torchaudio", "torchvision", "apex", "rocm")
    assert found["versions"] == [versions[name] for name in names]
    assert len(found["commit"]) == 40
    assert found["sum"] == [2.0, 4.0]
    assert installer.use("-m", "rocm_sdk", "version").strip() == FINAL
    frozen = installer.run("freeze").stdout
    assert CANDIDATE not in frozen
    assert f"torch=={TORCH}" in frozen
    installed = [line.partition("==")[0].partition(" @")[0] for line in frozen.splitlines() if line]
    yes = ["--yes"] if name == "pip" else []
    kept = {"pip", "setuptools", "wheel"}
    installer.run("uninstall", *yes, *(one for one in installed if one not in kept))
    assert installer.site == before
