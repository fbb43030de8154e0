import io
from collections.abc import Sequence
from dataclasses import replace

import pytest

from core.binaries import elf
from core.binaries.elf import ElfFacts
from pytorch_build.check import Finding, WheelView, libraries
from pytorch_build.check.policy import LibraryProvider, Policy, load_policy
from tests.kit.binaries import elf_file
from tests.kit.findings import messages, severities
from tests.kit.views import wheel_view

POLICY = Policy(
    system_libraries=("libc.so.6",),
    machine_libraries=("libgomp.so.*",),
    providers={
        "torch": LibraryProvider(
            distributions=("torch",), libraries=("libtorch*.so", "libc10.so"), includes=("rocm",)
        ),
        "rocm": LibraryProvider(distributions=("rocm", "rocm-sdk-*"), libraries=("libamdhip64.so.*",)),
    },
)
AUDIO = "torchaudio-2.6.0-cp311-cp311-linux_x86_64.whl"
TORCH = "torch-2.10.0a0+cpu-cp312-cp312-linux_x86_64.whl"
ROCM = "rocm_sdk_libraries_gfx94x_dcgpu-7.1-py3-none-linux_x86_64.whl"


def library(
    *needed: str,
    soname: str = "",
    rpath: tuple[str, ...] = (),
    stack: str = "RW",
    kind: str = "ET_DYN",
    machine: str = "EM_X86_64",
    glibc: tuple[int, int] = (0, 0),
    debug_bytes: int = 0,
    program: bool = False,
) -> ElfFacts:
    """Return the facts of a library, or of another ELF file."""
    return ElfFacts(
        machine=machine,
        kind=kind,
        needed=needed,
        soname=soname,
        rpath=rpath,
        stack=stack,
        dynamic=True,
        glibc=glibc,
        debug_bytes=debug_bytes,
        program=program,
    )


def check(view: WheelView, policy: Policy = POLICY, loader: frozenset[str] = frozenset()) -> list[Finding]:
    """Return what is found in the libraries of a wheel."""
    options = replace(view.options, policy=policy, loader_libraries=loader)
    return [*libraries.check(replace(view, options=options))]


def subjects(findings: list[Finding]) -> list[tuple[str, str]]:
    """Return the severity and the member of each finding."""
    return [(finding.severity, finding.where) for finding in findings]


def test_reads_the_headers_of_a_library() -> None:
    content = elf_file(
        needed=["libc10.so", "libc.so.6"],
        soname="libdemo.so.1",
        rpath="/ignored",
        runpath="$ORIGIN:$ORIGIN/../lib",
        stack_flags=7,
        glibc_versions=["GLIBC_2.2.5", "GLIBC_2.34", "GLIBC_2.4"],
        sections={".debug_info": b"x" * 10, ".zdebug_str": b"y" * 5, ".text": b"z" * 100},
    )

    facts = elf.read_all_facts(io.BytesIO(content), "demo.so")

    assert facts is not None
    assert facts.sections[".text"][1] == 100
    assert facts == ElfFacts(
        machine="EM_X86_64",
        kind="ET_DYN",
        soname="libdemo.so.1",
        needed=("libc10.so", "libc.so.6"),
        rpath=("$ORIGIN", "$ORIGIN/../lib"),
        dynamic=True,
        runpath_at=facts.runpath_at,
        stack="RWE",
        page_size=0x10000,
        debug_bytes=15,
        glibc=(2, 34),
        sections=facts.sections,
    )


# Needed libraries


def test_accepts_libraries_of_a_required_distribution() -> None:
    files = {"audio.so": library("libtorch.so", "libc10.so", "libamdhip64.so.7", "libc.so.6")}

    # torch includes ROCm's libraries.
    assert check(wheel_view(AUDIO, files=files, requires=["torch==2.13.0"])) == []


def test_finds_libraries_of_a_distribution_that_is_not_required() -> None:
    files = {"audio.so": library("libtorch.so", "libc10.so", "libamdhip64.so.7", "libc.so.6")}

    of_torch, of_rocm = check(wheel_view(AUDIO, files=files))

    assert subjects([of_torch, of_rocm]) == [("error", "audio.so")] * 2
    assert "libtorch.so, libc10.so of torch" in of_torch.message
    assert "libamdhip64.so.7 of rocm" in of_rocm.message


def test_requires_torchs_own_libraries_in_torch() -> None:
    files = {"torch/lib/libtorch.so": library("libtorch_cpu.so")}

    (finding,) = check(wheel_view(TORCH, files=files, requires=["rocm[libraries]==7"]))

    assert finding.severity == "error"
    assert "libtorch_cpu.so" in finding.message


def test_lets_rocms_wheels_load_each_other() -> None:
    files = {"_rocm/lib/libhipblas.so.3": library("libamdhip64.so.7")}

    assert check(wheel_view(ROCM, files=files)) == []


