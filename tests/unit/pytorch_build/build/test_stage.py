import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from core import files, process
from core.env import installer
from core.env.installer import Install, Sources
from core.errors import BuildError, CheckError, EnvironmentSetupError
from core.packages import sources
from core.run import records
from core.run.stage import Made, Stage
from pytorch_build.build import build as module
from pytorch_build.build import machine, stage
from pytorch_build.build.metrics import Metrics
from pytorch_build.build.site import Site
from pytorch_build.build.stage import make
from pytorch_build.check import Finding, Policy
from pytorch_build.check.run import CheckOptions
from pytorch_build.sdk import RocmOptions, RocmSdk
from tests.unit.pytorch_build.build.conftest import FILE, ROCM, VERSION, fake_tree

ELSEWHERE = sources.PackageSource(find_links=("/elsewhere",))


def digest(build: module.Build) -> str:
    return files.digest_of(module.inputs(build))


def with_tree(**changes: Any) -> Callable[[module.Build], module.Build]:
    return lambda build: replace(build, tree=fake_tree(path=Path(), **changes))


def with_choice(**changes: Any) -> Callable[[module.Build], module.Build]:
    return lambda build: replace(build, choices=replace(build.choices, **changes))


def with_source(**changes: Any) -> Callable[[module.Build], module.Build]:
    def change(build: module.Build) -> module.Build:
        ref = build.context.ref
        projects = {**ref.projects, "torch": replace(ref.projects["torch"], **changes)}
        return replace(build, context=replace(build.context, ref=replace(ref, projects=projects)))

    return change


def with_env(**changes: str) -> Callable[[module.Build], module.Build]:
    return lambda build: replace(build, base_env={**build.base_env, **changes})


def with_rocm(**changes: Any) -> Callable[[module.Build], module.Build]:
    return lambda build: replace(build, rocm=replace(build.rocm or ROCM, **changes))


def with_target(**changes: Any) -> Callable[[module.Build], module.Build]:
    return lambda build: replace(build, target=replace(build.target, **changes))


def with_lock(text: str) -> Callable[[module.Build], module.Build]:
    def change(build: module.Build) -> module.Build:
        (build.context.common.root / "requirements" / "target-linux-3.12.txt").write_text(text)
        return build

    return change


CHANGES: Mapping[str, Callable[[module.Build], module.Build]] = {
    "commit": with_tree(inputs={"commit": "2" * 40, "hipify": True}),
    "hipify": with_tree(inputs={"commit": "1" * 40, "hipify": False}),
    "version": with_tree(version="2.10.0a1"),
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
def test_every_input_counts(name: str, build: module.Build) -> None:
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
    change: Callable[[module.Build], module.Build], build: module.Build
) -> None:
    assert digest(change(build)) == digest(build)


def test_inputs_of_other_builds(build: module.Build, run: Any) -> None:
    cpu = replace(build, context=run.context("cpu"), rocm=None)
    extras = module.inputs(with_choice(rocm=RocmOptions(extras=("profiler",)))(cpu))
    assert (extras["rocm"], extras["gpu_targets"], extras["rocm_extras"]) == (None, [], [])
    flags = module.inputs(with_env(CMAKE_ARGS="-DURL=https://me:hunter22@host/")(build))["flags"]
    assert "hunter22" not in str(flags)
    assert "host" in flags["CMAKE_ARGS"]
    # a Python without a lock counts its unlocked requirements
    other = replace(build, target=run.target("3.14.0"))
    before = digest(other)
    (run.root / "requirements" / "target.in").write_text("numpy\nrich\n")
    assert digest(other) != before
    # and a source of ROCm without digests its address
    files = (replace(FILE, sha256=""),)
    first, other = with_rocm(files=files)(build), with_rocm(files=files, packages=ELSEWHERE)(build)
    assert digest(first) != digest(other)


