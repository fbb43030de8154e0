from __future__ import annotations

import io
from typing import TYPE_CHECKING

import pytest

from core import process
from core.binaries import elf
from core.binaries.elf import ElfFacts
from pytorch_build.check import libraries
from pytorch_build.check.policy import Policy, Provider, load_policy

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from pytorch_build.check import WheelView

    MakeView = Callable[..., WheelView]

POLICY = Policy(
    system_libraries=("libc.so.6",),
    machine_libraries=("libgomp.so.*",),
    providers={
        "torch": Provider(
            distributions=("torch",), libraries=("libtorch*.so", "libc10.so"), includes=("rocm",)
        ),
        "rocm": Provider(distributions=("rocm", "rocm-sdk-*"), libraries=("libamdhip64.so.*",)),
    },
)
AUDIO = "torchaudio-2.6.0-cp311-cp311-linux_x86_64.whl"


def library(
    *needed: str,
    rpath: tuple[str, ...] = (),
    stack: str = "RW",
    kind: str = "ET_DYN",
    machine: str = "EM_X86_64",
) -> ElfFacts:
    return ElfFacts(machine=machine, kind=kind, needed=needed, rpath=rpath, stack=stack)


def found(view: WheelView, policy: Policy = POLICY) -> list[tuple[str, str, str]]:
    return [(one.severity, one.where, one.message) for one in libraries.check(view, policy)]


def read(data: bytes) -> ElfFacts:
    facts = elf.read_all(io.BytesIO(data), "demo.so")
    assert facts is not None
    return facts


def test_headers_are_read(elf_bytes: Callable[..., bytes]) -> None:
    facts = read(
        elf_bytes(
            needed=["libc10.so", "libc.so.6"],
            soname="libdemo.so.1",
            rpath="/ignored",
            runpath="$ORIGIN:$ORIGIN/../lib",
            stack=7,
            glibc=["GLIBC_2.2.5", "GLIBC_2.34", "GLIBC_2.4"],
            sections={".debug_info": b"x" * 10, ".zdebug_str": b"y" * 5, ".text": b"z" * 100},
        )
    )
    assert facts == ElfFacts(
        machine="EM_X86_64",
        kind="ET_DYN",
        soname="libdemo.so.1",
        needed=("libc10.so", "libc.so.6"),
        rpath=("$ORIGIN", "$ORIGIN/../lib"),
        dynamic=True,
        runpath_at=facts.runpath_at,
        stack="RWE",
        debug_bytes=15,
        glibc=(2, 34),
        sections=facts.sections,
    )
    assert facts.sections[".text"][1] == 100


def test_the_old_rpath_and_none(elf_bytes: Callable[..., bytes]) -> None:
    assert read(elf_bytes(rpath="$ORIGIN")).rpath == ("$ORIGIN",)
    assert read(elf_bytes()).rpath == ()
    assert read(elf_bytes(stack=None)).stack == ""
    assert read(elf_bytes(program=True)).program is True


@pytest.mark.processes
def test_what_a_real_linker_writes_is_read(tmp_path: Path) -> None:
    compiler = process.which("cc") or process.which("c++")
    assert compiler is not None, "a C compiler is part of the set-up"
    source = tmp_path / "a.c"
    source.write_text('#include <stdio.h>\nvoid f(void) { printf("%p", (void *)f); }\n')
    target = tmp_path / "liba.so.1"
    flags = [
        "-shared",
        "-fPIC",
        "-g",
        "-Wl,-soname,liba.so.1",
        "-Wl,-rpath,$ORIGIN/../lib",
        "-Wl,-z,execstack",
    ]
    process.capture([compiler, *flags, "-o", target, source])

    facts = read(target.read_bytes())

    assert facts.soname == "liba.so.1"
    assert facts.needed == ("libc.so.6",)
    assert facts.rpath == ("$ORIGIN/../lib",)
    assert facts.stack == "RWE"
    assert facts.debug_bytes > 0
    assert facts.glibc >= (2, 2)
    assert facts.program is False


def test_a_sound_wheel(view: MakeView) -> None:
    wheel = view(
        files={
            "torch/_C.cpython-312-x86_64-linux-gnu.so": library("libtorch_x.so", rpath=("$ORIGIN/lib",)),
            "torch/lib/libtorch_x.so": library("libc.so.6", "libother.so", rpath=("${ORIGIN}",)),
            "torch/lib/libother.so": library("libc.so.6"),
        }
    )
    assert found(wheel) == []


