from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from core import process
from core.env import installer
from core.env.installer import InstallerCall, Sources
from core.errors import BuildError, CheckError, EnvironmentSetupError, FatalError, ServiceError
from core.packages import package_source
from core.run import records
from core.run.records import Record
from core.run.stage import StageResult
from pytorch_build.build import machine, stage, toolchain
from pytorch_build.build.build import build_wheel
from pytorch_build.build.facts import BuildFacts
from pytorch_build.check import Expectation, Finding
from pytorch_build.check.policy import CheckOptions, Policy
from pytorch_build.sdk import RocmSdk
from pytorch_build.sources.trees import Tree
from tests.kit.builds import (
    FAMILY,
    ROCM_FILE,
    ROCM_SOURCE,
    TORCH_VERSION,
    LocalRun,
    ReadyTree,
    SampleBuild,
)

DEVICE_PACKAGE = "amd_torch_device_gfx942"
TAGS = "cp312-cp312-linux_x86_64"
NAME = "build_torch-sample-cp312"
REFUSED = Finding(wheel="torch.whl", check="elf", severity="error", where="", message="needs libfoo.so")
COMMIT_DATE = "1700000000"
OWN_POLICY = Policy(source="mine.toml")


@dataclass
class Workshop:
    """The parts around a build that take real tools; the integration test of the pipeline has those.

    `steps` are what was done, in order. `findings` are what checks find by the default limits, and
    `import_error` is what importing the wheel ends with. The rest is what the parts were given.
    """

    run: LocalRun
    steps: list[str] = field(default_factory=list)
    findings: tuple[Finding, ...] = ()
    import_error: Exception | None = None
    calls: Sequence[InstallerCall] = ()
    environment_digest: str = ""
    facts: BuildFacts | None = None
    env: Mapping[str, str] = field(default_factory=dict)

    def make(self, build: SampleBuild) -> StageResult:
        """Do the work of a build, outside of its record."""
        return stage.build_and_check(build.work)

    @contextmanager
    def prepare(
        self, _target: Any, calls: Sequence[InstallerCall], *, digest: str, **_options: Any
    ) -> Iterator[None]:
        """Stand for the preparation of an environment."""
        self.calls = calls
        self.environment_digest = digest
        yield
        self.steps.append("left the environment")

    def plan(self, _component: Any, _inputs: Any, facts: BuildFacts, **_options: Any) -> Any:
        """Stand for the plan of the build."""
        self.facts = facts
        split_for = facts.rocm.version if facts.rocm is not None else None
        return SimpleNamespace(as_locked=(), search_folders=(), split_for=split_for)

    def execute(
        self,
        *_arguments: Any,
        base_env: Mapping[str, str],
        log: Path,
        **_options: Any,
    ) -> Path:
        """Stand for the commands of the plan, which leave a wheel and a log."""
        self.env = base_env
        log.parent.mkdir(parents=True, exist_ok=True)
        log.write_text("compiling\n")
        self.steps.append("built")
        return self.run.wheel("torch", TORCH_VERSION)

    def split(self, wheel: Path, _folder: Path, *, rocm_version: str, **_options: Any) -> tuple[Path, ...]:
        """Stand for the split of device code."""
        self.steps.append(f"split for ROCm {rocm_version}")
        return wheel, self.run.wheel(DEVICE_PACKAGE, TORCH_VERSION)

    def examine(
        self, _wheel: Path, expectation: Expectation, options: CheckOptions
    ) -> tuple[tuple[Finding, ...], frozenset[str]]:
        """Stand for the checks of one wheel, which also name libraries of this machine."""
        policy = options.policy.source or "default"
        self.steps.append(f"checked {expectation.distribution} by {policy}")
        findings = self.findings if policy == "default" else ()
        return findings, frozenset({"libfmt.so.10"})

    def check_import(self, *_arguments: Any) -> None:
        """Stand for the import of the wheel in its environment."""
        self.steps.append("imported")
        if self.import_error is not None:
            raise self.import_error

    def check_bare_import(self, *_arguments: Any, keeps_preloads: bool) -> None:
        """Stand for the import without ROCm's development tree."""
        self.steps.append("imported with preloads" if keeps_preloads else "imported without preloads")

    def install_requirements(self, *_arguments: Any) -> None:
        """Stand for the installation of the project's own requirements."""
        self.steps.append("installed requirements")


