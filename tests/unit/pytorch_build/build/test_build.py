from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from core.env.installer import Install
from core.errors import MissingInputError, RocmError, UsageError
from pytorch_build.build.build import Build, Dependency, borrow, built, dependencies, gpu_targets
from tests.unit.pytorch_build.build.conftest import ROCM


def found(*words: Any) -> list[Dependency]:
    return list(dependencies(*words))


def names(depends: list[Dependency]) -> list[str]:
    return [one.project for one in depends]


def test_wheels_of_the_run_are_found_in_the_order_of_installation(run: Any) -> None:
    torch, triton = run.built("torch"), run.built("triton")
    depends = found(run.context(), run.target(), "vision")
    assert names(depends) == ["triton", "torch"]
    assert [one.digest for one in depends] == [triton.sha256, torch.sha256]
    assert depends[1].version == torch.version
    assert Path(depends[1].requirement).is_file()
    assert [one.identity for one in depends] == [{"digest": triton.sha256}, {"digest": torch.sha256}]


@pytest.mark.parametrize("other", [{"gpu_family": "cpu"}, {"python": "cp313"}, {"run_id": "77"}, {}])
def test_a_torch_of_another_cell_is_none(run: Any, other: dict[str, str]) -> None:
    torch = run.built("torch", **other)
    if not other:
        run.store.delete(torch.key)  # its file has gone
    with pytest.raises(MissingInputError) as caught:
        found(run.context(), run.target(), "audio")
    assert not other or "no torch wheel of sample for gfx94X-dcgpu and Python 3.12" in caught.value.message
    hint = caught.value.hint
    assert "nox -s build_torch -P 3.12 -- --torch-ref sample --gpu-family gfx94X-dcgpu" in hint