def test_libraries_of_torch_need_no_rpath_where_torch_is_required(view: MakeView) -> None:
    files = {
        "torchaudio/lib/_torchaudio.so": library("libtorch.so", "libc10.so", "libamdhip64.so.7", "libc.so.6")
    }
    assert found(view(AUDIO, files=files, requires=["torch==2.13.0"])) == []
    assert found(view(AUDIO, files=files)) == [
        (
            "error",
            "torchaudio/lib/_torchaudio.so",
            "It needs libtorch.so, libc10.so of torch, but METADATA does not require torch.",
        ),
        (
            "error",
            "torchaudio/lib/_torchaudio.so",
            "It needs libamdhip64.so.7 of rocm, but METADATA does not require rocm.",
        ),
    ]


def test_torch_itself_must_hold_its_libraries(view: MakeView) -> None:
    wheel = view(files={"torch/lib/libtorch.so": library("libtorch_cpu.so")}, requires=["rocm[libraries]==7"])
    assert found(wheel) == [
        ("error", "torch/lib/libtorch.so", "It needs libtorch_cpu.so: unresolved dependency.")
    ]


def test_rocm_wheels_load_each_other(view: MakeView) -> None:
    name = "rocm_sdk_libraries_gfx94x_dcgpu-7.1-py3-none-linux_x86_64.whl"
    assert found(view(name, files={"_rocm/lib/libhipblas.so.3": library("libamdhip64.so.7")})) == []


def test_who_may_leave_the_requirement_out(view: MakeView) -> None:
    provider = POLICY.providers["torch"].model_copy(update={"assumed_by": ("torchaudio",)})
    policy = POLICY.model_copy(update={"providers": {**POLICY.providers, "torch": provider}})
    assert found(view(AUDIO, files={"a.so": library("libc10.so")}), policy) == []


def test_a_library_off_the_rpath(view: MakeView) -> None:
    files = {"pkg/a.so": library("libb.so", rpath=("$ORIGIN/..",)), "pkg/lib/libb.so": library()}
    message = "libb.so is in the wheel as pkg/lib/libb.so, but not on this file's RPATH: "
    message += "it is found only if something loads it before."
    assert found(view(files=files)) == [("warning", "pkg/a.so", message)]
    policy = POLICY.model_copy(update={"preloaded": ("pkg/lib/*",)})
    assert found(view(files=files), policy) == []


def test_a_library_that_only_its_soname_names(view: MakeView) -> None:
    other = ElfFacts(machine="EM_X86_64", kind="ET_DYN", soname="libb.so.1", stack="RW")
    files = {"pkg/a.so": library("libb.so.1", rpath=("$ORIGIN",)), "pkg/libb.so": other}
    assert [(severity, where) for severity, where, _ in found(view(files=files))] == [("warning", "pkg/a.so")]


@pytest.mark.parametrize(
    ("tag", "severity"), [("linux_x86_64", "warning"), ("manylinux_2_28_x86_64", "error")]
)
def test_libraries_of_the_machine(view: MakeView, tag: str, severity: str) -> None:
    wheel = view(f"torch-2-cp312-cp312-{tag}.whl", files={"a.so": library("libgomp.so.1")})
    assert found(wheel) == [
        (severity, "a.so", "It needs libgomp.so.1, which no wheel provides: the machine must have it.")
    ]


def test_libraries_from_nowhere(view: MakeView) -> None:
    assert found(view(files={"a.so": library("libx.so", "liby.so")})) == [
        ("error", "a.so", "It needs libx.so, liby.so: unresolved dependency.")
    ]


@pytest.mark.parametrize(
    ("entry", "severity", "words"),
    [
        ("/home/me/build/lib", "error", "folders of one machine: /home/me/build/lib"),
        ("/opt/rocm/lib", "error", "folders of one machine"),
        ("lib", "error", "folders of one machine"),
        ("$ORIGINAL/lib", "error", "folders of one machine"),
        ("", "error", "an empty entry"),
        ("$ORIGIN/../../..", "warning", "leaves site-packages"),
    ],
)
def test_rpaths(view: MakeView, entry: str, severity: str, words: str) -> None:
    ((found_severity, _, message),) = found(view(files={"torch/lib/a.so": library(rpath=("$ORIGIN", entry))}))
    assert found_severity == severity
    assert words in message


@pytest.mark.parametrize(
    "entry", ["$ORIGIN", "${ORIGIN}/../lib", "$ORIGIN/../..", "$ORIGIN/../../_rocm_sdk_core/lib"]
)
def test_rpaths_that_are_fine(view: MakeView, entry: str) -> None:
    assert found(view(files={"torch/lib/a.so": library(rpath=(entry,))})) == []


def test_programs_name_no_folders_of_one_machine_either(view: MakeView) -> None:
    program = ElfFacts(machine="EM_X86_64", kind="ET_DYN", program=True, rpath=("/lib/intel64",), stack="RW")
    assert [one[0] for one in found(view(files={"torch/bin/test_api": program}))] == ["error"]


