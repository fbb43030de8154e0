from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from core.errors import MissingInputError
from pytorch_build.build.build import dependencies, dependency_inputs


def names(found: Any) -> list[str]:
    return [one.project for one in found]


def test_triton_stands_on_nothing(run: Any) -> None:
    assert dependencies(run.context(), run.target(), "triton") == []


def test_wheels_of_the_run_are_found_in_the_order_of_installation(run: Any) -> None:
    torch, triton = run.built("torch"), run.built("triton")
    found = dependencies(run.context(), run.target(), "vision")
    assert names(found) == ["triton", "torch"]
    assert [one.digest for one in found] == [triton.sha256, torch.sha256]
    assert found[1].version == torch.version
    assert Path(found[1].requirement).is_file()
    assert dependency_inputs(found) == {
        "triton": {"digest": triton.sha256},
        "torch": {"digest": torch.sha256},
    }


@pytest.mark.parametrize("other", [{"gpu_family": "cpu"}, {"python": "cp313"}, {"run_id": "77"}])
def test_a_torch_of_another_cell_is_none(run: Any, other: dict[str, str]) -> None:
    run.built("torch", **other)
    with pytest.raises(MissingInputError) as caught:
        dependencies(run.context(), run.target(), "audio")
    assert "no torch wheel of sample for gfx94X-dcgpu and Python 3.12" in caught.value.message
    hint = caught.value.hint
    assert "nox -s build_torch -P 3.12 -- --torch-ref sample --gpu-family gfx94X-dcgpu" in hint


def test_a_torch_whose_file_has_gone_is_to_be_built_again(run: Any) -> None:
    run.store.delete(run.built("torch").key)
    with pytest.raises(MissingInputError) as caught:
        dependencies(run.context(), run.target(), "audio")
    assert "nox -s build_torch" in caught.value.hint


def test_torch_without_triton_is_a_warning_for_a_developer(
    run: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    assert dependencies(run.context(), run.target(), "torch") == []
    said = capsys.readouterr().err
    assert "warning: Run local has no triton wheel" in said
    assert "flash attention" in said


def test_torch_without_triton_is_an_error_in_a_run_that_others_use(run: Any) -> None:
    with pytest.raises(MissingInputError) as caught:
        dependencies(run.context(run_id="77"), run.target(), "torch")
    assert "nox -s build_triton" in caught.value.hint


def test_a_ref_that_builds_no_triton_is_not_warned_of_it(
    run: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    chosen = run.context(run_id="77")
    without = replace(chosen, ref=chosen.ref.only({"torch", "audio"}))
    assert dependencies(without, run.target(), "torch") == []
    assert capsys.readouterr().err == ""


def test_only_torch_itself_is_spoiled_by_a_missing_triton(
    run: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    run.built("torch", run_id="77")
    assert names(dependencies(run.context(run_id="77"), run.target(), "audio")) == ["torch"]
    assert capsys.readouterr().err == ""


def test_a_prebuilt_torch_is_a_requirement(run: Any) -> None:
    chosen = run.context("cpu")
    torch = replace(chosen.ref.projects["torch"], prebuilt="torch==2.13.0")
    ref = replace(chosen.ref, projects={"torch": torch, "audio": chosen.ref.projects["audio"]})
    found = dependencies(replace(chosen, ref=ref), run.target(), "audio")
    assert [(one.requirement, one.version, one.digest) for one in found] == [("torch==2.13.0", "", "")]
    assert dependency_inputs(found) == {"torch": {"requirement": "torch==2.13.0"}}