def test_torch_without_triton_is_a_warning_for_a_developer_alone(
    run: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    assert found(run.context(), run.target(), "torch") == []
    said = capsys.readouterr().err
    assert "warning: Run local has no triton wheel" in said
    assert "flash attention" in said
    # and an error in a run that others use
    chosen = run.context(run_id="77")
    with pytest.raises(MissingInputError) as caught:
        found(chosen, run.target(), "torch")
    assert "nox -s build_triton" in caught.value.hint
    assert caught.value.hint.endswith("--gpu-family gfx94X-dcgpu --run-id 77")
    # where the ref builds it, and for torch itself
    without = replace(chosen, ref=chosen.ref.only({"torch", "audio"}))
    assert found(without, run.target(), "torch") == found(chosen, run.target(), "triton") == []
    run.built("torch", run_id="77")
    assert names(found(chosen, run.target(), "audio")) == ["torch"]
    assert capsys.readouterr().err == ""
    # a changed tree may lack it in any run, and family cpu has no use for it
    assert list(dependencies(chosen, run.target(), "torch", own=True)) == []
    capsys.readouterr()
    run.built("triton", gpu_family="cpu")
    assert found(run.context("cpu", run_id="77"), run.target(), "torch") == []
    assert "triton" not in capsys.readouterr().err


def test_a_borrowed_wheel_is_the_runs_and_its_record_says_whose_it_was(run: Any) -> None:
    wheel, mine, local = run.built("triton"), run.context(run_id="local-mine"), run.context()
    borrow(mine, local, "cp312", "triton")
    (triton,) = found(mine, run.target(), "torch")
    assert triton.digest == wheel.sha256
    record = built(mine, "cp312", "triton")
    assert record is not None
    assert (record.run_id, record.details) == ("local-mine", {"borrowed": "local"})
    with pytest.raises(MissingInputError, match="Run local has no torch wheel"):
        borrow(mine, local, "cp312", "torch")


def test_a_prebuilt_torch_is_a_requirement(run: Any) -> None:
    chosen = run.context("cpu")
    torch = replace(chosen.ref.projects["torch"], prebuilt="torch==2.13.0")
    ref = replace(chosen.ref, projects={"torch": torch, "audio": chosen.ref.projects["audio"]})
    depends = found(replace(chosen, ref=ref), run.target(), "audio")
    assert [(one.requirement, one.version, one.digest) for one in depends] == [("torch==2.13.0", "", "")]
    assert depends[0].identity == {"requirement": "torch==2.13.0"}


def test_the_environment_gets_locked_requirements_rocm_and_triton(build: Build) -> None:
    rocm = Install(requirements=("rocm==7.1.0",))
    locked, second, triton = build.environment_calls(rocm)
    assert locked.hashed
    assert second == rocm
    assert triton.requirements == ("/run/triton.whl",)
    # what it requires of ours is there already, and what of others is installed by name
    assert not triton.dependencies
    assert triton.sources is None
    others = replace(build.dependencies[0], others=("numpy", "filelock"))
    assert build.environment_calls(None)[1:] == [triton]
    assert replace(build, dependencies=(others,)).environment_calls(None)[-1].requirements == (
        "filelock",
        "numpy",
    )


def test_a_refs_requirements_replace_locked_ones(build: Build) -> None:
    ref = build.context.ref
    torch = replace(ref.projects["torch"], build_requirements=("setuptools<70",), env={"USE_X": "1"})
    ref = replace(ref, projects={**ref.projects, "torch": torch})
    chosen = replace(build, context=replace(build.context, ref=ref))
    locked, wanted, _ = chosen.environment_calls(None)
    assert "setuptools" not in locked.files[0].read_text()
    assert wanted.requirements == ("setuptools<70",)
    assert chosen.source.env == {"USE_X": "1"}


def test_device_code_is_split_as_rocm_is_and_torch_may_be_foreign(build: Build) -> None:
    assert build.splits
    assert not replace(build, project="audio").splits
    assert not replace(build, choices=replace(build.choices, split=False)).splits
    assert not replace(build, rocm=replace(ROCM, layout="unsplit")).splits
    assert not replace(build, rocm=None).splits
    torch = Dependency(project="torch", requirement="torch", digest="cc")
    assert not build.foreign_torch
    assert not replace(build, dependencies=(torch,)).foreign_torch
    assert replace(build, dependencies=(replace(torch, digest=""),)).foreign_torch


def test_targets_come_from_the_option_then_the_variable_then_the_family(build: Build) -> None:
    assert "gfx942" in build.gpu_targets
    inherited = replace(build, base_env={"PYTORCH_ROCM_ARCH": "gfx950"})
    assert inherited.gpu_targets == ("gfx950",)
    for text, expected in (("gfx90a;gfx942", ("gfx90a", "gfx942")), ("gfx94X", None)):
        chosen = replace(inherited, choices=replace(build.choices, gpu_targets=text))
        if expected:
            assert chosen.gpu_targets == expected
        else:
            with pytest.raises(UsageError, match="--pytorch-rocm-arch"):
                _ = chosen.gpu_targets


def test_what_is_no_target_is_refused() -> None:
    assert gpu_targets(chosen="", inherited="", sdk=("gfx942", "gfx942", "gfx950")) == ("gfx942", "gfx950")
    assert gpu_targets(chosen="gfx90a:xnack+", inherited="gfx1100", sdk=()) == ("gfx90a:xnack+",)
    with pytest.raises(UsageError, match="'gfx94X' in --pytorch-rocm-arch"):
        gpu_targets(chosen="gfx942,gfx94X", inherited="", sdk=())
    with pytest.raises(UsageError, match="'native' in PYTORCH_ROCM_ARCH"):
        gpu_targets(chosen="", inherited="native", sdk=())
    with pytest.raises(RocmError, match="no GPU targets"):
        gpu_targets(chosen=" ", inherited=";", sdk=())


targets = st.lists(st.from_regex(r"gfx(9[0-9a-f]{2}|1[0-9]{3})", fullmatch=True), min_size=1, unique=True)


@given(targets, st.sampled_from([",", ";", " ", ", "]))
def test_targets_keep_their_order_through_any_separator(words: list[str], separator: str) -> None:
    assert gpu_targets(chosen=separator.join(words), inherited="", sdk=()) == tuple(words)
