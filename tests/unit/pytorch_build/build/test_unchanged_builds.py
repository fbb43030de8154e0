"""When a build says that nothing has changed: every input of its record, changed alone, and what is none."""

import shutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest

from core import files
from core.cell import GroupCell
from core.errors import SourceError
from core.packages.sources import linked_source
from core.run import records
from core.run.records import FileRecord, Record
from core.run.stage import StageResult
from pytorch_build.build import inputs as inputs_module
from pytorch_build.build.build import Work, build_wheel
from pytorch_build.build.inputs import Dependency
from pytorch_build.sdk import RocmOptions
from tests.kit.builds import (
    FAMILY,
    ROCM_FILE,
    ROCM_SOURCE,
    TORCH_VERSION,
    LocalRun,
    SampleBuild,
    ready_tree,
)

Change = Callable[[SampleBuild], SampleBuild]

COMMIT = "1" * 40
OTHER_COMMIT = "2" * 40
RECORD_NAME = "build_torch-sample-cp312"
RULES = Path(inputs_module.__file__).parents[1]
OTHER_SOURCE = linked_source("/elsewhere")
# The rules that builds follow, which a record knows by their digest.
RULE_PATTERNS = (
    "build/execution.py",
    "build/facts.py",
    "build/plan.py",
    "build/search_paths.py",
    "build/stage.py",
    "components/steps.py",
    "components/torch.py",
    "platforms.*",
    "split/*.py",
)
RULE_NAMES = sorted(
    path.relative_to(RULES).as_posix() for pattern in RULE_PATTERNS for path in RULES.glob(pattern)
)


# Changes of a build: each returns another build, or the same one after it has changed a file.


def change_source(commit: str = COMMIT, *, hipify: bool = True) -> Change:
    """Return a change of the source tree: its commit, or what is done to it."""
    inputs = {"commit": commit, "hipify": hipify}
    return lambda build: build.made_of(tree=ready_tree(build.tree.path, inputs=inputs))


def change_version(build: SampleBuild) -> SampleBuild:
    """Give the tree another version."""
    return build.made_of(tree=ready_tree(build.tree.path, version="2.10.0a1"))


def change_choice(**choices: Any) -> Change:
    """Return a change of what the user chose."""
    return lambda build: build.requested(**choices)


def change_output_folder(build: SampleBuild) -> SampleBuild:
    """Let a second folder have the wheel as well."""
    return change_choice(output_dir=build.request.context.common.root / "elsewhere")(build)


def change_variable(name: str, value: str) -> Change:
    """Return a change of the user's environment."""
    return lambda build: build.requested(user_env={**build.request.user_env, name: value})


def change_ref(**facts: Any) -> Change:
    """Return a change of what the torch ref says of torch."""

    def change(build: SampleBuild) -> SampleBuild:
        context = build.request.context
        ref = context.ref
        torch = replace(ref.projects["torch"], **facts)
        changed_ref = replace(ref, projects={**ref.projects, "torch": torch})
        return build.requested(context=replace(context, ref=changed_ref))

    return change


def change_rocm(**facts: Any) -> Change:
    """Return a change of the ROCm that is built against."""
    return lambda build: build.made_of(rocm=replace(build.rocm or ROCM_SOURCE, **facts))


def change_target(**facts: Any) -> Change:
    """Return a change of the interpreter that is built for."""
    return lambda build: build.requested(target=replace(build.request.target, **facts))


def change_dependencies(*dependencies: Dependency) -> Change:
    """Return a change of the wheels that are installed before the build."""
    return lambda build: build.made_of(dependencies=dependencies)


def change_requirements(name: str, text: str) -> Change:
    """Return a change of a file of locked or unlocked requirements."""

    def change(build: SampleBuild) -> SampleBuild:
        (build.request.context.common.root / "requirements" / name).write_text(text)
        return build

    return change


def change_nothing(build: SampleBuild) -> SampleBuild:
    """Leave the build as it is."""
    return build


@dataclass(frozen=True, kw_only=True)
class Row:
    """A change, and which inputs of the record it changes."""

    name: str
    change: Change
    inputs: frozenset[str]


