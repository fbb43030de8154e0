from dataclasses import replace
from pathlib import Path

import pytest

from core.errors import MissingInputError
from pytorch_build.build.build import copy_wheels_from_run, find_dependencies, find_record
from pytorch_build.build.inputs import Dependency
from pytorch_build.context import Context
from tests.kit.builds import LocalRun, request_build


def list_dependencies(run: LocalRun, context: Context, project: str) -> list[Dependency]:
    """Return what a project's build stands on, in the order of installation."""
    return list(find_dependencies(request_build(run, project, context=context)))


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


def test_names_the_command_that_builds_a_torch_whose_file_is_gone(
    run: LocalRun, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("NOX_CURRENT_SESSION", "build_audio-3.12")
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
    without_triton = replace(context, ref=context.ref.with_only_components({"torch", "audio"}))

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

    request = request_build(run, "torch", context=context, own_trees={"torch": run.root})

    assert list(find_dependencies(request)) == []


def test_takes_no_triton_for_family_cpu(run: LocalRun, capsys: pytest.CaptureFixture[str]) -> None:
    run.built("triton", gpu_family="cpu", run_id="77")

    assert list_dependencies(run, run.context("cpu", run_id="77"), "torch") == []
    assert "triton" not in capsys.readouterr().err


def test_takes_a_prebuilt_torch_by_its_requirement(run: LocalRun) -> None:
    context = run.context("cpu")
    torch = replace(context.ref.projects["torch"], prebuilt="torch==2.13.0")
    ref = replace(context.ref, projects={"torch": torch, "audio": context.ref.projects["audio"]})

    (dependency,) = list_dependencies(run, replace(context, ref=ref), "audio")

    assert dependency == Dependency(project="torch", requirement="torch==2.13.0", version="2.13.0")
    assert dependency.identity == {"requirement": "torch==2.13.0"}


# Wheels that are borrowed from another run


def test_takes_a_borrowed_wheel_and_records_whose_it_is(run: LocalRun) -> None:
    wheel = run.built("triton")
    borrower = run.context(run_id="local-mine")

    copy_wheels_from_run(borrower, run.context(), "cp312", "triton")

    (triton,) = list_dependencies(run, borrower, "torch")
    assert triton.digest == wheel.sha256
    record = find_record(borrower, "cp312", "triton")
    assert record is not None
    assert record.run_id == "local-mine"
    assert record.details == {"borrowed": "local"}


def test_names_the_run_that_has_no_wheel_to_lend(run: LocalRun) -> None:
    with pytest.raises(MissingInputError, match="local has no torch"):
        copy_wheels_from_run(run.context(run_id="local-mine"), run.context(), "cp312", "torch")