@pytest.fixture
def workshop(run: LocalRun, monkeypatch: pytest.MonkeyPatch) -> Workshop:
    """Return a workshop that does the work of the run's builds."""
    workshop = Workshop(run=run)
    sdk = RocmSdk(version="7.1.0", root=run.root, bin=run.root, cmake=run.root, targets=("gfx942",))
    parts: Mapping[str, Callable[..., Any]] = {
        "ask_sdk": lambda *_arguments, **_options: sdk,
        "plan_build": workshop.plan,
        "execute": workshop.execute,
        "install_requirements": workshop.install_requirements,
        "check_import": workshop.check_import,
        "check_bare_import": workshop.check_bare_import,
        "check_built_wheel": workshop.examine,
        "loader_libraries": frozenset,
        "split_wheel": workshop.split,
    }
    for name, part in parts.items():
        monkeypatch.setattr(stage, name, part)
    monkeypatch.setattr(installer, "prepared", workshop.prepare)
    monkeypatch.setattr(package_source, "configured_sources", lambda: Sources(index_url="https://mine"))
    monkeypatch.setattr(machine, "problems", lambda *_arguments, **_options: ())
    # git names the date of the commit.
    answer = process.Completed(returncode=0, stdout=f"{COMMIT_DATE}\n", stderr="")
    monkeypatch.setattr(process, "capture", lambda *_arguments, **_options: answer)
    return workshop


# The work of a build


def test_builds_splits_imports_and_checks_a_wheel_in_its_environment(
    build: SampleBuild, workshop: Workshop
) -> None:
    workshop.make(build)

    assert workshop.steps == [
        "installed requirements",
        "built",
        "split for ROCm 7.1.0",
        "imported",
        "imported without preloads",
        "checked torch by default",
        "checked amd-torch-device-gfx942 by default",
        "left the environment",
    ]
    assert workshop.calls[1].files[0].read_text() == "rocm==7.1.0 --hash=sha256:aa\n"


def test_neither_asks_for_rocm_nor_splits_for_family_cpu(
    build: SampleBuild, run: LocalRun, workshop: Workshop, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stage, "ask_sdk", lambda *_arguments, **_options: pytest.fail("there is no SDK"))

    cpu_build = build.requested(context=run.context("cpu")).made_of(rocm=None, dependencies=())
    workshop.make(cpu_build)

    assert workshop.steps == [
        "installed requirements",
        "built",
        "imported",
        "checked torch by default",
        "left the environment",
    ]
    assert len(workshop.calls) == 1
    assert workshop.facts is not None
    assert workshop.facts.rocm is None


def test_makes_the_wheel_and_its_device_code_with_details(build: SampleBuild, workshop: Workshop) -> None:
    wheels = workshop.make(build)

    wheel_name = f"torch-{TORCH_VERSION}-{TAGS}.whl"
    assert [path.name for path in wheels.files] == [
        wheel_name,
        f"{DEVICE_PACKAGE}-{TORCH_VERSION}-{TAGS}.whl",
    ]
    assert wheels.details["source"] == {"commit": "1" * 40, "hipify": True}
    assert wheels.details["disk"] == len("# 10 bytes")
    file_counts = [count for count, _size, _packed in wheels.details["contents"][wheel_name].values()]
    assert sum(file_counts) > 2
    assert build.work.stage.log.read_text() == "compiling\n"


@pytest.mark.parametrize("setter", ["option", "variable"])
def test_takes_the_number_of_jobs_that_the_user_chose(
    build: SampleBuild, workshop: Workshop, setter: str
) -> None:
    if setter == "option":
        build = build.requested(max_jobs="3")
    else:
        build = build.requested(user_env={**build.request.user_env, "MAX_JOBS": "3"})

    workshop.make(build)

    assert workshop.facts is not None
    assert workshop.facts.max_jobs == 3