def row(name: str, change: Change, *input_names: str) -> Row:
    """Return a row of the table."""
    return Row(name=name, change=change, inputs=frozenset(input_names))


TRITON = Dependency(project="triton", requirement="/run/triton.whl", version="3.6.0", digest="cc")
PREBUILT_TRITON = Dependency(project="triton", requirement="triton==3.6.0")

TABLE = [
    row("commit", change_source(OTHER_COMMIT), "source"),
    row("hipify", change_source(hipify=False), "source"),
    row("version", change_version, "version"),
    row("Python's patch version", change_target(version="3.12.5"), "python"),
    row("ROCm's version", change_rocm(version="7.2"), "rocm"),
    row("ROCm's files", change_rocm(files=(replace(ROCM_FILE, sha256="cc"),)), "rocm"),
    # Device code is split where ROCm's is.
    row("ROCm's layout", change_rocm(layout="unsplit"), "rocm", "split"),
    row("ROCm's extras", change_choice(rocm=RocmOptions(extras=("profiler",))), "rocm_extras"),
    row("GPU targets", change_choice(requested_targets="gfx950"), "gpu_targets"),
    row("inherited GPU targets", change_variable("PYTORCH_ROCM_ARCH", "gfx950"), "gpu_targets"),
    row("dependency", change_dependencies(TRITON), "dependencies"),
    row("prebuilt dependency", change_dependencies(PREBUILT_TRITON), "dependencies"),
    row("no dependency", change_dependencies(), "dependencies"),
    row("ref's variables", change_ref(env={"USE_X": "1"}), "ref_env"),
    row("ref's requirements", change_ref(build_requirements=("setuptools<81",)), "build_requirements"),
    row("flash attention", change_choice(flash_attention=False), "flash_attention"),
    row("unsplit device code", change_choice(may_split=False), "split"),
    row("compiler flags", change_variable("CXXFLAGS", "-O1"), "flags"),
    row("compiler", change_variable("CXX", "clang++"), "flags"),
    row("CMake's arguments", change_variable("CMAKE_ARGS", "-G Ninja"), "flags"),
    row("upstream's switch", change_variable("USE_DISTRIBUTED", "0"), "flags"),
    row("upstream's build switch", change_variable("BUILD_TEST", "0"), "flags"),
    row("date", change_variable("SOURCE_DATE_EPOCH", "0"), "flags"),
    row(
        "locked requirements",
        change_requirements("target-linux-3.12.txt", "numpy==2.1\n"),
        "lock",
    ),
]

# What leaves the wheel as it is.
UNCOUNTED: Mapping[str, Change] = {
    "nothing": change_nothing,
    "home folder": change_variable("HOME", "/home/you"),
    "PATH": change_variable("PATH", "/opt/bin:/usr/bin"),
    "inherited number of jobs": change_variable("MAX_JOBS", "1"),
    "number of jobs": change_choice(max_jobs="3"),
    "number of a CI job": change_variable("BUILD_NUMBER", "17"),
    "clean build": change_choice(clean=True),
    "second folder": change_output_folder,
    "address of ROCm's files": change_rocm(packages=OTHER_SOURCE),
    "environment's folder": change_target(executable=Path("/other/bin/python")),
    "unlocked requirements": change_requirements("target.in", "numpy\nrich\n"),
}


@dataclass(frozen=True, kw_only=True)
class Workshop:
    """Does the work of builds: makes the promised wheel at once, and notes each time."""

    run: LocalRun
    builds: list[Work]

    def make(self, work: Work, *_unused: object) -> StageResult:
        """Make a wheel that differs from the last one."""
        self.builds.append(work)
        python = work.request.target.tag
        wheel = self.run.wheel(
            "torch",
            work.inputs.version,
            f"{python}-{python}-linux_x86_64",
            requires=[f"numpy>{len(self.builds)}"],
        )
        return StageResult(files=(wheel,), details={})

    def count(self, build: SampleBuild) -> int:
        """Perform a build; return how many times the work was done for it."""
        count_before = len(self.builds)
        record = build_wheel(build.work)
        assert isinstance(record, Record)
        return len(self.builds) - count_before


