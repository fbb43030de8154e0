from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from core.env.installer import Install
from core.errors import MissingInputError, RocmError, UsageError
from pytorch_build.build.build import Build, Dependency, borrow, built, dependencies, gpu_targets
from pytorch_build.context import Context
from tests.kit.builds import ROCM_SOURCE, LocalRun


def list_dependencies(run: LocalRun, context: Context, project: str) -> list[Dependency]:
    """Return what a project's build stands on, in the order of installation."""
    return list(dependencies(context, run.target(), project))


def projects_of(found_dependencies: list[Dependency]) -> list[str]:
    """Return the names of dependencies."""
    return [dependency.project for dependency in found_dependencies]


# Dependencies


def test_finds_wheels_of_the_run_in_the_order_of_installation(run: LocalRun) -> None:
    torch_file = run.built("torch")
    triton_file = run.built("triton")

    triton, torch = list_dependencies(run, run.context(), "vision")

    assert triton.project == "triton"
    assert triton.identity == {"digest": triton_file.sha256}
    assert torch.project == "torch"
    assert torch.identity == {"digest": torch_file.sha256}
    assert torch.version == torch_file.version
    assert Path(torch.requirement).is_file()


@pytest.mark.parametrize("cell", [{"gpu_family": "cpu"}, {"python": "cp313"}, {"run_id": "77"}])
def test_takes_no_torch_of_another_cell(run: LocalRun, cell: dict[str, str]) -> None:
    run.built("torch", **cell)

    with pytest.raises(MissingInputError) as caught:
        list_dependencies(run, run.context(), "audio")

    missing = ("torch", "sample", "gfx94X-dcgpu", "Python 3.12")
    assert [name for name in missing if name not in caught.value.message] == []


def test_names_the_command_that_builds_a_torch_whose_file_is_gone(run: LocalRun) -> None:
    torch = run.built("torch")
    run.store.delete(torch.key)

    with pytest.raises(MissingInputError) as caught:
        list_dependencies(run, run.context(), "audio")

    command = "nox -s build_torch -P 3.12 -- --torch-ref sample --gpu-family gfx94X-dcgpu"
    assert command in caught.value.hint


def test_warns_a_developer_whose_torch_has_no_triton(
    run: LocalRun, capsys: pytest.CaptureFixture[str]
) -> None:
    assert list_dependencies(run, run.context(), "torch") == []

    printed = capsys.readouterr().err
    assert "warning: " in printed
    assert "triton" in printed
    assert "flash attention" in printed


def test_requires_triton_in_a_run_that_others_use(run: LocalRun) -> None:
    with pytest.raises(MissingInputError) as caught:
        list_dependencies(run, run.context(run_id="77"), "torch")

    assert "nox -s build_triton" in caught.value.hint
    assert caught.value.hint.endswith("--gpu-family gfx94X-dcgpu --run-id 77")


def test_requires_no_triton_where_the_ref_builds_none(
    run: LocalRun, capsys: pytest.CaptureFixture[str]
) -> None:
    context = run.context(run_id="77")
    without_triton = replace(context, ref=context.ref.only({"torch", "audio"}))

    assert list_dependencies(run, without_triton, "torch") == []
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize("project", ["triton", "audio"])
def test_requires_triton_for_torch_alone(
    run: LocalRun, project: str, capsys: pytest.CaptureFixture[str]
) -> None:
    run.built("torch", run_id="77")

    found_dependencies = list_dependencies(run, run.context(run_id="77"), project)

    assert projects_of(found_dependencies) == (["torch"] if project == "audio" else [])
    assert capsys.readouterr().err == ""


def test_lets_a_developers_tree_be_built_without_triton_in_any_run(run: LocalRun) -> None:
    context = run.context(run_id="77")

    assert list(dependencies(context, run.target(), "torch", own=True)) == []


def test_takes_no_triton_for_family_cpu(run: LocalRun, capsys: pytest.CaptureFixture[str]) -> None:
    run.built("triton", gpu_family="cpu", run_id="77")

    assert list_dependencies(run, run.context("cpu", run_id="77"), "torch") == []
    assert "triton" not in capsys.readouterr().err


def test_takes_a_prebuilt_torch_by_its_requirement(run: LocalRun) -> None:
    context = run.context("cpu")
    torch = replace(context.ref.projects["torch"], prebuilt="torch==2.13.0")
    ref = replace(context.ref, projects={"torch": torch, "audio": context.ref.projects["audio"]})

    (dependency,) = list_dependencies(run, replace(context, ref=ref), "audio")

    assert dependency == Dependency(project="torch", requirement="torch==2.13.0")
    assert dependency.identity == {"requirement": "torch==2.13.0"}


# Wheels that are borrowed from another run


def test_takes_a_borrowed_wheel_and_records_whose_it_is(run: LocalRun) -> None:
    wheel = run.built("triton")
    borrower = run.context(run_id="local-mine")

    borrow(borrower, run.context(), "cp312", "triton")

    (triton,) = list_dependencies(run, borrower, "torch")
    assert triton.digest == wheel.sha256
    record = built(borrower, "cp312", "triton")
    assert record is not None
    assert record.run_id == "local-mine"
    assert record.details == {"borrowed": "local"}


def test_names_the_run_that_has_no_wheel_to_lend(run: LocalRun) -> None:
    with pytest.raises(MissingInputError, match="local has no torch"):
        borrow(run.context(run_id="local-mine"), run.context(), "cp312", "torch")


