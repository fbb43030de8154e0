from __future__ import annotations

import shutil
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from core import files
from core.errors import BuildError, InterruptedStageError, UsageError
from core.packages.offers import Offer
from core.packages.sources import PackageSource
from core.run import records
from core.run.records import Cell
from core.run.stage import Made
from pytorch_build.build import building
from pytorch_build.build.build import Build
from pytorch_build.build.building import inputs, perform
from pytorch_build.build.dependencies import Dependency
from pytorch_build.build.options import BuildChoices
from pytorch_build.rocm.options import RocmOptions
from rocm_packaging.rocm_sources import RocmSource

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from contextlib import AbstractContextManager

    from pytorch_build.build.course import Course

FILE = Offer(name="rocm.whl", distribution="rocm", version="7.1", sha256="aa", url="/somewhere/rocm.whl")
ROCM = RocmSource(version="7.1", packages=PackageSource(find_links=("/somewhere",)), files=(FILE,))
ELSEWHERE = PackageSource(find_links=("/elsewhere",))
VERSION = "2.10.0a0+devrocm7.99.0.dev0.sample"


@dataclass(frozen=True, kw_only=True)
class FakeTree:
    """A tree of which only what a record says of it is known."""

    version: str = VERSION
    inputs: Mapping[str, Any] = field(default_factory=lambda: {"commit": "1" * 40, "hipify": True})

    def checked_out(self) -> AbstractContextManager[Path]:
        raise AssertionError


@pytest.fixture
def build(run: Any) -> Build:
    requirements = run.root / "requirements"
    requirements.mkdir()
    (requirements / "target-linux-3.12.txt").write_text("numpy==2.0\n")
    (requirements / "target.in").write_text("numpy\n")
    return Build(
        context=run.context(),
        choices=BuildChoices(rocm=RocmOptions(), own_trees={}, mirrors={}),
        target=run.target(),
        project="torch",
        tree=FakeTree(),
        rocm=ROCM,
        dependencies=(Dependency(project="triton", requirement="/t.whl", version="3.6", digest="bb"),),
        base_env={"PATH": "/usr/bin", "HOME": "/home/me"},
    )


def digest(build: Build) -> str:
    return files.digest_of(inputs(build))


def with_choice(**changes: Any) -> Callable[[Build], Build]:
    return lambda build: replace(build, choices=replace(build.choices, **changes))


def with_source(**changes: Any) -> Callable[[Build], Build]:
    def change(build: Build) -> Build:
        ref = build.context.ref
        projects = {**ref.projects, "torch": replace(ref.projects["torch"], **changes)}
        return replace(build, context=replace(build.context, ref=replace(ref, projects=projects)))

    return change


def with_env(**changes: str) -> Callable[[Build], Build]:
    return lambda build: replace(build, base_env={**build.base_env, **changes})


def with_rocm(**changes: Any) -> Callable[[Build], Build]:
    return lambda build: replace(build, rocm=replace(build.rocm or ROCM, **changes))


def with_target(**changes: Any) -> Callable[[Build], Build]:
    return lambda build: replace(build, target=replace(build.target, **changes))


def with_lock(text: str) -> Callable[[Build], Build]:
    def change(build: Build) -> Build:
        (build.context.common.root / "requirements" / "target-linux-3.12.txt").write_text(text)
        return build

    return change


