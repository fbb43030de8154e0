from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from core import process
from pytorch_build.check import Expectation
from pytorch_build.check.run import check_wheel
from tests.unit.rocm_packaging.pe_files import pe_file

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from pytorch_build.check import Finding

    WriteWheel = Callable[..., Path]
    Found = Callable[..., list[tuple[str, str, str]]]

VISION = "torchvision-0.25.0+sample-cp312-cp312-win_amd64.whl"
TORCH = "torch-2.10.0+sample-cp312-cp312-win_amd64.whl"
EXTENSION = "torchvision/_C.pyd"
LINKER = next((path for path in sorted(Path("/usr/lib").glob("llvm-*/bin/lld-link"), reverse=True)), None)


@pytest.fixture
def found(tmp_path: Path, wheel: WriteWheel) -> Found:
    def check(
        files: Mapping[str, bytes], *, name: str = VISION, requires: Sequence[str] = ("torch",)
    ) -> list[tuple[str, str, str]]:
        findings = check_wheel(wheel(tmp_path, name, files, requires=requires))
        return [(one.severity, one.where, one.message) for one in findings if one.check == "dll"]

    return check


def test_needs_that_are_met_say_nothing(found: Found) -> None:
    extension = pe_file(
        needed=(
            *("C10.dll", "torch_cpu.dll", "AMDHIP64_7.dll"),
            *("KERNEL32.dll", "VCRUNTIME140.dll", "api-ms-win-crt-heap-l1-1-0.dll", "python312.dll"),
            "JPEG8.dll",
        ),
        delayed=("dbghelp.dll",),
    )
    assert found({EXTENSION: extension, "torchvision/jpeg8.dll": pe_file()}) == []


def test_a_dll_that_nothing_brings_is_refused_by_name(
    found: Found,
) -> None:
    extension = pe_file(needed=("libomp140.x86_64.dll", "KERNEL32.dll", "zlib1.dll"))
    assert found({EXTENSION: extension}) == [
        ("error", EXTENSION, "It needs libomp140.x86_64.dll, zlib1.dll: unresolved dependency.")
    ]


def test_a_dll_that_is_loaded_late_does_not_stop_an_import(
    found: Found,
) -> None:
    [(severity, _, message)] = found({EXTENSION: pe_file(delayed=("nvml.dll",))})
    assert severity == "warning"
    assert message == "It needs nvml.dll: unresolved dependency. It is loaded when it is first called."


@pytest.mark.parametrize(
    ("needed", "requires", "severity", "message"),
    [
        ("c10.dll", (), "error", "It needs c10.dll of torch, but METADATA does not require torch."),
        ("rocblas.dll", (), "error", "It needs rocblas.dll of rocm, but METADATA does not require rocm."),
        (
            "python311.dll",
            ("torch",),
            "error",
            "It needs python311.dll, which is not of the Python that the wheel is for (cp312-cp312).",
        ),
        (
            "MSVCP140D.dll",
            ("torch",),
            "error",
            "It needs MSVCP140D.dll of the debug run-time, which only Visual Studio has.",
        ),
        (
            "MSVCP140.dll",
            ("torch",),
            "note",
            "It needs MSVCP140.dll of Visual C++'s redistributable: the machine must have it.",
        ),
    ],
)
def test_other_needs_are_told_by_their_reason(
    found: Found,
    needed: str,
    requires: Sequence[str],
    severity: str,
    message: str,
) -> None:
    assert found({EXTENSION: pe_file(needed=(needed,))}, requires=requires) == [
        (severity, EXTENSION, message)
    ]


def test_folders_that_torch_adds_to_the_search_count_and_others_do_not(
    found: Found,
) -> None:
    files = {
        "torch/_C.cp312-win_amd64.pyd": pe_file(needed=("torch_python.dll", "uv.dll")),
        "torch/lib/torch_python.dll": pe_file(),
        "torch/bin/uv.dll": pe_file(),
    }
    assert found(files, name=TORCH) == [
        (
            "warning",
            "torch/_C.cp312-win_amd64.pyd",
            "It needs uv.dll, which the wheel has in a folder that nothing adds to the search.",
        )
    ]


