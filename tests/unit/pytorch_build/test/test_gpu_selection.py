from __future__ import annotations

import re
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from core.errors import CheckError, UsageError
from core.families import gpu_targets
from pytorch_build.test.gpus import Assignment, Gpu, Machine, select, visible, without_gpu

MI300 = [Gpu(target="gfx942", uuid=f"GPU-942{number:x}", name="AMD Instinct MI300X") for number in range(2)]
NAVI = Gpu(target="gfx1100", uuid="GPU-1100", name="AMD Radeon RX 7900 XTX")
MIXED = Machine(gpus=(MI300[0], NAVI, MI300[1]), vendor="amd")
H200 = Machine(
    gpus=(Gpu(target="sm_90", uuid="GPU-aa", name="NVIDIA H200"), Gpu(target="sm_90", uuid="GPU-ab")),
    vendor="nvidia",
)


def chosen(
    machine: Machine = MIXED, env: dict[str, str] | None = None, family: str = "gfx94X-dcgpu", **changes: Any
) -> list[Assignment]:
    targets = gpu_targets(family)
    return list(select(machine, env or {}, gpu_family=family, targets=targets, **changes))


def test_the_first_gpu_of_the_family_is_taken() -> None:
    (one,) = chosen()
    assert one.target == "gfx942"
    assert one.env == {"HIP_VISIBLE_DEVICES": "0"}
    assert one.words == "gfx942 (0)"


def test_all_gpus_of_the_family_are_taken_where_all_are_asked_for() -> None:
    (one,) = chosen(policy="all")
    assert one.env == {"HIP_VISIBLE_DEVICES": "0,2"}


def test_each_architecture_has_processes_of_its_own() -> None:
    both = chosen(family="gfx94X-dcgpu;gfx110X-all", policy="all")
    assert [(one.target, one.env["HIP_VISIBLE_DEVICES"]) for one in both] == [
        ("gfx942", "0,2"),
        ("gfx1100", "1"),
    ]
    assert [one.env["HIP_VISIBLE_DEVICES"] for one in chosen(family="gfx94X-dcgpu;gfx110X-all")] == ["0", "1"]


@pytest.mark.parametrize(
    ("env", "expected"),
    [
        ({"HIP_VISIBLE_DEVICES": "2,1"}, "2"),
        ({"HIP_VISIBLE_DEVICES": "GPU-9421"}, "GPU-9421"),
        ({"HIP_VISIBLE_DEVICES": "1, gpu-9421 ,0"}, "gpu-9421"),
        ({"HIP_VISIBLE_DEVICES": "2,-1,0"}, "2"),
        ({"ROCR_VISIBLE_DEVICES": "1,2"}, "1"),
        ({"ROCR_VISIBLE_DEVICES": "GPU-9421,1"}, "0"),
        ({"ROCR_VISIBLE_DEVICES": "1,2", "HIP_VISIBLE_DEVICES": "1"}, "1"),
        ({"ROCR_VISIBLE_DEVICES": "1,2", "HIP_VISIBLE_DEVICES": "GPU-9421"}, "GPU-9421"),
    ],
)
def test_what_a_person_hides_stays_hidden(env: dict[str, str], expected: str) -> None:
    (one,) = chosen(env=env)
    assert one.env == {"HIP_VISIBLE_DEVICES": expected}


def test_rocm_takes_cudas_variable_where_its_own_is_not_set() -> None:
    (one,) = chosen(env={"CUDA_VISIBLE_DEVICES": "2", "GPU_DEVICE_ORDINAL": "2"})
    assert one.env == {"HIP_VISIBLE_DEVICES": "2", "CUDA_VISIBLE_DEVICES": None, "GPU_DEVICE_ORDINAL": None}
    (one,) = chosen(env={"CUDA_VISIBLE_DEVICES": "1", "HIP_VISIBLE_DEVICES": "0"})
    assert one.env == {"HIP_VISIBLE_DEVICES": "0", "CUDA_VISIBLE_DEVICES": None}


