from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from core import process
from core.process import Completed
from pytorch_build.test import gpus
from pytorch_build.test.gpus import (
    Gpu,
    Machine,
    amd_smi_gpus,
    enumerated_gpus,
    kernel_gpus,
    nvidia_gpus,
    rocminfo_gpus,
    this_machine,
)

CPU_NODE = "cpu_cores_count 64\nsimd_count 0\ngfx_target_version 0\nunique_id 0\ndrm_render_minor 0\n"
MI300X = (
    "cpu_cores_count 0\nsimd_count 1216\ngfx_target_version 90402\n"
    f"unique_id {0x5F8C7BDB91A4E3F1}\ndrm_render_minor 128\n"
)
NAVI31 = "simd_count 192\ngfx_target_version 110000\nunique_id 0\ndrm_render_minor 129\n"

# as a machine with a processor and two GPUs prints it, shortened
ROCMINFO = """\
ROCk module version 6.12.12 is loaded
=====================
HSA System Attributes
=====================
Runtime Version:         1.15
==========
HSA Agents
==========
*******
Agent 1
*******
  Name:                    AMD EPYC 9654 96-Core Processor
  Uuid:                    CPU-XX
  Marketing Name:          AMD EPYC 9654 96-Core Processor
  Vendor Name:             CPU
  Device Type:             CPU
*******
Agent 2
*******
  Name:                    gfx942
  Uuid:                    GPU-5f8c7bdb91a4e3f1
  Marketing Name:          AMD Instinct MI300X
  Vendor Name:             AMD
  Device Type:             GPU
  ISA Info:
    ISA 1
      Name:                    amdgcn-amd-amdhsa--gfx942:sramecc+:xnack-
*******
Agent 3
*******
  Name:                    gfx1100
  Uuid:                    GPU-XX
  Marketing Name:
  Vendor Name:             AMD
  Device Type:             GPU
*** Done ***
"""


def test_the_kernels_topology_names_targets_and_uuids() -> None:
    found = kernel_gpus([CPU_NODE, MI300X, NAVI31])
    assert found == (Gpu(target="gfx942", uuid="GPU-5f8c7bdb91a4e3f1"), Gpu(target="gfx1100"))


def test_a_gpu_that_this_process_may_not_open_is_none_of_its_own() -> None:
    found = kernel_gpus([MI300X, NAVI31], usable=lambda minor: minor == 129)
    assert [one.target for one in found] == ["gfx1100"]


def test_rocminfo_is_read_agent_by_agent() -> None:
    assert rocminfo_gpus(ROCMINFO) == (
        Gpu(target="gfx942", uuid="GPU-5f8c7bdb91a4e3f1", name="AMD Instinct MI300X"),
        Gpu(target="gfx1100"),
    )
    assert rocminfo_gpus("ROCk module is NOT loaded, possibly no GPU devices\n") == ()


def test_the_enumerators_processor_is_no_gpu() -> None:
    assert [one.target for one in enumerated_gpus("gfx000\ngfx942\ngfx942:sramecc+\n")] == ["gfx942"] * 2
    assert enumerated_gpus("error: no permission\n") == ()


def test_amd_smi_is_read_in_both_of_its_forms() -> None:
    chip = {
        "market_name": "AMD Instinct MI300X",
        "target_graphics_version": "gfx942",
        "asic_serial": "0x5F8C7BDB91A4E3F1",
    }
    rows = [{"gpu": 0, "asic": chip}, {"gpu": 1, "asic": {"target_graphics_version": "N/A"}}]
    expected = (Gpu(target="gfx942", uuid="GPU-5f8c7bdb91a4e3f1", name="AMD Instinct MI300X"),)
    assert amd_smi_gpus(json.dumps(rows)) == expected
    assert amd_smi_gpus(json.dumps({"gpu_data": rows})) == expected
    assert amd_smi_gpus("AMDSMI_STATUS_NOT_INIT") == ()


def test_nvidias_program_is_read_row_by_row() -> None:
    uuid = "GPU-2a1c2c2c-91a4-e3f1-0000-5f8c7bdb91a4"
    text = f"{uuid}, 9.0, NVIDIA H200\nNo devices were found\n"
    assert nvidia_gpus(text) == (Gpu(target="sm_90", uuid=uuid, name="NVIDIA H200"),)


@pytest.fixture
def said(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> dict[str, str]:
    """Give a machine without devices, whose programs say what a test puts here."""
    answers: dict[str, str] = {}
    for name in ("KFD", "NVIDIA", "NODES", "RENDER_NODES"):
        monkeypatch.setattr(gpus, name, tmp_path / name)
    monkeypatch.setattr(process, "which", lambda name: Path(name) if name in answers else None)

    def capture(argv: Any, *, env: Any, **_: Any) -> Completed:
        assert not set(gpus.HIDING) & set(env)
        text = answers[str(argv[0])]
        return Completed(returncode=int(not text), stdout=text, stderr="")

    monkeypatch.setattr(process, "capture", capture)
    monkeypatch.setenv("HIP_VISIBLE_DEVICES", "0")
    return answers


@pytest.mark.usefixtures("said")
def test_a_machine_without_a_driver_has_no_vendor() -> None:
    assert this_machine() == Machine()


def test_a_program_that_knows_nothing_is_followed_by_the_next(said: dict[str, str]) -> None:
    gpus.KFD.touch()
    assert this_machine() == Machine(vendor="amd")
    said |= {"rocminfo": "", "rocm_agent_enumerator": "gfx000\ngfx942\n"}
    assert [one.target for one in this_machine().gpus] == ["gfx942"]
    said["rocminfo"] = ROCMINFO
    assert [one.target for one in this_machine().gpus] == ["gfx942", "gfx1100"]


@pytest.mark.usefixtures("said")
def test_the_kernel_is_asked_first_in_the_order_of_its_nodes() -> None:
    gpus.KFD.touch()
    for number, text in {"0": CPU_NODE, "10": MI300X, "9": NAVI31}.items():
        folder = gpus.NODES / number
        folder.mkdir(parents=True)
        (folder / "properties").write_text(text)
    assert [one.target for one in this_machine().gpus] == ["gfx1100", "gfx942"]
    gpus.RENDER_NODES.mkdir()
    (gpus.RENDER_NODES / "renderD128").touch()
    assert [one.target for one in this_machine().gpus] == ["gfx942"]


@pytest.mark.parametrize(
    ("program", "printed", "targets"),
    [
        ("rocminfo", ROCMINFO, ["gfx942", "gfx1100"]),
        ("offload-arch", "gfx1151\n", ["gfx1151"]),
        ("amdgpu-arch", "gfx1201\r\ngfx1201\r\n", ["gfx1201", "gfx1201"]),
    ],
)
def test_where_there_is_no_driver_of_linux_programs_are_asked(
    said: dict[str, str], program: str, printed: str, targets: list[str]
) -> None:
    said[program] = printed
    found = this_machine()
    assert (found.vendor, [one.target for one in found.gpus]) == ("amd", targets)


def test_nvidias_machines_are_asked_with_their_own_program(said: dict[str, str]) -> None:
    said["nvidia-smi"] = ""
    assert this_machine() == Machine()
    said["nvidia-smi"] = "GPU-1, 9.0, NVIDIA H200\n"
    found = this_machine()
    assert (found.vendor, [one.target for one in found.gpus]) == ("nvidia", ["sm_90"])
    said["nvidia-smi"] = ""
    gpus.NVIDIA.touch()
    assert this_machine() == Machine(vendor="nvidia")