def test_files_for_other_processors_and_files_that_are_none_are_refused(
    found: Found,
) -> None:
    files = {
        "torchvision/arm.dll": pe_file(machine=0xAA64),
        "torchvision/old.dll": pe_file(magic=0x10B),
        "torchvision/text.pyd": b"no code at all, and long enough to be looked at" * 3,
        "torchvision/cut.dll": pe_file(needed=("a.dll",))[:-5],
        "torchvision/tool.exe": pe_file(dll=False),
    }
    none = "It is not a 64-bit DLL, whatever its name."
    assert found(files) == [
        (
            "error",
            "torchvision/arm.dll",
            "It is for another processor (machine 0xaa64) than win_amd64.",
        ),
        (
            "error",
            "torchvision/cut.dll",
            "torchvision/cut.dll is a damaged PE file: it is cut off.",
        ),
        ("error", "torchvision/old.dll", none),
        ("error", "torchvision/text.pyd", none),
    ]


def test_wheels_for_other_systems_may_hold_programs_of_windows(
    found: Found,
) -> None:
    files = {"setuptools/cli.exe": pe_file(dll=False, needed=("zlib1.dll",))}
    assert found(files, name="setuptools-80.0-py3-none-any.whl") == []
    assert found(files, name="torch-2.10.0-cp312-cp312-linux_x86_64.whl") == []


def test_device_code_of_a_dll_counts(tmp_path: Path, wheel: WriteWheel, plain: Callable[..., bytes]) -> None:
    def check(sections: Mapping[str, bytes]) -> list[Finding]:
        files = {"torch/lib/torch_hip.dll": pe_file(sections=sections), "torch/__init__.py": b""}
        promised = Expectation(distribution="torch", version="2.10.0+sample", gpu_targets=("gfx1151",))
        findings = check_wheel(wheel(tmp_path, TORCH, files), promised)
        return [one for one in findings if one.check == "device_code" or one.severity == "error"]

    code = plain("gfx1151")
    assert check({".hip_fat": code, ".hipFatB": bytes(24)}) == []
    assert [one.message for one in check({".hip_fat": code, ".hipFatB": bytes(48)})] == [
        "2 bundles are registered, 1 are there."
    ]
    assert [one.message for one in check({})] == ["There is no device code; gfx1151 are expected."]
    assert [one.message for one in check({".hip_fat": plain("gfx942")})] == [
        "No device code for gfx1151.",
        "Device code for gfx942, which was not requested.",
    ]
    assert [one.severity for one in check({".kpackrf": b"x"})] == ["error", "note"]


@pytest.mark.processes
@pytest.mark.skipif(LINKER is None, reason="lld-link is not installed")
def test_dlls_that_a_real_linker_made_are_judged(tmp_path: Path, found: Found) -> None:
    assert LINKER is not None
    clang = str(LINKER.with_name("clang"))
    sources = {
        "zlib1": "__declspec(dllexport) int base(void) { return 1; }\n",
        "_C": "int base(void); __declspec(dllexport) int user(void) { return base(); }\n",
    }
    for name, libraries in (("zlib1", ()), ("_C", ("zlib1.lib",))):
        (tmp_path / f"{name}.c").write_text(sources[name])
        made = f"{name}.obj"
        process.capture(
            [clang, "--target=x86_64-pc-windows-msvc", "-c", f"{name}.c", "-o", made], cwd=tmp_path
        )
        options = ("/dll", "/noentry", "/nodefaultlib", f"/out:{name}.dll")
        process.capture([LINKER, *options, made, *libraries], cwd=tmp_path)
    extension, base = ((tmp_path / f"{name}.dll").read_bytes() for name in ("_C", "zlib1"))
    assert found({EXTENSION: extension}) == [
        ("error", EXTENSION, "It needs zlib1.dll: unresolved dependency.")
    ]
    assert found({EXTENSION: extension, "torchvision/zlib1.dll": base}) == []