def test_a_changed_rule_is_a_changed_input(build: module.Build, tmp_path: Path, monkeypatch: Any) -> None:
    package = tmp_path / "pytorch_build"
    ignored = shutil.ignore_patterns("__pycache__", "sample", "smoke")
    shutil.copytree(Path(module.__file__).parents[1], package, ignore=ignored)
    original = digest(build)
    monkeypatch.setattr(module, "__file__", str(package / "build" / "stage.py"))
    # where the checkout lies does not count
    assert digest(build) == original
    rules = [package / "build" / name for name in ("execution.py", "stage.py")]
    for path in [*rules, *package.glob("build/plans/*.py"), package / "platforms.py"]:
        text = path.read_text()
        path.write_text(text + "# changed\n")
        assert digest(build) != original, path
        path.write_text(text)


@pytest.fixture
def made(run: Any, monkeypatch: pytest.MonkeyPatch) -> list[Path]:
    """Let a build make the promised wheel at once, and count how often it does."""
    calls: list[Path] = []

    def make(build: module.Build, stage: Stage, *_: Any) -> Made:
        calls.append(stage.log)
        return Made(files=(run.wheel("torch", build.tree.version),), details={"source": "x"})

    monkeypatch.setattr("pytorch_build.build.stage.make", make)
    return calls


def test_a_build_is_recorded_and_not_repeated(
    build: module.Build, run: Any, made: list[Path], capsys: pytest.CaptureFixture[str]
) -> None:
    record = module.perform(build)
    assert isinstance(record, records.Record)
    assert record.cell == records.Cell(python="cp312", torch_ref="sample", gpu_family="gfx94X-dcgpu")
    assert record.files[0].version == VERSION
    assert run.store.digest(record.files[0].key) == record.files[0].sha256
    capsys.readouterr()
    assert module.perform(build) == record
    assert [path.stem for path in made] == ["build_torch-sample-cp312"]
    assert "build_torch: unchanged" in capsys.readouterr().err
    module.perform(with_choice(output_dir=run.root / "mine")(CHANGES["commit"](build)))
    assert len(made) == 2
    assert [path.name for path in (run.root / "mine").iterdir()] == [record.files[0].name]