@pytest.mark.parametrize(("platform", "severity"), [("linux", "warning"), ("manylinux_2_28", "error")])
def test_finds_a_library_that_the_machine_must_have(platform: str, severity: str) -> None:
    view = wheel_view(TORCH.replace("linux", platform), files={"a.so": library("libgomp.so.1")})

    (finding,) = check(view)

    assert finding.severity == severity
    assert "libgomp.so.1" in finding.message


OFF_RPATH = {"pkg/a.so": library("libb.so", rpath=("$ORIGIN/..",)), "pkg/lib/libb.so": library()}
BY_SONAME = {
    "pkg/a.so": library("libb.so.1", rpath=("$ORIGIN",)),
    "pkg/libb.so": library(soname="libb.so.1"),
}
TWINS = {"a/libx.so.1": library(soname="libx.so.1"), "b/libx.so.1": library(soname="libx.so.1")}


@pytest.mark.parametrize(
    ("files", "severity", "subject"),
    [
        pytest.param(
            {"a.so": library("libx.so", "liby.so")}, "error", "libx.so, liby.so", id="nobody's library"
        ),
        pytest.param(OFF_RPATH, "warning", "pkg/lib/libb.so", id="not on the RPATH"),
        pytest.param(BY_SONAME, "warning", "pkg/libb.so", id="under another name"),
        pytest.param(TWINS, "warning", "b/libx.so.1", id="one SONAME twice"),
        pytest.param({"a.so": library(stack="RWE")}, "error", "stack", id="executable stack"),
        pytest.param({"a.so": library(stack="")}, "warning", "PT_GNU_STACK", id="no stack header"),
        pytest.param({"a.so": library(machine="EM_AARCH64")}, "error", "EM_AARCH64", id="another processor"),
        pytest.param({"a.so": library(debug_bytes=7)}, "note", "7 bytes", id="debug sections"),
    ],
)
def test_finds_a_library_that_a_loader_would_refuse(
    files: dict[str, ElfFacts], severity: str, subject: str
) -> None:
    (finding,) = check(wheel_view(TORCH, files=files))

    assert finding.severity == severity
    assert finding.where == next(iter(files))
    assert subject in finding.message


def test_does_not_check_files_that_no_loader_loads() -> None:
    code_object = library(machine="EM_AMDGPU", stack="")
    relocatable = library("x", kind="ET_REL")

    assert check(wheel_view(TORCH, files={"a.hsaco": code_object, "b.o": relocatable})) == []


def test_follows_members_to_where_they_are_installed() -> None:
    data = "torch-2.10.0a0+cpu.data"
    files = {
        f"{data}/platlib/pkg/a.so": library("libb.so", rpath=("$ORIGIN/lib",)),
        "pkg/lib/libb.so": library(),
        f"{data}/scripts/tool": library(rpath=("$ORIGIN/../../..",)),
    }

    assert check(wheel_view(TORCH, files=files)) == []


# RPATH


@pytest.mark.parametrize(
    "entry", ["$ORIGIN", "${ORIGIN}/../lib", "$ORIGIN/../..", "$ORIGIN/../../_rocm_sdk_core/lib"]
)
def test_accepts_an_rpath_within_site_packages(entry: str) -> None:
    assert check(wheel_view(TORCH, files={"torch/lib/a.so": library(rpath=(entry,))})) == []


@pytest.mark.parametrize(
    ("entry", "severity"),
    [
        ("/home/me/lib", "error"),
        ("lib", "error"),
        ("$ORIGINAL/lib", "error"),
        ("$ORIGIN/../../..", "warning"),
    ],
)
def test_finds_an_rpath_that_leads_elsewhere(entry: str, severity: str) -> None:
    files = {"torch/lib/a.so": library(rpath=("$ORIGIN", entry))}

    (finding,) = check(wheel_view(TORCH, files=files))

    assert finding.severity == severity
    assert entry in finding.message


def test_finds_an_empty_entry_of_an_rpath() -> None:
    (finding,) = check(wheel_view(TORCH, files={"torch/lib/a.so": library(rpath=("$ORIGIN", ""))}))

    assert finding.severity == "error"
    assert "RPATH" in finding.message


def test_finds_a_folder_of_one_machine_on_the_rpath_of_a_program() -> None:
    files = {"torch/bin/test_api": library(program=True, rpath=("/lib/intel64",))}

    (finding,) = check(wheel_view(TORCH, files=files))

    assert finding.severity == "error"
    assert "/lib/intel64" in finding.message


# What a machine's loader finds

LDCONFIG_LISTING = """4 libs found in cache `/etc/ld.so.cache'
\tlibfmt.so.10 (libc6,x86-64) => /lib/x86_64-linux-gnu/libfmt.so.10
\tlibblas.so.3 (libc6,x86-64, hwcap: "x86-64-v3") => /lib/x86_64-linux-gnu/libblas.so.3
\tlibold.so.1 (libc6) => /lib/i386-linux-gnu/libold.so.1
\tlibarm.so.1 (libc6,AArch64) => /lib/aarch64-linux-gnu/libarm.so.1
"""


