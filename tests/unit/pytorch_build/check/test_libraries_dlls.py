from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import pytest
from packaging.tags import parse_tag

from pytorch_build.check import Expectation, Finding, libraries, load_policy
from pytorch_build.check.run import check_wheel
from tests.kit.binaries import pe_file
from tests.unit.pytorch_build.check.conftest import plain_bundle, write_wheel

Found = Callable[..., list[tuple[str, str, str]]]


VISION = "torchvision-0.25.0+sample-cp312-cp312-win_amd64.whl"
TORCH = "torch-2.10.0+sample-cp312-cp312-win_amd64.whl"
EXTENSION = "torchvision/_C.pyd"


@pytest.fixture
def found(tmp_path: Path) -> Found:
    def check(
        files: Mapping[str, bytes], *, name: str = VISION, requires: Sequence[str] = ("torch",)
    ) -> list[tuple[str, str, str]]:
        findings = check_wheel(write_wheel(tmp_path, name, files, requires=requires))
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


@pytest.mark.parametrize(
    ("needs", "requires", "severity", "message"),
    [
        ("libomp140.x86_64.dll zlib1.dll", (), "error", "zlib1.dll: unresolved dependency."),
        ("c10.dll", (), "error", "It needs c10.dll of torch, but METADATA does not require torch."),
        ("rocblas.dll", (), "error", "It needs rocblas.dll of rocm, but METADATA does not require rocm."),
        ("python311.dll", ("torch",), "error", "not of the Python that the wheel is for (cp312-cp312)."),
        ("MSVCP140D.dll", ("torch",), "error", "of the debug run-time, which only Visual Studio has."),
        ("MSVCP140.dll", ("torch",), "note", "of Visual C++'s redistributable: the machine must have it."),
    ],
)
def test_other_needs_are_told_by_their_reason(
    found: Found, needs: str, requires: Sequence[str], severity: str, message: str
) -> None:
    needed = ("KERNEL32.dll", *needs.split())
    ((kind, where, said),) = found({EXTENSION: pe_file(needed=needed)}, requires=requires)
    assert (kind, where) == (severity, EXTENSION)
    assert said.startswith(f"It needs {needs.replace(' ', ', ')}")
    assert said.endswith(message)
    # what is loaded late does not stop an import
    ((kind, _, late),) = found({EXTENSION: pe_file(delayed=needed)}, requires=requires)
    assert (kind, late) == (
        ("note", said) if kind == "note" else ("warning", f"{said} It is loaded when it is first called.")
    )


def test_folders_that_torch_adds_to_the_search_count_and_others_do_not(found: Found) -> None:
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


def test_files_for_other_processors_and_files_that_are_none_are_refused(found: Found) -> None:
    files = {
        "torchvision/arm.dll": pe_file(machine=0xAA64),
        "torchvision/old.dll": pe_file(magic=0x10B),
        "torchvision/text.pyd": b"no code at all, and long enough to be looked at" * 3,
        "torchvision/cut.dll": pe_file(needed=("a.dll",))[:-5],
        "torchvision/tool.exe": pe_file(dll=False),
        "torchvision/tool.dll": pe_file(dll=False),
    }
    none = "It is not 64-bit code, whatever its name."
    assert found(files) == [
        ("error", "torchvision/arm.dll", "It is for another processor (machine 0xaa64) than win_amd64."),
        ("error", "torchvision/cut.dll", "torchvision/cut.dll is a damaged PE file: it is cut off."),
        ("error", "torchvision/old.dll", none),
        ("error", "torchvision/text.pyd", none),
        ("error", "torchvision/tool.dll", "It is a program and no DLL, or the reverse."),
    ]


def test_wheels_for_other_systems_may_hold_programs_of_windows(found: Found) -> None:
    files = {"setuptools/cli.exe": pe_file(dll=False, needed=("zlib1.dll",))}
    assert found(files, name="setuptools-80.0-py3-none-any.whl") == []
    assert found(files, name="torch-2.10.0-cp312-cp312-linux_x86_64.whl") == []


def test_device_code_of_a_dll_counts(tmp_path: Path) -> None:
    def check(sections: Mapping[str, bytes]) -> list[Finding]:
        files = {"torch/lib/torch_hip.dll": pe_file(sections=sections), "torch/__init__.py": b""}
        promised = Expectation(distribution="torch", version="2.10.0+sample", gpu_targets=("gfx1151",))
        findings = check_wheel(write_wheel(tmp_path, TORCH, files), promised)
        return [one for one in findings if one.check == "device_code" or one.severity == "error"]

    code = plain_bundle("gfx1151")
    assert check({".hip_fat": code, ".hipFatB": bytes(24)}) == []
    assert [one.message for one in check({".hip_fat": code, ".hipFatB": bytes(48)})] == [
        "2 bundles are registered, 1 are there."
    ]
    assert [one.message for one in check({})] == ["There is no device code; gfx1151 are expected."]
    assert [one.message for one in check({".hip_fat": plain_bundle("gfx942")})] == [
        "No device code for gfx1151.",
        "Device code for gfx942, which was not requested.",
    ]
    assert [one.severity for one in check({".kpackrf": b"x"})] == ["error", "note"]


@pytest.mark.parametrize(
    ("name", "origin"),
    [
        ("KERNEL32.dll", "system"),
        ("dbghelp.DLL", "system"),
        ("api-ms-win-crt-heap-l1-1-0.dll", "system"),
        ("d3d12.dll", "system"),
        ("VCRUNTIME140_1.dll", "system"),
        ("MSVCP140.dll", "redistributable"),
        ("msvcp140_atomic_wait.dll", "redistributable"),
        ("MSVCP140D.dll", "debug"),
        ("python312_d.dll", "debug"),
        ("python312.dll", "python"),
        ("python313t.dll", "python"),
        ("amdhip64_7.dll", ""),
        ("libomp140.x86_64.dll", ""),
        ("zlib1.dll", ""),
    ],
)
def test_what_a_machine_gets_a_dll_from(name: str, origin: str) -> None:
    assert libraries.origin(name, load_policy().windows) == origin


@pytest.mark.parametrize(
    ("tags", "names"),
    [
        ("cp312-cp312-win_amd64", {"python312.dll", "python3.dll"}),
        ("cp313-cp313t-win_amd64", {"python313t.dll", "python3t.dll"}),
        ("cp310-abi3-win_amd64", {"python3.dll"}),
        ("py3-none-win_amd64", set()),
    ],
)
def test_a_wheels_tags_say_which_python_it_may_be_linked_to(tags: str, names: set[str]) -> None:
    assert libraries.python_dlls(parse_tag(tags)) == names