@pytest.mark.parametrize(
    ("base_env", "date"),
    [({}, COMMIT_DATE), ({"SOURCE_DATE_EPOCH": "17"}, "17")],
    ids=["commit's", "user's"],
)
def test_dates_a_wheel_by_its_commit_unless_the_user_does(
    build: SampleBuild, workshop: Workshop, base_env: dict[str, str], date: str
) -> None:
    workshop.make(build.requested(user_env=base_env))

    assert workshop.env["SOURCE_DATE_EPOCH"] == date


class TreeToLeaveAlone(ReadyTree):
    """A tree whose checkout would take long, and is not to begin."""

    def checked_out(self) -> AbstractContextManager[Path]:
        pytest.fail("the tree was checked out")


def test_names_a_problem_of_the_machine_before_anything_is_prepared(
    build: SampleBuild, workshop: Workshop, monkeypatch: pytest.MonkeyPatch
) -> None:
    problems = [EnvironmentSetupError("There is no compiler.", hint="Install one.")]
    monkeypatch.setattr(machine, "problems", lambda *_arguments, **_options: problems)

    with pytest.raises(EnvironmentSetupError, match="no compiler"):
        workshop.make(build.made_of(tree=cast("Tree", TreeToLeaveAlone(path=Path("/src")))))

    assert workshop.steps == []
    assert workshop.calls == ()


def test_accepts_a_wheel_with_warnings(build: SampleBuild, workshop: Workshop) -> None:
    workshop.findings = (replace(REFUSED, severity="warning"),)

    assert workshop.make(build).files


# What Windows does not have