@pytest.mark.parametrize(
    ("machine", "names"), [("x86_64", {"libfmt.so.10", "libblas.so.3"}), ("aarch64", {"libarm.so.1"})]
)
def test_reads_the_libraries_of_a_processor_from_ldconfig(machine: str, names: set[str]) -> None:
    assert libraries.parse_ldconfig(LDCONFIG_LISTING, machine) == names


@pytest.mark.parametrize(("platform", "severity"), [("linux", "warning"), ("manylinux_2_28", "error")])
def test_counts_libraries_that_the_loader_finds_as_the_machines(platform: str, severity: str) -> None:
    files = {"a.so": library("libfmt.so.10", "libgomp.so.1", "libblas.so.3", "libold.so.1")}
    view = wheel_view(TORCH.replace("linux", platform), files=files)

    of_machine, of_nobody = check(view, loader=frozenset({"libfmt.so.10", "libblas.so.3"}))

    assert of_machine.severity == severity
    assert "libfmt.so.10, libgomp.so.1 and libblas.so.3" in of_machine.message
    assert of_nobody.severity == "error"
    assert "libold.so.1" in of_nobody.message


# Policies


def test_lets_a_policy_assume_a_provider_for_a_distribution() -> None:
    provider = POLICY.providers["torch"].model_copy(update={"assumed_by": ("torchaudio",)})
    policy = POLICY.model_copy(update={"providers": {**POLICY.providers, "torch": provider}})

    assert check(wheel_view(AUDIO, files={"a.so": library("libc10.so")}), policy) == []


def test_lets_a_policy_name_preloaded_libraries() -> None:
    policy = POLICY.model_copy(update={"preloaded": ("pkg/lib/*",)})

    assert check(wheel_view(files=OFF_RPATH), policy) == []


# ROCm's folders

ROCM_CORE = "$ORIGIN/../../_rocm_sdk_core/lib"
ROCM_FOLDERS = {
    "libamdhip64.so.7": ROCM_CORE,
    "librocm_sysdeps_liblzma.so.5": f"{ROCM_CORE}/rocm_sysdeps/lib",
    "libomp.so": f"{ROCM_CORE}/llvm/lib",
    "librccl.so.1": "$ORIGIN/../../_rocm_sdk_libraries/lib",
}


def unreachable_libraries(rpath: Sequence[str]) -> list[str]:
    """Return the libraries of ROCm that a library of torch with this RPATH does not reach."""
    files = {"torch/lib/libtorch_hip.so": library(*ROCM_FOLDERS, rpath=tuple(rpath))}
    view = wheel_view(files=files, requires=["rocm[libraries]==7"])
    findings = check(view, load_policy())
    assert set(severities(findings)) <= {"error"}
    return [name for name in ROCM_FOLDERS if name in " ".join(messages(findings))]


@pytest.mark.parametrize("package", ["_rocm_sdk_libraries", "_rocm_sdk_libraries_gfx94X_dcgpu"])
def test_reaches_every_library_of_rocm_over_its_folders(package: str) -> None:
    rpath = [folder.replace("_rocm_sdk_libraries", package) for folder in ROCM_FOLDERS.values()]

    assert unreachable_libraries(rpath) == []


def test_reaches_no_library_of_rocm_without_an_rpath() -> None:
    assert unreachable_libraries([]) == list(ROCM_FOLDERS)


@pytest.mark.parametrize("name", ROCM_FOLDERS)
def test_finds_a_library_of_rocm_whose_folder_is_not_on_the_rpath(name: str) -> None:
    rpath = [folder for folder in ROCM_FOLDERS.values() if folder != ROCM_FOLDERS[name]]

    assert unreachable_libraries(rpath) == [name]


@pytest.mark.parametrize(
    "folder",
    [
        pytest.param("$ORIGIN/../_rocm_sdk_core/lib", id="one folder too few"),
        pytest.param("$ORIGIN/../../_rocm_sdk_devel/lib", id="development package"),
    ],
)
def test_finds_a_library_of_rocm_behind_a_false_folder(folder: str) -> None:
    _, *other_folders = ROCM_FOLDERS.values()

    unreachable = unreachable_libraries([folder, *other_folders])

    assert unreachable == ["libamdhip64.so.7"]


# glibc


@pytest.mark.parametrize(
    ("platform", "glibc", "problem"),
    [
        ("manylinux_2_28_x86_64", (2, 28), None),
        ("manylinux_2_28_x86_64", (2, 34), "glibc 2.34"),
        ("manylinux2014_x86_64", (2, 17), None),
        ("manylinux2014_x86_64", (2, 18), "glibc 2.18"),
        ("linux_x86_64", (2, 41), None),
    ],
)
def test_finds_a_library_that_needs_a_later_glibc_than_promised(
    platform: str, glibc: tuple[int, int], problem: str | None
) -> None:
    view = wheel_view(f"torch-2-cp312-cp312-{platform}.whl", files={"a.so": library(glibc=glibc)})

    problems = messages(check(view))

    if problem is None:
        assert problems == []
    else:
        assert problem in problems[0]