@pytest.fixture
def work(run: LocalRun, monkeypatch: pytest.MonkeyPatch) -> Workshop:
    """Return what stands for the work of builds, which takes real tools."""
    workshop = Workshop(run=run, builds=[])
    monkeypatch.setattr("pytorch_build.build.stage.build_and_check", workshop.make)
    return workshop


# The table


@pytest.mark.parametrize("change", TABLE, ids=[change.name for change in TABLE])
def test_builds_again_where_an_input_has_changed(build: SampleBuild, work: Workshop, change: Row) -> None:
    assert work.count(build) == 1

    assert work.count(change.change(build)) == 1


@pytest.mark.parametrize("change", TABLE, ids=[change.name for change in TABLE])
def test_each_change_is_a_change_of_one_input(build: SampleBuild, change: Row) -> None:
    inputs_before = build.work.inputs.to_json()

    changed_inputs = change.change(build).work.inputs.to_json()

    differing = {name for name in inputs_before if changed_inputs[name] != inputs_before[name]}
    assert differing == change.inputs
    assert changed_inputs.keys() == inputs_before.keys()


def test_the_table_has_every_input(build: SampleBuild, work: Workshop) -> None:
    assert work.count(build) == 1
    record = read_record(work.run)

    # A changed rule has a test of its own.
    assert frozenset({"code"}).union(*(change.inputs for change in TABLE)) == record.inputs.keys()


@pytest.mark.parametrize("name", UNCOUNTED)
def test_does_nothing_where_no_input_has_changed(build: SampleBuild, work: Workshop, name: str) -> None:
    assert work.count(build) == 1

    assert work.count(UNCOUNTED[name](build)) == 0


