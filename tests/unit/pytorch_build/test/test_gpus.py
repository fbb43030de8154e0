import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from core import process
from core.errors import CheckError, UsageError
from core.families import gpu_targets
from pytorch_build.test import gpus
from pytorch_build.test.gpus import Assignment, Gpu, Machine, Policy
from tests.kit.builds import LocalRun
from tests.kit.repos import write_files

# As the kernel describes a processor and two GPUs.
CPU_NODE = "cpu_cores_count 64\nsimd_count 0\ngfx_target_version 0\nunique_id 0\ndrm_render_minor 0\n"
MI300X_NODE = (
    "cpu_cores_count 0\nsimd_count 1216\ngfx_target_version 90402\n"
    f"unique_id {0x5F8C7BDB91A4E3F1}\ndrm_render_minor 128\n"
)
NAVI31_NODE = "simd_count 192\ngfx_target_version 110000\nunique_id 0\ndrm_render_minor 129\n"

# As a machine with a processor and two GPUs prints it, shortened.
ROCMINFO = Path(__file__).with_name("recorded").joinpath("rocminfo.txt").read_text()

MI300X_UUID = "GPU-5f8c7bdb91a4e3f1"
H200_UUID = "GPU-2a1c2c2c-91a4-e3f1-0000-5f8c7bdb91a4"


@pytest.mark.parametrize(
    ("read", "text", "found_gpus"),
    [
        pytest.param(
            gpus.rocminfo_gpus,
            ROCMINFO,
            [Gpu(target="gfx942", uuid=MI300X_UUID, name="AMD Instinct MI300X"), Gpu(target="gfx1100")],
            id="rocminfo",
        ),
        pytest.param(
            gpus.rocminfo_gpus,
            "ROCk module is NOT loaded, possibly no GPU devices\n",
            [],
            id="rocminfo without a driver",
        ),
        pytest.param(
            gpus.offload_arch_gpus,
            "gfx942\ngfx942:sramecc+\n",
            [Gpu(target="gfx942"), Gpu(target="gfx942")],
            id="offload-arch",
        ),
        pytest.param(gpus.offload_arch_gpus, "error: no permission\n", [], id="offload-arch that failed"),
        pytest.param(
            gpus.nvidia_gpus,
            f"{H200_UUID}, 9.0, NVIDIA H200\nNo devices were found\n",
            [Gpu(target="sm_90", uuid=H200_UUID, name="NVIDIA H200")],
            id="nvidia-smi",
        ),
    ],
)
def test_reads_what_programs_print(
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    read: Callable[[str], Sequence[Gpu]],
    text: str,
    found_gpus: list[Gpu],
) -> None:
    monkeypatch.setattr(gpus, "RENDER_NODES", tmp_path / "none")

    assert list(read(text)) == found_gpus