@pytest.mark.parametrize(
    ("machine", "env", "family", "words"),
    [
        (Machine(), {}, "gfx94X-dcgpu", "no GPU driver is loaded"),
        (Machine(vendor="amd"), {}, "gfx94X-dcgpu", "the GPU driver is loaded and shows no GPU"),
        (MIXED, {}, "gfx950-dcgpu", "No visible GPU is of gfx950-dcgpu (gfx950): here is 2 x gfx942 (AMD"),
        (MIXED, {"HIP_VISIBLE_DEVICES": "1"}, "gfx94X-dcgpu", "here is gfx1100 (AMD Radeon RX 7900 XTX)"),
        (MIXED, {"HIP_VISIBLE_DEVICES": ""}, "gfx94X-dcgpu", "HIP_VISIBLE_DEVICES= hides every GPU"),
        (MIXED, {"ROCR_VISIBLE_DEVICES": "-1"}, "gfx94X-dcgpu", "ROCR_VISIBLE_DEVICES=-1 hides every GPU"),
        (H200, {}, "gfx94X-dcgpu", "here is sm_90 (NVIDIA H200), sm_90"),
    ],
)
def test_no_gpu_to_run_on_is_an_error(machine: Machine, env: dict[str, str], family: str, words: str) -> None:
    with pytest.raises(CheckError, match=re.escape(words)) as caught:
        chosen(machine, env, family)
    assert caught.value.hint


@pytest.mark.parametrize(
    ("env", "words"),
    [
        ({"HIP_VISIBLE_DEVICES": "3"}, "HIP_VISIBLE_DEVICES=3 names 3, and there are GPUs 0 to 2 (GPU-9420"),
        ({"HIP_VISIBLE_DEVICES": "GPU-942"}, "names GPU-942, and"),
        ({"HIP_VISIBLE_DEVICES": "0,0"}, "names a GPU twice"),
        ({"HIP_VISIBLE_DEVICES": "0,GPU-9420"}, "names a GPU twice"),
        ({"ROCR_VISIBLE_DEVICES": "0", "HIP_VISIBLE_DEVICES": "1"}, "there are GPUs 0 to 0"),
        ({"ROCR_VISIBLE_DEVICES": "", "HIP_VISIBLE_DEVICES": "0"}, "there is no GPU"),
        ({"CUDA_VISIBLE_DEVICES": "²"}, "CUDA_VISIBLE_DEVICES=² names"),
    ],
)
def test_a_variable_that_names_what_is_not_there_is_an_error(env: dict[str, str], words: str) -> None:
    with pytest.raises(UsageError, match=re.escape(words)):
        chosen(env=env)


def test_nvidias_gpus_are_chosen_by_uuid_where_they_are_asked_for() -> None:
    (one,) = chosen(H200, any_vendor=True)
    assert (one.target, one.env) == ("sm_90", {"CUDA_VISIBLE_DEVICES": "GPU-aa"})
    (one,) = chosen(H200, any_vendor=True, policy="all")
    assert one.env == {"CUDA_VISIBLE_DEVICES": "GPU-aa,GPU-ab"}
    (one,) = chosen(H200, {"CUDA_VISIBLE_DEVICES": "1"}, any_vendor=True)
    assert one.env == {"CUDA_VISIBLE_DEVICES": "1"}


def test_processes_without_a_gpu_see_none() -> None:
    none = without_gpu()
    assert (none.target, none.words) == ("", "no GPU")
    assert none.env["HIP_VISIBLE_DEVICES"] == none.env["CUDA_VISIBLE_DEVICES"] == ""
    assert none.env["GPU_DEVICE_ORDINAL"] is None


@given(
    targets=st.lists(st.sampled_from(["gfx942", "gfx950", "gfx1100"]), min_size=1, max_size=6),
    order=st.randoms(use_true_random=False),
    policy=st.sampled_from(["unique", "all"]),
)
def test_what_is_chosen_is_what_a_process_sees(targets: list[str], order: Any, policy: Any) -> None:
    machine = Machine(
        gpus=tuple(Gpu(target=target, uuid=f"GPU-{at}") for at, target in enumerate(targets)), vendor="amd"
    )
    words = [str(at) for at in range(len(targets))]
    order.shuffle(words)
    env = {"HIP_VISIBLE_DEVICES": ",".join(words)}
    found = (
        select(machine, env, gpu_family="x", targets=("gfx942", "gfx950"), policy=policy)
        if set(targets) - {"gfx1100"}
        else []
    )
    for one in found:
        seen = visible(machine, {name: value for name, value in one.env.items() if value is not None})
        assert [device.gpu for device in seen] == [device.gpu for device in one.devices]
        assert {device.gpu.target for device in seen} == {one.target}
    taken = [device.gpu for one in found for device in one.devices]
    wanted = [gpu for gpu in machine.gpus if gpu.target != "gfx1100"]
    if policy == "all":
        assert sorted(gpu.uuid for gpu in taken) == [gpu.uuid for gpu in wanted]
    else:
        assert sorted(gpu.target for gpu in taken) == sorted({gpu.target for gpu in wanted})