def copy_rules(folder: Path) -> Path:
    """Copy the rules that builds follow to another place; return the place of the package."""
    package = folder / "checkout" / "pytorch_build"
    for name in RULE_NAMES:
        (package / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(RULES / name, package / name)
    return package


def test_does_nothing_where_the_checkout_has_moved(
    build: SampleBuild, work: Workshop, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert work.count(build) == 1

    package = copy_rules(tmp_path)
    monkeypatch.setattr(inputs_module, "__file__", str(package / "build" / "inputs.py"))

    assert work.count(build) == 0


@pytest.mark.parametrize("name", RULE_NAMES)
def test_builds_again_where_a_rule_has_changed(
    build: SampleBuild, work: Workshop, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    assert work.count(build) == 1

    package = copy_rules(tmp_path)
    with (package / name).open("a") as rule:
        rule.write("# changed\n")
    monkeypatch.setattr(inputs_module, "__file__", str(package / "build" / "inputs.py"))

    assert work.count(build) == 1


# What a record promises must be there


def read_record(run: LocalRun) -> Record:
    """Return the record of the build."""
    record = records.read(run.store, run.common().outputs, FAMILY, RECORD_NAME)
    assert record is not None
    return record


def remove_wheel(run: LocalRun, wheel: FileRecord) -> None:
    """Delete a wheel of the run."""
    run.store.delete(wheel.key)


def alter_wheel(run: LocalRun, wheel: FileRecord) -> None:
    """Write other bytes in the place of a wheel of the run."""
    run.store.put_bytes(wheel.key, b"other bytes")


def remove_record(run: LocalRun, _wheel: FileRecord) -> None:
    """Delete the record of the build."""
    run.store.delete(run.common().outputs.record_key(FAMILY, RECORD_NAME))


@pytest.mark.parametrize("damage", [remove_wheel, alter_wheel, remove_record])
def test_builds_again_where_the_recorded_wheel_is_not_there(
    build: SampleBuild, work: Workshop, damage: Callable[[LocalRun, FileRecord], None]
) -> None:
    assert work.count(build) == 1

    damage(work.run, read_record(work.run).files[0])

    assert work.count(build) == 1


def test_builds_again_where_a_user_forces_it(build: SampleBuild, work: Workshop) -> None:
    assert work.count(build) == 1

    assert work.count(build.requested(context=work.run.context(force=True))) == 1


def test_builds_again_after_a_build_of_other_inputs(build: SampleBuild, work: Workshop) -> None:
    other_build = change_source(OTHER_COMMIT)(build)

    assert work.count(build) == 1
    assert work.count(other_build) == 1
    assert work.count(build) == 1


def test_builds_once_for_each_python(build: SampleBuild, work: Workshop) -> None:
    other_build = build.requested(target=work.run.target("3.13.0"))

    assert work.count(build) == 1
    assert work.count(other_build) == 1
    assert work.count(build) == 0
    assert work.count(other_build) == 0


# What a build records


def test_records_a_build_with_its_cell_and_its_wheel(build: SampleBuild, work: Workshop) -> None:
    record = build_wheel(build.work)

    assert isinstance(record, Record)
    assert record == read_record(work.run)
    assert record.cell == GroupCell(python="3.12", torch_ref="sample", gpu_family=FAMILY)
    assert [file.version for file in record.files] == [TORCH_VERSION]
    assert work.run.store.digest(record.files[0].key) == record.files[0].sha256
    assert record.input_digest == files.digest_of(build.work.inputs.to_json())


def test_returns_the_record_of_before_where_nothing_has_changed(
    build: SampleBuild, work: Workshop, capsys: pytest.CaptureFixture[str]
) -> None:
    record = build_wheel(build.work)
    capsys.readouterr()

    assert build_wheel(build.work) == record
    assert "build_torch: unchanged" in capsys.readouterr().err
    assert len(work.builds) == 1


@pytest.mark.parametrize("is_unchanged", [True, False])
def test_copies_the_wheel_to_a_second_folder(
    build: SampleBuild, work: Workshop, *, is_unchanged: bool
) -> None:
    if is_unchanged:
        build_wheel(build.work)
    folder = work.run.root / "mine"

    record = build_wheel(change_choice(output_dir=folder)(build).work)

    assert isinstance(record, Record)
    assert [path.name for path in folder.iterdir()] == [record.files[0].name]


# Other torch refs in the run


def of_other_ref(build: SampleBuild) -> SampleBuild:
    """Return the same build for another torch ref."""
    context = build.request.context
    return build.requested(context=replace(context, ref=replace(context.ref, name="second")))


def test_takes_the_wheel_of_another_torch_ref_with_the_same_inputs(
    build: SampleBuild, work: Workshop
) -> None:
    assert work.count(build) == 1

    assert work.count(of_other_ref(build)) == 0


def test_refuses_to_replace_the_wheel_of_another_torch_ref(build: SampleBuild, work: Workshop) -> None:
    assert work.count(build) == 1
    other_build = change_variable("CXXFLAGS", "-g")(of_other_ref(build))

    with pytest.raises(SourceError, match="torch ref sample") as caught:
        work.count(other_build)

    assert "--run-id local-second" in caught.value.hint


# Inputs of other builds


def test_counts_no_rocm_and_no_targets_for_family_cpu(build: SampleBuild, run: LocalRun) -> None:
    cpu_build = build.requested(context=run.context("cpu")).made_of(rocm=None)
    cpu_build = change_choice(rocm=RocmOptions(extras=("profiler",)))(cpu_build)

    build_inputs = cpu_build.work.inputs.to_json()

    assert build_inputs["rocm"] is None
    assert build_inputs["gpu_targets"] == []
    assert build_inputs["rocm_extras"] == []


def test_records_no_credentials_of_a_users_variable(build: SampleBuild) -> None:
    build = change_variable("CMAKE_ARGS", "-DURL=https://me:hunter22@host/")(build)

    flags = build.work.inputs.flags

    assert "hunter22" not in str(flags)
    assert "host" in flags["CMAKE_ARGS"]


def test_counts_unlocked_requirements_for_a_python_without_a_lock(build: SampleBuild, work: Workshop) -> None:
    build = build.requested(target=work.run.target("3.14.0"))
    assert work.count(build) == 1

    change_requirements("target.in", "numpy\nrich\n")(build)

    assert work.count(build) == 1


def test_counts_the_address_of_rocms_files_without_digests(build: SampleBuild, work: Workshop) -> None:
    without_digests = (replace(ROCM_FILE, sha256=None),)
    build = change_rocm(files=without_digests)(build)
    assert work.count(build) == 1

    assert work.count(change_rocm(packages=OTHER_SOURCE)(build)) == 1