@pytest.mark.parametrize("libraries", ["_rocm_sdk_libraries", "_rocm_sdk_libraries_gfx94X_dcgpu"])
def test_each_library_of_rocm_must_be_found_in_its_folder(view: MakeView, libraries: str) -> None:
    needed = ("libamdhip64.so.7", "librocm_sysdeps_liblzma.so.5", "libomp.so", "librccl.so.1")
    core = "$ORIGIN/../../_rocm_sdk_core/lib"
    every = (core, f"{core}/rocm_sysdeps/lib", f"{core}/llvm/lib", f"$ORIGIN/../../{libraries}/lib")

    def messages(*rpath: str) -> list[str]:
        files = {"torch/lib/libtorch_hip.so": library(*needed, rpath=rpath)}
        seen = found(view(files=files, requires=["rocm[libraries]==7"]), load_policy())
        assert {severity for severity, _, _ in seen} <= {"error"}
        return [message.split(" ")[2] for _, _, message in seen]

    assert messages(*every) == []
    assert sorted(messages()) == sorted(needed)
    for missing, name in zip(every, needed, strict=True):
        assert messages(*(entry for entry in every if entry != missing)) == [name]
    assert messages("$ORIGIN/../_rocm_sdk_core/lib", *every[1:]) == [needed[0]], "one folder too few"
    assert messages("$ORIGIN/../../_rocm_sdk_devel/lib", *every[1:]) == [needed[0]]


def test_data_folders_are_where_they_are_installed(view: MakeView) -> None:
    files = {
        "torch-2.10.0a0+cpu.data/platlib/pkg/a.so": library("libb.so", rpath=("$ORIGIN/lib",)),
        "pkg/lib/libb.so": library(),
        "torch-2.10.0a0+cpu.data/scripts/tool": library(rpath=("$ORIGIN/../../..",)),
    }
    assert found(view(files=files)) == []


def test_executable_stacks(view: MakeView) -> None:
    wheel = view(files={"a.so": library(stack="RWE"), "b.so": library(stack="")})
    assert [(one[0], one[1]) for one in found(wheel)] == [("error", "a.so"), ("warning", "b.so")]


def test_code_for_another_machine(view: MakeView) -> None:
    wheel = view(files={"a.so": library(machine="EM_AARCH64")})
    assert found(wheel) == [("error", "a.so", "It is for EM_AARCH64; the tag is linux_x86_64.")]


def test_device_code_and_object_files_are_not_loaded(view: MakeView) -> None:
    wheel = view(
        files={"a.hsaco": library(machine="EM_AMDGPU", stack=""), "b.o": library("x", kind="ET_REL")}
    )
    assert found(wheel) == []


@pytest.mark.parametrize(
    ("tag", "glibc", "fine"),
    [
        ("manylinux_2_28_x86_64", (2, 28), True),
        ("manylinux_2_28_x86_64", (2, 34), False),
        ("manylinux2014_x86_64", (2, 17), True),
        ("manylinux2014_x86_64", (2, 18), False),
        ("linux_x86_64", (2, 41), True),
    ],
)
def test_glibc_promises(view: MakeView, tag: str, glibc: tuple[int, int], fine: bool) -> None:  # noqa: FBT001 - a parameter
    facts = ElfFacts(machine="EM_X86_64", kind="ET_DYN", stack="RW", glibc=glibc)
    messages = [one[2] for one in found(view(f"torch-2-cp312-cp312-{tag}.whl", files={"a.so": facts}))]
    assert (messages == []) is fine
    assert fine or f"needs glibc {glibc[0]}.{glibc[1]}" in messages[0]


def test_debug_sections_are_a_note(view: MakeView) -> None:
    facts = ElfFacts(machine="EM_X86_64", kind="ET_DYN", stack="RW", debug_bytes=7)
    assert found(view(files={"a.so": facts})) == [("note", "a.so", "7 bytes of debug sections.")]


def test_two_libraries_of_one_soname(view: MakeView) -> None:
    facts = ElfFacts(machine="EM_X86_64", kind="ET_DYN", stack="RW", soname="libx.so.1")
    (one,) = found(view(files={"a/libx.so.1": facts, "b/libx.so.1": facts}))
    assert one[0] == "warning"
    assert "a/libx.so.1, b/libx.so.1" in one[2]


def test_the_data_knows_what_real_extensions_need(view: MakeView) -> None:
    needed = (
        "libtorch.so",
        "libc10.so",
        "libtorch_cpu.so",
        "libtorch_python.so",
        "libstdc++.so.6",
        "libgcc_s.so.1",
    )
    wheel = view(
        AUDIO, files={"torchaudio/lib/libtorchaudio.so": library(*needed)}, requires=["torch==2.13.0"]
    )
    assert found(wheel, load_policy()) == []