@pytest.fixture
def programs(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> dict[str, str]:
    """Return a machine without devices: the names of its programs, and what they print."""
    outputs: dict[str, str] = {}
    for name in ("KFD", "NVIDIA", "NODES", "RENDER_NODES"):
        monkeypatch.setattr(gpus, name, tmp_path / name)
    monkeypatch.setattr(process, "which", lambda name: Path(name) if name in outputs else None)

    def capture(argv: Any, *, env: Mapping[str, str], **_options: Any) -> process.Completed:
        # All GPUs are looked for, those that a person hides too.
        assert not set(gpus.HIDING_VARIABLES) & set(env)
        output = outputs[str(argv[0])]
        return process.Completed(returncode=int(not output), stdout=output, stderr="")

    monkeypatch.setattr(process, "capture", capture)
    monkeypatch.setenv("HIP_VISIBLE_DEVICES", "0")
    return outputs


def machine_targets() -> list[str]:
    """Return the targets of this machine's GPUs."""
    return [gpu.target for gpu in gpus.detect_machine().gpus]


@pytest.mark.usefixtures("programs")
def test_a_machine_without_devices_and_programs_has_no_gpu() -> None:
    assert gpus.detect_machine() == Machine()


def test_a_program_that_fails_is_followed_by_the_next(programs: dict[str, str]) -> None:
    programs |= {"rocminfo": "", "offload-arch": "gfx942\n"}

    assert machine_targets() == ["gfx942"]


@pytest.mark.processes
def test_a_program_that_hangs_knows_no_gpu(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    # https://github.com/ROCm/TheRock/issues/2649
    hanging_program = tmp_path / "rocminfo"
    hanging_program.write_text("#!/bin/sh\nexec sleep 60\n")
    hanging_program.chmod(0o755)
    monkeypatch.setattr(process, "which", {"rocminfo": hanging_program}.get)
    monkeypatch.setattr(gpus, "_SECONDS", 0.2)
    monkeypatch.setattr(gpus, "KFD", tmp_path / "kfd")
    monkeypatch.setattr(gpus, "NVIDIA", tmp_path / "nvidiactl")
    monkeypatch.setattr(gpus, "NODES", tmp_path / "nodes")
    gpus.KFD.touch()

    assert gpus.detect_machine() == Machine(vendor="amd")
    assert "rocminfo" in capsys.readouterr().err


@pytest.mark.usefixtures("programs")
def test_a_driver_without_a_gpu_is_amds() -> None:
    gpus.KFD.touch()

    assert gpus.detect_machine() == Machine(vendor="amd")


def test_rocminfo_is_asked_beside_a_driver(programs: dict[str, str]) -> None:
    gpus.KFD.touch()
    programs["rocminfo"] = ROCMINFO

    assert machine_targets() == ["gfx942", "gfx1100"]


@pytest.fixture
def kernel_nodes(programs: dict[str, str]) -> Path:
    """Return the nodes of a machine with two GPUs, in the order of their numbers."""
    assert programs == {}
    gpus.KFD.touch()
    nodes = {
        "0/properties": CPU_NODE,
        "10/properties": MI300X_NODE,
        "9/properties": NAVI31_NODE,
    }
    write_files(gpus.NODES, nodes)
    return gpus.NODES


@pytest.mark.usefixtures("kernel_nodes")
def test_the_kernel_is_asked_first_in_the_order_of_its_nodes() -> None:
    assert gpus.detect_machine().gpus == (Gpu(target="gfx1100"), Gpu(target="gfx942", uuid=MI300X_UUID))


@pytest.mark.usefixtures("kernel_nodes")
def test_gpus_whose_device_is_absent_are_not_this_processes() -> None:
    gpus.RENDER_NODES.mkdir()
    (gpus.RENDER_NODES / "renderD128").touch()

    assert machine_targets() == ["gfx942"]


def test_nvidias_gpus_are_asked_for_with_their_own_program(programs: dict[str, str]) -> None:
    programs["nvidia-smi"] = "GPU-1, 9.0, NVIDIA H200\n"

    assert gpus.detect_machine().vendor == "nvidia"
    assert machine_targets() == ["sm_90"]


@pytest.mark.parametrize(
    ("has_device", "machine"),
    [
        pytest.param(False, Machine(), id="program alone"),
        pytest.param(True, Machine(vendor="nvidia"), id="with a device"),
    ],
)
def test_nvidias_program_may_show_no_gpu(
    programs: dict[str, str], machine: Machine, *, has_device: bool
) -> None:
    programs["nvidia-smi"] = ""
    if has_device:
        gpus.NVIDIA.touch()

    assert gpus.detect_machine() == machine


MI300 = [Gpu(target="gfx942", uuid=f"GPU-942{number}", name="AMD Instinct MI300X") for number in range(2)]
NAVI = Gpu(target="gfx1100", uuid="GPU-1100", name="AMD Radeon RX 7900 XTX")
MIXED = Machine(gpus=(MI300[0], NAVI, MI300[1]), vendor="amd")
TWO_H200 = Machine(
    gpus=(Gpu(target="sm_90", uuid="GPU-aa", name="NVIDIA H200"), Gpu(target="sm_90", uuid="GPU-ab")),
    vendor="nvidia",
)


def select_gpus(
    machine: Machine = MIXED,
    variables: Mapping[str, str] | None = None,
    *,
    family: str = "gfx94X-dcgpu",
    policy: Policy = "unique",
    any_vendor: bool = False,
) -> Sequence[Assignment]:
    """Choose a machine's GPUs for the tests of a family."""
    return gpus.select_gpus(
        machine,
        variables or {},
        gpu_family=family,
        targets=gpu_targets(family),
        policy=policy,
        any_vendor=any_vendor,
    )


@pytest.mark.parametrize(
    ("family", "policy", "descriptions"),
    [
        pytest.param("gfx94X-dcgpu", "unique", ["gfx942 (0)"], id="one GPU"),
        pytest.param("gfx94X-dcgpu", "all", ["gfx942 (0, 2)"], id="all GPUs"),
        pytest.param(
            "gfx94X-dcgpu;gfx110X-all", "unique", ["gfx942 (0)", "gfx1100 (1)"], id="one GPU of each family"
        ),
        pytest.param(
            "gfx94X-dcgpu;gfx110X-all", "all", ["gfx942 (0, 2)", "gfx1100 (1)"], id="all GPUs of each family"
        ),
    ],
)
def test_each_architecture_has_processes_of_its_own(
    family: str, policy: Policy, descriptions: list[str]
) -> None:
    assignments = select_gpus(family=family, policy=policy)

    assert [assignment.description for assignment in assignments] == descriptions


@pytest.mark.parametrize(("policy", "devices"), [("unique", "0"), ("all", "0,2")])
def test_processes_see_the_chosen_gpus(policy: Policy, devices: str) -> None:
    (assignment,) = select_gpus(policy=policy)

    assert assignment.env == {"HIP_VISIBLE_DEVICES": devices}


@pytest.mark.parametrize(
    ("variables", "device"),
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
def test_a_gpu_that_a_person_hides_stays_hidden(variables: dict[str, str], device: str) -> None:
    (assignment,) = select_gpus(variables=variables)

    assert assignment.env == {"HIP_VISIBLE_DEVICES": device}


@pytest.mark.parametrize(
    ("variables", "changes"),
    [
        pytest.param(
            {"CUDA_VISIBLE_DEVICES": "2", "GPU_DEVICE_ORDINAL": "2"},
            {"HIP_VISIBLE_DEVICES": "2", "CUDA_VISIBLE_DEVICES": None, "GPU_DEVICE_ORDINAL": None},
            id="alone",
        ),
        pytest.param(
            {"CUDA_VISIBLE_DEVICES": "1", "HIP_VISIBLE_DEVICES": "0"},
            {"HIP_VISIBLE_DEVICES": "0", "CUDA_VISIBLE_DEVICES": None},
            id="beside ROCm's own",
        ),
    ],
)
def test_rocm_reads_cudas_variable_where_its_own_is_not_set(
    variables: dict[str, str], changes: dict[str, str | None]
) -> None:
    (assignment,) = select_gpus(variables=variables)

    assert assignment.target == "gfx942"
    assert assignment.env == changes


@pytest.mark.parametrize(
    ("variables", "policy", "devices"),
    [
        pytest.param({}, "unique", "GPU-aa", id="one GPU"),
        pytest.param({}, "all", "GPU-aa,GPU-ab", id="all GPUs"),
        pytest.param({"CUDA_VISIBLE_DEVICES": "1"}, "unique", "1", id="one hidden"),
    ],
)
def test_cudas_variable_names_nvidias_gpus(variables: dict[str, str], policy: Policy, devices: str) -> None:
    (assignment,) = select_gpus(TWO_H200, variables, any_vendor=True, policy=policy)

    assert assignment.target == "sm_90"
    assert assignment.env == {"CUDA_VISIBLE_DEVICES": devices}


@pytest.mark.parametrize(
    ("machine", "variables", "family", "problem"),
    [
        pytest.param(Machine(), {}, "gfx94X-dcgpu", "no GPU driver", id="no driver"),
        pytest.param(Machine(vendor="amd"), {}, "gfx94X-dcgpu", "shows no GPU", id="driver alone"),
        pytest.param(MIXED, {}, "gfx950-dcgpu", "2 x gfx942 (AMD", id="other family"),
        pytest.param(
            MIXED, {"HIP_VISIBLE_DEVICES": "1"}, "gfx94X-dcgpu", "gfx1100 (AMD", id="family that is hidden"
        ),
        pytest.param(
            MIXED, {"HIP_VISIBLE_DEVICES": ""}, "gfx94X-dcgpu", "HIP_VISIBLE_DEVICES= ", id="all hidden"
        ),
        pytest.param(
            MIXED,
            {"ROCR_VISIBLE_DEVICES": "-1"},
            "gfx94X-dcgpu",
            "ROCR_VISIBLE_DEVICES=-1",
            id="all hidden from ROCm",
        ),
        pytest.param(TWO_H200, {}, "gfx94X-dcgpu", "sm_90 (NVIDIA H200), sm_90", id="other vendor"),
    ],
)
def test_no_gpu_of_the_family_is_an_error(
    machine: Machine, variables: dict[str, str], family: str, problem: str
) -> None:
    with pytest.raises(CheckError, match=re.escape(problem)) as caught:
        select_gpus(machine, variables, family=family)

    assert caught.value.hint


@pytest.mark.parametrize(
    ("variables", "problem"),
    [
        pytest.param({"HIP_VISIBLE_DEVICES": "3"}, "GPUs 0 to 2", id="number"),
        pytest.param({"HIP_VISIBLE_DEVICES": "GPU-942"}, "GPU-942,", id="part of a UUID"),
        pytest.param({"HIP_VISIBLE_DEVICES": "0,0"}, "twice", id="number twice"),
        pytest.param({"HIP_VISIBLE_DEVICES": "0,GPU-9420"}, "twice", id="number and UUID of one GPU"),
        pytest.param(
            {"ROCR_VISIBLE_DEVICES": "0", "HIP_VISIBLE_DEVICES": "1"}, "GPUs 0 to 0", id="GPU that is hidden"
        ),
        pytest.param(
            {"ROCR_VISIBLE_DEVICES": "", "HIP_VISIBLE_DEVICES": "0"}, "no GPU", id="all that are hidden"
        ),
        pytest.param({"CUDA_VISIBLE_DEVICES": "²"}, "CUDA_VISIBLE_DEVICES=²", id="no number"),
    ],
)
def test_a_variable_that_names_an_absent_gpu_is_an_error(variables: dict[str, str], problem: str) -> None:
    with pytest.raises(UsageError, match=re.escape(problem)):
        select_gpus(variables=variables)


@st.composite
def machines_with_a_choice(draw: st.DrawFn) -> tuple[Machine, str]:
    """Return a machine with a GPU of the family, and an order of all its GPUs."""
    target_of_family = draw(st.sampled_from(["gfx942", "gfx950"]))
    further_targets = draw(st.lists(st.sampled_from(["gfx942", "gfx950", "gfx1100"]), max_size=5))
    targets = draw(st.permutations([target_of_family, *further_targets]))
    machine_gpus = [Gpu(target=target, uuid=f"GPU-{index}") for index, target in enumerate(targets)]
    order = draw(st.permutations(range(len(targets))))
    return Machine(gpus=tuple(machine_gpus), vendor="amd"), ",".join(map(str, order))


@given(machines_with_a_choice(), st.sampled_from(["unique", "all"]))
def test_processes_see_what_was_chosen(machine_and_order: tuple[Machine, str], policy: Policy) -> None:
    machine, order = machine_and_order
    family = [gpu for gpu in machine.gpus if gpu.target != "gfx1100"]

    assignments = gpus.select_gpus(
        machine,
        {"HIP_VISIBLE_DEVICES": order},
        gpu_family="x",
        targets=("gfx942", "gfx950"),
        policy=policy,
    )

    for assignment in assignments:
        variables = {name: value for name, value in assignment.env.items() if value is not None}
        visible = gpus.visible_gpus(machine, variables)
        assert [gpu.uuid for gpu in visible] == [gpu.uuid for gpu in assignment.devices]
        assert {gpu.target for gpu in visible} == {assignment.target}

    assigned_gpus: list[Gpu] = []
    for assignment in assignments:
        assigned_gpus += assignment.devices
    if policy == "all":
        assert sorted(gpu.uuid for gpu in assigned_gpus) == [gpu.uuid for gpu in family]
    else:
        assert sorted(gpu.target for gpu in assigned_gpus) == sorted({gpu.target for gpu in family})


def assigned_targets(run: LocalRun, family: str, *, ref: str, allow_no_gpu: bool = False) -> list[str]:
    """Return the targets that tests of a run get on this machine, which has no GPU; "" for none."""
    context = run.context(family, ref=ref)
    return [assignment.target for assignment in gpus.assign_gpus(context, {}, allow_no_gpu=allow_no_gpu)]


@pytest.fixture
def no_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """Hide this machine's GPUs."""
    monkeypatch.setattr(gpus, "detect_machine", Machine)


@pytest.mark.usefixtures("no_gpu")
def test_a_family_needs_its_gpu(run: LocalRun) -> None:
    with pytest.raises(CheckError):
        assigned_targets(run, "gfx950-dcgpu", ref="nightly")


@pytest.mark.usefixtures("no_gpu")
def test_a_family_may_be_tested_without_a_gpu(run: LocalRun) -> None:
    assert assigned_targets(run, "gfx950-dcgpu", ref="nightly", allow_no_gpu=True) == [""]


@pytest.mark.usefixtures("no_gpu")
@pytest.mark.parametrize(
    ("family", "ref"),
    [
        # No GPU runs the sample's device code.
        pytest.param("gfx950-dcgpu", "sample", id="sample"),
        pytest.param("cpu", "nightly", id="processors"),
    ],
)
def test_some_wheels_need_no_gpu(run: LocalRun, family: str, ref: str) -> None:
    assert assigned_targets(run, family, ref=ref) == [""]


def test_processes_without_a_gpu_see_none() -> None:
    assignment = gpus.assignment_without_gpu()

    assert assignment.description == "no GPU"
    assert assignment.env == {
        **dict.fromkeys(gpus.HIDING_VARIABLES),
        "HIP_VISIBLE_DEVICES": "",
        "CUDA_VISIBLE_DEVICES": "",
    }