@pytest.fixture
def provided_parts(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The names of the parts that are provided; providing them takes a compiler and the network."""
    names: list[str] = []

    def provide_part(name: str, _cache_dir: Path, **_options: Any) -> None:
        names.append(name)

    monkeypatch.setattr(toolchain, "provide_part", provide_part)
    return names


def on_windows(build: SampleBuild, **base_env: str) -> SampleBuild:
    """Return the same build for Windows, with variables of its user."""
    context = build.request.context
    common = replace(context.common, platform="windows")
    return build.requested(context=replace(context, common=common), user_env=base_env)


@pytest.mark.parametrize(
    ("base_env", "names"),
    [
        ({}, ["libuv", "openmp"]),
        ({"LIBUV_ROOT": "C:/libuv"}, ["openmp"]),
        ({"USE_DISTRIBUTED": "0"}, ["openmp"]),
        ({"USE_OPENMP": "0"}, ["libuv"]),
    ],
    ids=["nothing", "libuv of the user", "no distributed", "no OpenMP"],
)
def test_provides_what_torch_lacks_on_windows(
    build: SampleBuild, provided_parts: list[str], base_env: dict[str, str], names: list[str]
) -> None:
    stage.provide_toolchain_parts(on_windows(build, **base_env).request)

    assert provided_parts == names


@pytest.mark.usefixtures("workshop")
def test_provides_nothing_on_linux(build: SampleBuild, provided_parts: list[str]) -> None:
    stage.build_and_check(build.work)

    assert provided_parts == []


def test_goes_on_where_the_openmp_runtime_cannot_be_downloaded(
    build: SampleBuild, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def provide_part(name: str, _cache_dir: Path, **_options: Any) -> None:
        raise ServiceError(f"The source of {name} gave no answer.")

    monkeypatch.setattr(toolchain, "provide_part", provide_part)

    stage.provide_toolchain_parts(on_windows(build, USE_DISTRIBUTED="0").request)

    assert "gave no answer" in capsys.readouterr().err


# The environment is known by all that it is made from


def change_rocm_file(build: SampleBuild) -> SampleBuild:
    """Return a build on another file of ROCm."""
    files = (replace(ROCM_FILE, sha256="bb"),)
    return build.made_of(rocm=replace(ROCM_SOURCE, files=files))


def change_dependency(build: SampleBuild) -> SampleBuild:
    """Return a build on another triton."""
    (triton,) = build.dependencies
    return build.made_of(dependencies=(replace(triton, digest="cc"),))


def change_own_requirements(build: SampleBuild) -> SampleBuild:
    """Return the build after the tree's own requirements have changed."""
    (build.request.context.common.root / "src" / "requirements.txt").write_text("numpy\n")
    return build


def test_keeps_the_environment_of_the_same_build(build: SampleBuild, workshop: Workshop) -> None:
    workshop.make(build)
    first_digest = workshop.environment_digest

    workshop.make(build)

    assert workshop.environment_digest == first_digest


@pytest.mark.parametrize("change", [change_rocm_file, change_dependency, change_own_requirements])
def test_prepares_another_environment_where_its_parts_have_changed(
    build: SampleBuild, workshop: Workshop, change: Callable[[SampleBuild], SampleBuild]
) -> None:
    workshop.make(build)
    first_digest = workshop.environment_digest

    workshop.make(change(build))

    assert workshop.environment_digest != first_digest


# Failures


def read_failure(run: LocalRun) -> Record:
    """Return the record of the failed build."""
    record = records.read(run.store, run.common().outputs, FAMILY, f"{NAME}.failed")
    assert record is not None
    return record


def test_records_what_is_known_of_a_build_that_failed(
    build: SampleBuild, run: LocalRun, workshop: Workshop, monkeypatch: pytest.MonkeyPatch
) -> None:
    progress = {"done": 7, "total": 9, "failed": ["a.o"]}

    def fail(*_arguments: Any, log: Path, **_options: Any) -> Path:
        log.parent.mkdir(parents=True, exist_ok=True)
        log.write_text("[7/9] Building b.o\nFAILED: a.o\n")
        raise BuildError("no wheel")

    monkeypatch.setattr(stage, "execute", fail)

    with pytest.raises(BuildError):
        build_wheel(build.work)

    failure = read_failure(run)
    assert failure.status == "failed"
    assert failure.exit_code == BuildError.exit_code
    assert failure.details["reached"] == progress
    assert "built" not in workshop.steps


# Wheels that were built and refused


def test_accepts_a_wheel_by_a_users_policy(build: SampleBuild, workshop: Workshop) -> None:
    workshop.findings = (REFUSED,)

    record = build_wheel(build.requested(policy=OWN_POLICY).work)

    assert isinstance(record, Record)
    assert record.details["policy"] == "mine.toml"
    assert record.details["machine_libraries"] == ["libfmt.so.10"]


def refuse_by_a_check(workshop: Workshop) -> str:
    """Let a check refuse the wheel; return what the error names."""
    workshop.findings = (REFUSED,)
    return "libfoo.so"


def refuse_by_the_import(workshop: Workshop) -> str:
    """Let the import of the wheel fail; return what the error names."""
    workshop.import_error = BuildError("libomp.so is not there.")
    return "libomp.so"


@pytest.mark.parametrize("refuse", [refuse_by_a_check, refuse_by_the_import])
def test_names_where_a_refused_wheel_lies(
    build: SampleBuild, run: LocalRun, workshop: Workshop, refuse: Callable[[Workshop], str]
) -> None:
    reason = refuse(workshop)

    with pytest.raises(FatalError) as caught:
        build_wheel(build.work)

    assert reason in caught.value.message
    assert str(run.wheel("torch", TORCH_VERSION).parent) in caught.value.hint
    # It is not a wheel of the run.
    assert list(run.store.list(run.common().outputs.python_prefix(FAMILY))) == []


def test_builds_a_refused_wheel_again(build: SampleBuild, workshop: Workshop) -> None:
    workshop.findings = (REFUSED,)
    with pytest.raises(CheckError):
        build_wheel(build.work)
    workshop.steps.clear()
    workshop.findings = ()

    record = build_wheel(build.work)

    assert isinstance(record, Record)
    assert "built" in workshop.steps