CHANGES: Mapping[str, Callable[[Build], Build]] = {
    "commit": lambda build: replace(build, tree=FakeTree(inputs={"commit": "2" * 40, "hipify": True})),
    "hipify": lambda build: replace(build, tree=FakeTree(inputs={"commit": "1" * 40, "hipify": False})),
    "version": lambda build: replace(build, tree=FakeTree(version="2.10.0a1")),
    "python": with_target(version="3.12.5"),
    "locked requirements": with_lock("numpy==2.1\n"),
    "rocm version": with_rocm(version="7.2"),
    "rocm's files": with_rocm(files=(replace(FILE, sha256="cc"),)),
    "rocm extras": with_choice(rocm=RocmOptions(extras=("profiler",))),
    "gpu targets": with_choice(gpu_targets="gfx950"),
    "inherited gpu targets": with_env(PYTORCH_ROCM_ARCH="gfx950"),
    "dependency": lambda build: replace(build, dependencies=(replace(build.dependencies[0], digest="cc"),)),
    "no dependency": lambda build: replace(build, dependencies=()),
    "ref's environment": with_source(env={"USE_X": "1"}),
    "ref's requirements": with_source(build_requirements=("setuptools<81",)),
    "flash attention": with_choice(flash_attention=False),
    "compiler flags": with_env(CXXFLAGS="-O1"),
    "compiler": with_env(CXX="clang++"),
    "cmake arguments": with_env(CMAKE_ARGS="-G Ninja"),
    "upstream's switches": with_env(USE_DISTRIBUTED="0"),
    "upstream's build switches": with_env(BUILD_TEST="0"),
    "date": with_env(SOURCE_DATE_EPOCH="0"),
}


@pytest.mark.parametrize("name", CHANGES)
def test_every_input_counts(name: str, build: Build) -> None:
    before = digest(build)
    assert digest(build) == before
    assert digest(CHANGES[name](build)) != before


@pytest.mark.parametrize(
    "change",
    [
        with_env(HOME="/home/you"),
        with_env(PATH="/opt/bin:/usr/bin"),
        with_env(MAX_JOBS="1"),
        with_env(BUILD_NUMBER="17"),
        with_choice(max_jobs="3"),
        with_choice(clean=True),
        with_choice(output_dir=Path("/elsewhere")),
        with_rocm(packages=ELSEWHERE),
        with_target(executable=Path("/other/bin/python")),
    ],
)
def test_what_leaves_the_wheel_as_it_is_does_not_count(
    change: Callable[[Build], Build], build: Build
) -> None:
    assert digest(change(build)) == digest(build)


def test_a_source_of_rocm_without_digests_counts_by_its_address(build: Build) -> None:
    files = (replace(FILE, sha256=""),)
    first, other = with_rocm(files=files)(build), with_rocm(files=files, packages=ELSEWHERE)(build)
    assert digest(first) != digest(other)


def test_family_cpu_has_neither_rocm_nor_targets(build: Build, run: Any) -> None:
    cpu = replace(build, context=run.context("cpu"), rocm=None)
    assert inputs(cpu)["rocm"] is None
    assert inputs(cpu)["gpu_targets"] == []
    assert inputs(with_choice(rocm=RocmOptions(extras=("profiler",)))(cpu))["rocm_extras"] == []


def test_a_python_without_a_lock_counts_its_unlocked_requirements(build: Build, run: Any) -> None:
    other = replace(build, target=run.target("3.14.0"))
    before = digest(other)
    (run.root / "requirements" / "target.in").write_text("numpy\nrich\n")
    assert digest(other) != before


def test_a_changed_rule_is_a_changed_input(build: Build, tmp_path: Path, monkeypatch: Any) -> None:
    package = tmp_path / "pytorch_build"
    ignored = shutil.ignore_patterns("__pycache__", "sample", "smoke")
    shutil.copytree(Path(building.__file__).parents[1], package, ignore=ignored)
    original = digest(build)
    monkeypatch.setattr(building, "__file__", str(package / "build" / "building.py"))
    # where the checkout lies does not count
    assert digest(build) == original
    rules = [package / "build" / name for name in ("rocm_init.py", "execution.py", "making.py")]
    for path in [*rules, *package.glob("builds/plans/*.py"), *package.glob("platforms/*.py")]:
        text = path.read_text()
        path.write_text(text + "# changed\n")
        assert digest(build) != original, path
        path.write_text(text)


def test_secrets_do_not_enter_a_record(build: Build) -> None:
    flags = inputs(with_env(CMAKE_ARGS="-DURL=https://me:hunter22@host/")(build))["flags"]
    assert "hunter22" not in str(flags)
    assert "host" in flags["CMAKE_ARGS"]


