import re
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from core import process
from core.errors import CheckError, UsageError
from core.families import gpu_targets
from pytorch_build.test import gpus

CPU_NODE = "cpu_cores_count 64\nsimd_count 0\ngfx_target_version 0\nunique_id 0\ndrm_render_minor 0\n"
MI300X = (
    "cpu_cores_count 0\nsimd_count 1216\ngfx_target_version 90402\n"
    f"unique_id {0x5F8C7BDB91A4E3F1}\ndrm_render_minor 128\n"
)
NAVI31 = "simd_count 192\ngfx_target_version 110000\nunique_id 0\ndrm_render_minor 129\n"

# as a machine with a processor and two GPUs prints it, shortened
ROCMINFO = Path(__file__).with_name("recorded").joinpath("rocminfo.txt").read_text()


MI300_ID = "GPU-5f8c7bdb91a4e3f1"
H200_ID = "GPU-2a1c2c2c-91a4-e3f1-0000-5f8c7bdb91a4"


@pytest.mark.parametrize(
    ("read", "printed", "found"),
    [
        (gpus.rocminfo_gpus, ROCMINFO, [("gfx942", MI300_ID, "AMD Instinct MI300X"), ("gfx1100", "", "")]),
        (gpus.rocminfo_gpus, "ROCk module is NOT loaded, possibly no GPU devices\n", []),
        (gpus.enumerated_gpus, "gfx942\ngfx942:sramecc+\n", [("gfx942", "", "")] * 2),
        (gpus.enumerated_gpus, "error: no permission\n", []),
        (
            gpus.nvidia_gpus,
            f"{H200_ID}, 9.0, NVIDIA H200\nNo devices were found\n",
            [("sm_90", H200_ID, "NVIDIA H200")],
        ),
    ],
)
def test_what_the_kernel_and_programs_print_is_read(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, read: Any, printed: Any, found: list[Any]
) -> None:
    monkeypatch.setattr(gpus, "RENDER_NODES", tmp_path / "none")
    assert [(one.target, one.uuid, one.name) for one in read(printed)] == found


