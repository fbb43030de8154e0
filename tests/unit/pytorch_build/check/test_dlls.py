from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest
from packaging.tags import parse_tag

from pytorch_build.check import Expectation, Finding, dlls
from pytorch_build.check.policy import load_policy
from pytorch_build.check.run import check_wheel
from tests.kit.binaries import PE_MACHINE_ARM64, PE_MAGIC_32, offload_bundle, pe_file
from tests.kit.findings import severities
from tests.kit.wheels import write_wheel

WINDOWS_TAG = "cp312-cp312-win_amd64"
EXTENSION = "torchvision/_C.pyd"


def check_dlls(
    folder: Path,
    files: Mapping[str, bytes],
    *,
    name: str = "torchvision",
    tag: str = WINDOWS_TAG,
    requires: Sequence[str] = ("torch",),
) -> list[Finding]:
    """Return what is found in the DLLs of a wheel."""
    wheel = write_wheel(folder, name=name, version="0.25.0+sample", tag=tag, files=files, requires=requires)
    return [finding for finding in check_wheel(wheel) if finding.check == "dll"]


# Needed DLLs


def test_accepts_dlls_that_are_found(tmp_path: Path) -> None:
    of_torch_and_rocm = ("C10.dll", "torch_cpu.dll", "AMDHIP64_7.dll")
    of_windows = ("KERNEL32.dll", "VCRUNTIME140.dll", "api-ms-win-crt-heap-l1-1-0.dll")
    extension = pe_file(
        needed=(*of_torch_and_rocm, *of_windows, "python312.dll", "JPEG8.dll"), delayed=("dbghelp.dll",)
    )

    assert check_dlls(tmp_path, {EXTENSION: extension, "torchvision/jpeg8.dll": pe_file()}) == []


PROBLEMS = {
    "unresolved": (["libomp140.x86_64.dll", "zlib1.dll"], [], "error"),
    "torch is not required": (["c10.dll"], [], "error"),
    "ROCm is not required": (["rocblas.dll"], [], "error"),
    "another Python": (["python311.dll"], ["torch"], "error"),
    "debug run-time": (["MSVCP140D.dll"], ["torch"], "error"),
    "redistributable": (["MSVCP140.dll"], ["torch"], "note"),
}


@pytest.mark.parametrize(("dlls", "requires", "severity"), PROBLEMS.values(), ids=PROBLEMS)
def test_finds_a_dll_that_may_be_missing(
    tmp_path: Path, dlls: list[str], requires: list[str], severity: str
) -> None:
    extension = pe_file(needed=("KERNEL32.dll", *dlls))

    (finding,) = check_dlls(tmp_path, {EXTENSION: extension}, requires=requires)

    assert (finding.severity, finding.where) == (severity, EXTENSION)
    assert ", ".join(dlls) in finding.message


@pytest.mark.parametrize(
    ("dll", "provider"), [("c10.dll", "torch"), ("rocblas.dll", "rocm"), ("python311.dll", "cp312-cp312")]
)
def test_names_what_should_provide_a_dll(tmp_path: Path, dll: str, provider: str) -> None:
    (finding,) = check_dlls(tmp_path, {EXTENSION: pe_file(needed=(dll,))}, requires=[])

    assert provider in finding.message


@pytest.mark.parametrize(("dlls", "requires", "severity"), PROBLEMS.values(), ids=PROBLEMS)
def test_warns_of_a_dll_that_is_loaded_later(
    tmp_path: Path, dlls: list[str], requires: list[str], severity: str
) -> None:
    (finding,) = check_dlls(tmp_path, {EXTENSION: pe_file(delayed=dlls)}, requires=requires)

    # It does not stop an import.
    assert finding.severity == {"error": "warning", "note": "note"}[severity]


def test_finds_dlls_in_the_folders_that_torch_adds_to_the_search(tmp_path: Path) -> None:
    files = {
        "torch/_C.cp312-win_amd64.pyd": pe_file(needed=("torch_python.dll", "uv.dll")),
        "torch/lib/torch_python.dll": pe_file(),
        "torch/bin/uv.dll": pe_file(),
    }

    (finding,) = check_dlls(tmp_path, files, name="torch")

    assert finding.severity == "warning"
    assert finding.where == "torch/_C.cp312-win_amd64.pyd"
    assert "uv.dll" in finding.message