def test_targets_come_from_the_option_then_the_variable_then_the_family(build: Build) -> None:
    assert "gfx942" in build.gpu_targets
    inherited = with_env(PYTORCH_ROCM_ARCH="gfx950")(build)
    assert inherited.gpu_targets == ("gfx950",)
    assert with_choice(gpu_targets="gfx90a;gfx942")(inherited).gpu_targets == ("gfx90a", "gfx942")
    with pytest.raises(UsageError, match="--pytorch-rocm-arch"):
        _ = with_choice(gpu_targets="gfx94X")(build).gpu_targets


@pytest.fixture
def made(run: Any, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Let a build make the promised wheel at once, and count how often it does."""
    calls: list[str] = []

    def make(build: Build, name: str, _course: Course) -> Made:
        calls.append(name)
        return Made(files=(run.wheel("torch", build.tree.version),), details={"source": "x"})

    monkeypatch.setattr("pytorch_build.build.making.make", make)
    return calls


def test_a_build_is_recorded_and_not_repeated(
    build: Build, run: Any, made: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    record = perform(build)
    assert record is not None
    assert record.cell == Cell(python="cp312", torch_ref="sample", gpu_family="gfx94X-dcgpu")
    assert record.files[0].version == VERSION
    assert run.store.digest(record.files[0].key) == record.files[0].sha256
    capsys.readouterr()
    assert perform(build) == record
    assert made == ["build_torch-sample-cp312"]
    assert "build_torch: unchanged" in capsys.readouterr().err
    perform(CHANGES["commit"](build))
    assert len(made) == 2


def test_a_wheel_that_has_gone_or_differs_is_built_again(build: Build, run: Any, made: list[str]) -> None:
    record = perform(build)
    assert record is not None
    run.store.delete(record.files[0].key)
    perform(build)
    (run.root / "out" / record.files[0].key).write_bytes(b"cut off")
    perform(build)
    assert len(made) == 3


def test_the_wheel_is_copied_out_changed_or_not(build: Build, tmp_path: Path, made: list[str]) -> None:
    perform(build)
    perform(with_choice(output_dir=tmp_path / "mine")(build))
    assert len(made) == 1
    assert [path.name for path in (tmp_path / "mine").iterdir()] == [
        f"torch-{VERSION}-cp312-cp312-linux_x86_64.whl"
    ]


@pytest.mark.parametrize(
    ("problem", "code"),
    [(BuildError("no wheel"), 8), (InterruptedStageError("stopped"), 130), (KeyboardInterrupt(), 130)],
)
def test_a_failure_is_recorded_with_the_front_doors_code(
    build: Build, run: Any, monkeypatch: pytest.MonkeyPatch, problem: BaseException, code: int
) -> None:
    def fails(_build: Build, _name: str, course: Course) -> Made:
        course.details["reached"] = {"done": 7, "total": 9, "failed": ["a.o"]}
        raise problem

    monkeypatch.setattr("pytorch_build.build.making.make", fails)
    with pytest.raises(type(problem)):
        perform(build)
    outputs = run.common().outputs
    failed = records.read(run.store, outputs, "gfx94X-dcgpu", "build_torch-sample-cp312.failed")
    assert failed is not None
    assert (failed.status, failed.exit_code) == ("failed", code)
    assert failed.error
    assert failed.details == {"reached": {"done": 7, "total": 9, "failed": ["a.o"]}}
    assert records.read(run.store, outputs, "gfx94X-dcgpu", "build_torch-sample-cp312") is None


def test_the_next_success_takes_the_failure_away(build: Build, run: Any, made: list[str]) -> None:
    failure = records.Record(
        stage="build_torch",
        status="failed",
        exit_code=8,
        run_id="local",
        platform="linux",
        cell=Cell(python="cp312", torch_ref="sample", gpu_family="gfx94X-dcgpu"),
        started=records.now(),
        seconds=0,
    )
    records.write(run.store, run.common().outputs, "gfx94X-dcgpu", failure)
    perform(build)
    assert made
    assert not [one.key for one in run.store.list("local-linux/manifests") if "failed" in one.key]


def test_a_dry_run_builds_nothing(build: Build, run: Any, made: list[str]) -> None:
    assert perform(replace(build, context=run.context(dry_run=True))) is None
    assert made == []