@pytest.fixture
def said(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> dict[str, str]:
    """Return a machine without devices, whose programs say what a test puts here."""
    answers: dict[str, str] = {}
    for name in ("KFD", "NVIDIA", "NODES", "RENDER_NODES"):
        monkeypatch.setattr(gpus, name, tmp_path / name)
    monkeypatch.setattr(process, "which", lambda name: Path(name) if name in answers else None)

    def capture(argv: Any, *, env: Any, **_: Any) -> process.Completed:
        assert not set(gpus.HIDING) & set(env)
        text = answers[str(argv[0])]
        return process.Completed(returncode=int(not text), stdout=text, stderr="")

    monkeypatch.setattr(process, "capture", capture)
    monkeypatch.setenv("HIP_VISIBLE_DEVICES", "0")
    return answers


def test_a_program_that_knows_nothing_is_followed_by_the_next(said: dict[str, str]) -> None:
    assert gpus.this_machine() == gpus.Machine()
    said |= {"rocminfo": "", "offload-arch": "gfx942\n"}
    assert [one.target for one in gpus.this_machine().gpus] == ["gfx942"]
    gpus.KFD.touch()
    assert gpus.this_machine() == gpus.Machine(vendor="amd")
    said["rocminfo"] = ROCMINFO
    assert [one.target for one in gpus.this_machine().gpus] == ["gfx942", "gfx1100"]


@pytest.mark.usefixtures("said")
def test_the_kernel_is_asked_first_in_the_order_of_its_nodes() -> None:
    gpus.KFD.touch()
    for number, text in {"0": CPU_NODE, "10": MI300X, "9": NAVI31}.items():
        folder = gpus.NODES / number
        folder.mkdir(parents=True)
        (folder / "properties").write_text(text)
    assert gpus.this_machine().gpus == (gpus.Gpu(target="gfx1100"), gpus.Gpu(target="gfx942", uuid=MI300_ID))
    gpus.RENDER_NODES.mkdir()
    (gpus.RENDER_NODES / "renderD128").touch()
    assert [one.target for one in gpus.this_machine().gpus] == ["gfx942"]


def test_nvidias_machines_are_asked_with_their_own_program(said: dict[str, str]) -> None:
    said["nvidia-smi"] = ""
    assert gpus.this_machine() == gpus.Machine()
    said["nvidia-smi"] = "GPU-1, 9.0, NVIDIA H200\n"
    found = gpus.this_machine()
    assert (found.vendor, [one.target for one in found.gpus]) == ("nvidia", ["sm_90"])
    said["nvidia-smi"] = ""
    gpus.NVIDIA.touch()
    assert gpus.this_machine() == gpus.Machine(vendor="nvidia")


MI300 = [
    gpus.Gpu(target="gfx942", uuid=f"GPU-942{number:x}", name="AMD Instinct MI300X") for number in range(2)
]
NAVI = gpus.Gpu(target="gfx1100", uuid="GPU-1100", name="AMD Radeon RX 7900 XTX")
MIXED = gpus.Machine(gpus=(MI300[0], NAVI, MI300[1]), vendor="amd")
H200 = gpus.Machine(
    gpus=(
        gpus.Gpu(target="sm_90", uuid="GPU-aa", name="NVIDIA H200"),
        gpus.Gpu(target="sm_90", uuid="GPU-ab"),
    ),
    vendor="nvidia",
)


def chosen(
    machine: gpus.Machine = MIXED,
    env: dict[str, str] | None = None,
    family: str = "gfx94X-dcgpu",
    **changes: Any,
) -> list[gpus.Assignment]:
    targets = gpu_targets(family)
    return list(gpus.select(machine, env or {}, gpu_family=family, targets=targets, **changes))


@pytest.mark.parametrize(
    ("family", "policy", "words"),
    [
        ("gfx94X-dcgpu", "unique", ["gfx942 (0)"]),
        ("gfx94X-dcgpu", "all", ["gfx942 (0, 2)"]),
        # each architecture has processes of its own
        ("gfx94X-dcgpu;gfx110X-all", "unique", ["gfx942 (0)", "gfx1100 (1)"]),
        ("gfx94X-dcgpu;gfx110X-all", "all", ["gfx942 (0, 2)", "gfx1100 (1)"]),
    ],
)
def test_gpus_of_a_family_are_chosen_by_architecture(family: str, policy: Any, words: list[str]) -> None:
    found = chosen(family=family, policy=policy)
    assert [one.words for one in found] == words
    assert found[0].env == {"HIP_VISIBLE_DEVICES": "0" if policy == "unique" else "0,2"}


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


@pytest.mark.parametrize(
    ("machine", "env", "policy", "expected"),
    [
        # ROCm takes CUDA's variable where its own is not set
        (
            MIXED,
            {"CUDA_VISIBLE_DEVICES": "2", "GPU_DEVICE_ORDINAL": "2"},
            "unique",
            {"HIP_VISIBLE_DEVICES": "2", "CUDA_VISIBLE_DEVICES": None, "GPU_DEVICE_ORDINAL": None},
        ),
        (
            MIXED,
            {"CUDA_VISIBLE_DEVICES": "1", "HIP_VISIBLE_DEVICES": "0"},
            "unique",
            {"HIP_VISIBLE_DEVICES": "0", "CUDA_VISIBLE_DEVICES": None},
        ),
        (H200, {}, "unique", {"CUDA_VISIBLE_DEVICES": "GPU-aa"}),
        (H200, {}, "all", {"CUDA_VISIBLE_DEVICES": "GPU-aa,GPU-ab"}),
        (H200, {"CUDA_VISIBLE_DEVICES": "1"}, "unique", {"CUDA_VISIBLE_DEVICES": "1"}),
    ],
)
def test_cudas_variable_names_nvidias_gpus(
    machine: gpus.Machine, env: dict[str, str], policy: Any, expected: dict[str, str | None]
) -> None:
    (one,) = chosen(machine, env, any_vendor=machine is H200, policy=policy)
    assert (one.target, one.env) == ("sm_90" if machine is H200 else "gfx942", expected)


@pytest.mark.parametrize(
    ("machine", "env", "family", "words"),
    [
        (gpus.Machine(), {}, "gfx94X-dcgpu", "no GPU driver is loaded"),
        (gpus.Machine(vendor="amd"), {}, "gfx94X-dcgpu", "the GPU driver is loaded and shows no GPU"),
        (MIXED, {}, "gfx950-dcgpu", "No visible GPU is of gfx950-dcgpu (gfx950): here is 2 x gfx942 (AMD"),
        (MIXED, {"HIP_VISIBLE_DEVICES": "1"}, "gfx94X-dcgpu", "here is gfx1100 (AMD Radeon RX 7900 XTX)"),
        (MIXED, {"HIP_VISIBLE_DEVICES": ""}, "gfx94X-dcgpu", "HIP_VISIBLE_DEVICES= hides every GPU"),
        (MIXED, {"ROCR_VISIBLE_DEVICES": "-1"}, "gfx94X-dcgpu", "ROCR_VISIBLE_DEVICES=-1 hides every GPU"),
        (H200, {}, "gfx94X-dcgpu", "here is sm_90 (NVIDIA H200), sm_90"),
    ],
)
def test_no_gpu_is_an_error(machine: gpus.Machine, env: dict[str, str], family: str, words: str) -> None:
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


@given(
    targets=st.lists(st.sampled_from(["gfx942", "gfx950", "gfx1100"]), min_size=1, max_size=6),
    order=st.randoms(use_true_random=False),
    policy=st.sampled_from(["unique", "all"]),
)
def test_what_is_chosen_is_what_a_process_sees(targets: list[str], order: Any, policy: Any) -> None:
    machine = gpus.Machine(
        gpus=tuple(gpus.Gpu(target=target, uuid=f"GPU-{at}") for at, target in enumerate(targets)),
        vendor="amd",
    )
    words = [str(at) for at in range(len(targets))]
    order.shuffle(words)
    env = {"HIP_VISIBLE_DEVICES": ",".join(words)}
    found = (
        gpus.select(machine, env, gpu_family="x", targets=("gfx942", "gfx950"), policy=policy)
        if set(targets) - {"gfx1100"}
        else []
    )
    for one in found:
        seen = gpus.visible(machine, {name: value for name, value in one.env.items() if value is not None})
        assert [device.gpu for device in seen] == [device.gpu for device in one.devices]
        assert {device.gpu.target for device in seen} == {one.target}
    taken = [device.gpu for one in found for device in one.devices]
    wanted = [gpu for gpu in machine.gpus if gpu.target != "gfx1100"]
    if policy == "all":
        assert sorted(gpu.uuid for gpu in taken) == [gpu.uuid for gpu in wanted]
    else:
        assert sorted(gpu.target for gpu in taken) == sorted({gpu.target for gpu in wanted})


def test_a_family_without_a_gpu_fails_unless_allowed(run: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gpus, "this_machine", gpus.Machine)
    chosen = run.context("gfx950-dcgpu", ref="nightly")
    with pytest.raises(CheckError, match="no GPU driver is loaded"):
        gpus.assignments(chosen, {})
    assert [one.target for one in gpus.assignments(chosen, {}, allow_no_gpu=True)] == [""]
    none = gpus.without_gpu()
    assert none.words == "no GPU"
    hidden = {**dict.fromkeys(gpus.HIDING), "HIP_VISIBLE_DEVICES": "", "CUDA_VISIBLE_DEVICES": ""}
    assert none.env == hidden
    # no GPU runs the sample's device code
    assert [one.target for one in gpus.assignments(run.context("gfx950-dcgpu"), {})] == [""]
    assert [one.target for one in gpus.assignments(run.context("cpu", ref="nightly"), {})] == [""]