# Files that are no DLL


def test_accepts_a_program(tmp_path: Path) -> None:
    assert check_dlls(tmp_path, {"torchvision/tool.exe": pe_file(dll=False)}) == []


@pytest.mark.parametrize(
    ("member", "content"),
    [
        pytest.param("a.dll", pe_file(machine=PE_MACHINE_ARM64), id="another processor"),
        pytest.param("a.dll", pe_file(magic=PE_MAGIC_32), id="32 bits"),
        pytest.param("a.pyd", b"no code at all, and long enough to be looked at" * 3, id="text"),
        pytest.param("a.dll", pe_file(needed=("a.dll",))[:-5], id="cut off"),
        pytest.param("a.dll", pe_file(dll=False), id="program"),
        pytest.param("a.exe", pe_file(), id="library"),
    ],
)
def test_finds_a_file_that_is_not_what_its_name_says(tmp_path: Path, member: str, content: bytes) -> None:
    (finding,) = check_dlls(tmp_path, {f"torchvision/{member}": content})

    assert (finding.severity, finding.where) == ("error", f"torchvision/{member}")


@pytest.mark.parametrize("tag", ["py3-none-any", "cp312-cp312-linux_x86_64"])
def test_accepts_programs_of_windows_in_wheels_for_other_systems(tmp_path: Path, tag: str) -> None:
    files = {"setuptools/cli.exe": pe_file(dll=False, needed=("zlib1.dll",))}

    assert check_dlls(tmp_path, files, name="setuptools", tag=tag) == []


# Device code


def check_device_code(folder: Path, sections: Mapping[str, bytes]) -> list[Finding]:
    """Return what is found in the device code of a DLL that should have some for gfx1151."""
    version = "2.10.0+sample"
    files = {"torch/lib/torch_hip.dll": pe_file(sections=sections), "torch/__init__.py": b""}
    wheel = write_wheel(folder, version=version, tag=WINDOWS_TAG, files=files)
    expectation = Expectation(distribution="torch", version=version, gpu_targets=("gfx1151",))
    findings = check_wheel(wheel, expectation)
    return [finding for finding in findings if finding.check == "device_code" or finding.severity == "error"]


CODE_FOR_GFX1151 = offload_bundle("gfx1151")


def test_accepts_a_dll_with_the_requested_device_code(tmp_path: Path) -> None:
    sections = {".hip_fat": CODE_FOR_GFX1151, ".hipFatB": bytes(24)}

    assert check_device_code(tmp_path, sections) == []


@pytest.mark.parametrize(
    ("sections", "expected_severities", "subject"),
    [
        pytest.param(
            {".hip_fat": CODE_FOR_GFX1151, ".hipFatB": bytes(48)},
            ["error"],
            "2 bundles",
            id="too few bundles",
        ),
        pytest.param({}, ["error"], "gfx1151", id="none"),
        pytest.param({".hip_fat": offload_bundle("gfx942")}, ["error", "warning"], "gfx1151", id="another"),
        pytest.param({".kpackrf": b"x"}, ["error", "note"], "gfx1151", id="moved, without an extra"),
    ],
)
def test_finds_device_code_of_a_dll_that_is_not_as_requested(
    tmp_path: Path, sections: dict[str, bytes], expected_severities: list[str], subject: str
) -> None:
    findings = check_device_code(tmp_path, sections)

    assert severities(findings) == expected_severities
    assert subject in findings[0].message


# Names of DLLs


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
        ("amdhip64_7.dll", None),
        ("libomp140.x86_64.dll", None),
        ("zlib1.dll", None),
    ],
)
def test_knows_from_whom_a_machine_gets_a_dll(name: str, origin: str | None) -> None:
    assert dlls.dll_origin(name, load_policy().windows) == origin


@pytest.mark.parametrize(
    ("tags", "names"),
    [
        ("cp312-cp312-win_amd64", {"python312.dll", "python3.dll"}),
        ("cp313-cp313t-win_amd64", {"python313t.dll", "python3t.dll"}),
        ("cp310-abi3-win_amd64", {"python3.dll"}),
        ("py3-none-win_amd64", set()),
    ],
)
def test_knows_which_python_a_wheel_may_be_linked_to(tags: str, names: set[str]) -> None:
    assert dlls.python_dlls(parse_tag(tags)) == names