# The environment of a build


def test_installs_locked_requirements_then_rocm_then_triton(build: Build) -> None:
    rocm = Install(requirements=("rocm==7.1.0",))

    locked, second, triton = build.environment_calls(rocm)

    assert locked.hashed
    assert second == rocm
    assert triton.requirements == ("/run/triton.whl",)
    # What it requires of ours is there already; what it requires of others is installed by name.
    assert not triton.dependencies
    assert triton.sources is None


def test_installs_by_name_what_a_dependency_requires_of_others(build: Build) -> None:
    triton = replace(build.dependencies[0], others=("numpy", "filelock"))

    calls = replace(build, dependencies=(triton,)).environment_calls(None)

    assert calls[-1].requirements == ("filelock", "numpy")
    assert len(calls) == len(build.environment_calls(None)) + 1


def test_installs_a_refs_build_requirements_in_the_place_of_locked_ones(build: Build) -> None:
    ref = build.context.ref
    torch = replace(ref.projects["torch"], build_requirements=("setuptools<70",))
    ref = replace(ref, projects={**ref.projects, "torch": torch})
    changed_build = replace(build, context=replace(build.context, ref=ref))

    locked, ref_requirements, _triton = changed_build.environment_calls(None)

    assert "setuptools" not in locked.files[0].read_text()
    assert ref_requirements.requirements == ("setuptools<70",)


# Device code


def test_splits_device_code_where_rocms_is_split(build: Build) -> None:
    assert build.splits


@pytest.mark.parametrize("reason", ["other project", "user's choice", "unsplit ROCm", "no ROCm"])
def test_splits_no_device_code_otherwise(build: Build, reason: str) -> None:
    builds = {
        "other project": replace(build, project="audio"),
        "user's choice": replace(build, choices=replace(build.choices, split=False)),
        "unsplit ROCm": replace(build, rocm=replace(ROCM_SOURCE, layout="unsplit")),
        "no ROCm": replace(build, rocm=None),
    }

    assert not builds[reason].splits


@pytest.mark.parametrize(("digest", "is_foreign"), [("cc", False), ("", True)])
def test_calls_a_torch_foreign_that_the_run_did_not_build(
    build: Build, digest: str, *, is_foreign: bool
) -> None:
    torch = Dependency(project="torch", requirement="torch", digest=digest)

    assert replace(build, dependencies=(torch,)).foreign_torch is is_foreign


def test_calls_no_torch_foreign_where_there_is_none(build: Build) -> None:
    assert not build.foreign_torch


# GPU targets


def with_targets(build: Build, *, option: str = "", variable: str = "") -> Build:
    """Return a build whose GPU targets a user named."""
    base_env = {"PYTORCH_ROCM_ARCH": variable} if variable else {}
    return replace(build, base_env=base_env, choices=replace(build.choices, gpu_targets=option))


@pytest.mark.parametrize(
    ("option", "variable", "targets"),
    [
        ("gfx90a;gfx942", "gfx950", ("gfx90a", "gfx942")),
        ("", "gfx950", ("gfx950",)),
    ],
    ids=["option", "variable"],
)
def test_takes_targets_from_the_option_before_the_variable(
    build: Build, option: str, variable: str, targets: tuple[str, ...]
) -> None:
    assert with_targets(build, option=option, variable=variable).gpu_targets == targets


def test_takes_the_familys_targets_by_default(build: Build) -> None:
    assert "gfx942" in build.gpu_targets


def test_takes_each_of_the_sdks_targets_once() -> None:
    targets = gpu_targets(chosen="", inherited="", sdk=("gfx942", "gfx942", "gfx950"))

    assert targets == ("gfx942", "gfx950")


def test_keeps_the_features_of_a_target() -> None:
    targets = gpu_targets(chosen="gfx90a:xnack+", inherited="gfx1100", sdk=())

    assert targets == ("gfx90a:xnack+",)


@pytest.mark.parametrize(
    ("option", "variable", "names"),
    [
        ("gfx942,gfx94X", "", ["'gfx94X'", "--pytorch-rocm-arch"]),
        ("gfx94X", "gfx950", ["'gfx94X'", "--pytorch-rocm-arch"]),
        ("", "native", ["'native'", "PYTORCH_ROCM_ARCH"]),
    ],
)
def test_rejects_a_name_that_is_not_a_target(option: str, variable: str, names: list[str]) -> None:
    with pytest.raises(UsageError) as caught:
        gpu_targets(chosen=option, inherited=variable, sdk=())

    assert [name for name in names if name not in caught.value.message] == []


def test_rejects_an_sdk_without_targets_where_none_are_named() -> None:
    with pytest.raises(RocmError):
        gpu_targets(chosen=" ", inherited=";", sdk=())


# Sampled rather than matched to a pattern: thousands of candidates, and each is drawn at once.
TARGETS = st.lists(
    st.sampled_from([f"gfx9{number:02x}" for number in range(256)])
    | st.integers(1000, 1999).map("gfx{}".format),
    min_size=1,
    max_size=20,
    unique=True,
)


@given(targets=TARGETS, separator=st.sampled_from([",", ";", " ", ", "]))
def test_keeps_the_order_of_targets_through_any_separator(targets: list[str], separator: str) -> None:
    assert gpu_targets(chosen=separator.join(targets), inherited="", sdk=()) == tuple(targets)