def test_a_failure_is_recorded_with_what_is_known_of_the_build(
    build: module.Build, run: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    reached = {"done": 7, "total": 9, "failed": ["a.o"]}

    def fails(_build: module.Build, _name: str, metrics: Metrics, _: object) -> Made:
        metrics.details["reached"] = reached
        raise BuildError("no wheel")

    monkeypatch.setattr("pytorch_build.build.stage.make", fails)
    with pytest.raises(BuildError):
        module.perform(build)
    name = "build_torch-sample-cp312.failed"
    failed = records.read(run.store, run.common().outputs, "gfx94X-dcgpu", name)
    assert failed is not None
    assert (failed.status, failed.exit_code, failed.details) == ("failed", 8, {"reached": reached})


@dataclass
class Workshop:
    """What the parts around a build got."""

    calls: Sequence[Install] = ()
    digest: str = ""
    site: Site | None = None
    env: Mapping[str, str] = field(default_factory=dict)
    cache: Any = None
    done: list[str] = field(default_factory=list)
    findings: tuple[Finding, ...] = ()
    problem: Exception | None = None

    def make(self, build: module.Build) -> Made:
        return make(build, module.stage_of(build), Metrics())


@pytest.fixture
def shop(run: Any, monkeypatch: pytest.MonkeyPatch) -> Workshop:
    """Stand for the parts that take real tools, which the integration test of the pipeline has."""
    shop = Workshop()

    @contextmanager
    def prepared(_target: Any, calls: Sequence[Install], *, digest: str, **_: Any) -> Iterator[None]:
        shop.calls, shop.digest = calls, digest
        yield
        shop.done.append("left")

    def plan(_build: module.Build, site: Site) -> Any:
        shop.site = site
        return SimpleNamespace(as_locked=())

    def execute(
        *_: Any, base_env: Mapping[str, str], log: Path, metrics: Metrics, cache: Any, **__: Any
    ) -> Any:
        shop.env, shop.cache = base_env, cache
        log.parent.mkdir(parents=True, exist_ok=True)
        log.write_text("compiling\n")
        shop.done.append("built")
        metrics.details["ninja"] = [{"folder": "build"}]
        return run.wheel("torch", VERSION)

    def split(wheel: Path, _: Path, *, rocm_version: str) -> tuple[Path, ...]:
        shop.done.append(f"split {rocm_version}")
        return wheel, run.wheel("amd_torch_device_gfx942", VERSION)

    def check(_: Path, promised: Any, options: CheckOptions) -> tuple[tuple[Finding, ...], frozenset[str]]:
        shop.done.append(f"checked {promised.distribution}{' by mine' * bool(options.policy.source)}")
        return () if options.policy.source else shop.findings, frozenset({"libfmt.so.10"})

    def imports(*_: Any) -> None:
        shop.done.append("imported")
        if shop.problem:
            raise shop.problem

    sdk = RocmSdk(version="7.1.0", root=run.root, bin=run.root, cmake=run.root, targets=("gfx942",))
    parts: Mapping[str, Callable[..., Any]] = {
        "ask": lambda *_, **__: sdk,
        "plan_build": plan,
        "execute": execute,
        "install_requirements": lambda *_, **__: shop.done.append("requirements"),
        "check_import": imports,
        "check_bare_import": lambda *_, **how: shop.done.append(f"imported, preloads {how['preloads']}"),
        "examined": check,
        "loader_libraries": frozenset,
        "split": split,
    }
    for name, part in parts.items():
        monkeypatch.setattr(stage, name, part)
    monkeypatch.setattr(installer, "prepared", prepared)
    monkeypatch.setattr(sources, "configured", lambda: Sources(index_url="https://mine"))
    monkeypatch.setattr(machine, "problems", lambda *_, **__: ())
    answer = process.Completed(returncode=0, stdout="1700000000\n", stderr="")
    monkeypatch.setattr(process, "capture", lambda *_, **__: answer)
    return shop


def test_a_build_is_prepared_built_split_imported_and_checked(
    build: module.Build, run: Any, shop: Workshop, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = shop.make(build)
    assert [path.name for path in made.files] == [
        f"torch-{VERSION}-cp312-cp312-linux_x86_64.whl",
        f"amd_torch_device_gfx942-{VERSION}-cp312-cp312-linux_x86_64.whl",
    ]
    assert made.details["source"] == {"commit": "1" * 40, "hipify": True}
    assert made.details["ninja"] == [{"folder": "build"}]
    assert made.details["disk"] == len("# 10 bytes")
    assert sum(files for files, _, _ in made.details["contents"][made.files[0].name].values()) > 2
    after = ["split 7.1.0", "imported", "imported, preloads False"]
    checked = ["checked torch", "checked amd-torch-device-gfx942"]
    assert shop.done == ["requirements", "built", *after, *checked, "left"]
    assert shop.calls[1].files[0].read_text() == "rocm==7.1.0 --hash=sha256:aa\n"
    assert module.stage_of(build).log.read_text() == "compiling\n"
    # family cpu has no ROCm that could be left out
    monkeypatch.setattr(stage, "ask", lambda *_, **__: pytest.fail("there is none"))
    shop.done.clear()
    shop.make(replace(build, context=run.context("cpu"), rocm=None, dependencies=()))
    assert (len(shop.calls), shop.site and shop.site.rocm) == (1, None)
    assert shop.done == ["requirements", "built", "imported", "checked torch", "left"]


@pytest.mark.parametrize(
    "change",
    [
        with_rocm(files=(replace(FILE, sha256="bb"),)),
        lambda build: replace(build, dependencies=(replace(build.dependencies[0], digest="cc"),)),
        lambda build: (build.tree.path / "requirements.txt").write_text("numpy\n") and build,
    ],
)
def test_an_environment_is_known_by_all_that_it_is_made_from(
    build: module.Build, shop: Workshop, change: Any
) -> None:
    shop.make(build)
    first = shop.digest
    shop.make(build)
    assert shop.digest == first
    shop.make(change(build))
    assert shop.digest != first


REFUSED = Finding(wheel="torch.whl", check="elf", severity="error", where="", message="needs libfoo.so")
PLACE = ".cache/refused/local-linux/gfx94X-dcgpu/build_torch-sample-cp312"


def test_what_is_refused_is_kept_and_goes_into_the_run_without_a_build(
    build: module.Build, run: Any, shop: Workshop
) -> None:
    shop.findings = (REFUSED,)
    with pytest.raises(CheckError, match="needs libfoo") as caught:
        module.perform(build)
    assert f"kept in {PLACE}: the same command checks it again" in caught.value.hint
    outputs = run.common().outputs
    failed = records.read(run.store, outputs, "gfx94X-dcgpu", "build_torch-sample-cp312.failed")
    assert failed is not None
    assert {path.name for path in (run.root / PLACE).iterdir()} == {*failed.details["refused"]["wheels"]}
    assert not list(run.store.list(outputs.python_prefix("gfx94X-dcgpu")))
    shop.done.clear()
    with pytest.raises(CheckError):
        module.perform(build)
    record = module.perform(with_choice(policy=Policy(source="mine.toml"))(build))
    checked = ["checked torch", "checked amd-torch-device-gfx942"]
    assert shop.done == [*checked, *(f"{one} by mine" for one in checked)], "no tree, no environment"
    assert isinstance(record, records.Record)
    known = {"policy": "mine.toml", "machine_libraries": ["libfmt.so.10"], "ninja": [{"folder": "build"}]}
    assert record.details.items() >= known.items()
    assert "refused" not in record.details
    assert run.store.read(record.log) == b"compiling\n", "the build's"
    assert not (run.root / PLACE).exists()


def test_what_does_not_import_is_tried_again_where_it_was_built(build: module.Build, shop: Workshop) -> None:
    shop.problem = BuildError("libomp.so")
    with pytest.raises(BuildError, match="libomp"):
        module.perform(build)
    shop.problem = None
    environment, shop.digest = shop.digest, ""
    shop.done.clear()
    module.perform(replace(build, tree=fake_tree(path=Path("/gone"))))
    assert "imported" in shop.done
    assert "built" not in shop.done
    assert shop.digest == environment, "with what the tree asked for"


@pytest.mark.parametrize("change", ["inputs", "force", "damage"])
def test_what_is_kept_is_not_taken_for_another_build(
    build: module.Build, run: Any, shop: Workshop, change: str
) -> None:
    shop.findings = (REFUSED,)
    for _ in range(2):
        shop.done.clear()
        with pytest.raises(CheckError):
            module.perform(build)
        assert len([*(run.root / ".cache/refused").rglob("*.whl")]) == 2, "in the place of those from before"
        if change == "inputs":
            build = CHANGES["commit"](build)
        elif change == "force":
            build = replace(build, context=run.context(force=True))
        else:
            next((run.root / PLACE).glob("torch-*")).write_bytes(b"else")
    assert "built" in shop.done


def test_what_will_fail_is_said_before(build: module.Build, shop: Workshop, monkeypatch: Any) -> None:
    shop.findings = (replace(REFUSED, severity="warning"),)
    assert shop.make(build).files
    shop.calls = ()
    monkeypatch.setattr(build.tree, "checked_out", lambda: pytest.fail("that takes long"))
    monkeypatch.setattr(machine, "problems", lambda *_, **__: [("There is no compiler.", "Install one.")])
    with pytest.raises(EnvironmentSetupError, match="no compiler"):
        shop.make(build)
    assert shop.calls == ()


def test_what_the_user_chose_is_kept(build: module.Build, shop: Workshop) -> None:
    for change in (with_choice(max_jobs="3"), with_env(MAX_JOBS="3")):
        shop.make(change(build))
        assert shop.site is not None
        assert shop.site.max_jobs == 3
    assert shop.env["SOURCE_DATE_EPOCH"] == "1700000000", "the date of its commit"
    shop.make(with_env(SOURCE_DATE_EPOCH="17")(build))
    assert shop.env["SOURCE_DATE_EPOCH"] == "17"
