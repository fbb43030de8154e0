import io
from typing import Any

import pytest

from core.binaries import elf
from pytorch_build.check import Policy, Provider, WheelView, libraries, load_policy
from tests.unit.pytorch_build.check.conftest import elf_file, make_view

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
) -> elf.ElfFacts:
    return elf.ElfFacts(machine=machine, kind=kind, needed=needed, rpath=rpath, stack=stack, dynamic=True)


def found(view: WheelView, policy: Policy = POLICY) -> list[tuple[str, str, str]]:
    return [(one.severity, one.where, one.message) for one in libraries.check(view, policy)]


def read(data: bytes) -> elf.ElfFacts:
    facts = elf.read_all(io.BytesIO(data), "demo.so")
    assert facts is not None
    return facts


def test_headers_are_read() -> None:
    facts = read(
        elf_file(
            needed=["libc10.so", "libc.so.6"],
            soname="libdemo.so.1",
            rpath="/ignored",
            runpath="$ORIGIN:$ORIGIN/../lib",
            stack=7,
            glibc=["GLIBC_2.2.5", "GLIBC_2.34", "GLIBC_2.4"],
            sections={".debug_info": b"x" * 10, ".zdebug_str": b"y" * 5, ".text": b"z" * 100},
        )
    )
    assert facts == elf.ElfFacts(
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


def elf_of(**facts: Any) -> elf.ElfFacts:
    return elf.ElfFacts(**{"machine": "EM_X86_64", "kind": "ET_DYN", "stack": "RW", **facts})


TORCH_WHEEL = "torch-2.10.0a0+cpu-cp312-cp312-linux_x86_64.whl"
NEEDS = {"audio.so": library("libtorch.so", "libc10.so", "libamdhip64.so.7", "libc.so.6")}
MACHINE = {"a.so": library("libgomp.so.1")}
SAYS_MACHINE = "It needs libgomp.so.1, which no wheel provides: the machine must have it."
OFF = {"pkg/a.so": library("libb.so", rpath=("$ORIGIN/..",)), "pkg/lib/libb.so": library()}
BY_SONAME = {"pkg/a.so": library("libb.so.1", rpath=("$ORIGIN",)), "pkg/libb.so": elf_of(soname="libb.so.1")}
TWINS = {"a/libx.so.1": elf_of(soname="libx.so.1"), "b/libx.so.1": elf_of(soname="libx.so.1")}
ROCM = "rocm_sdk_libraries_gfx94x_dcgpu-7.1-py3-none-linux_x86_64.whl"
PROGRAM = {"torch/bin/test_api": elf_of(program=True, rpath=("/lib/intel64",))}
DATA = {
    "torch-2.10.0a0+cpu.data/platlib/pkg/a.so": library("libb.so", rpath=("$ORIGIN/lib",)),
    "pkg/lib/libb.so": library(),
    "torch-2.10.0a0+cpu.data/scripts/tool": library(rpath=("$ORIGIN/../../..",)),
}


def judged(name: str, files: dict[str, elf.ElfFacts], *requires: str) -> list[tuple[str, str]]:
    seen = found(make_view(name, files=files, requires=requires))
    assert {where for _, where, _ in seen} <= {next(iter(files))}
    return [(severity, said) for severity, _, said in seen]


def test_wheels_require_what_gives_their_libraries() -> None:
    assert judged(AUDIO, NEEDS, "torch==2.13.0") == []
    assert judged(AUDIO, NEEDS) == [
        ("error", "It needs libtorch.so, libc10.so of torch, but METADATA does not require torch."),
        ("error", "It needs libamdhip64.so.7 of rocm, but METADATA does not require rocm."),
    ]
    # torch itself must hold its libraries, and ROCm's wheels load each other
    own = {"torch/lib/libtorch.so": library("libtorch_cpu.so")}
    unresolved = [("error", "It needs libtorch_cpu.so: unresolved dependency.")]
    assert judged(TORCH_WHEEL, own, "rocm[libraries]==7") == unresolved
    assert judged(ROCM, {"_rocm/lib/libhipblas.so.3": library("libamdhip64.so.7")}) == []
    assert judged(TORCH_WHEEL.replace("linux", "manylinux_2_28"), MACHINE) == [("error", SAYS_MACHINE)]


@pytest.mark.parametrize(
    ("files", "severity", "words"),
    [
        ({"a.so": library("libx.so", "liby.so")}, "error", "It needs libx.so, liby.so: unresolved depend"),
        (MACHINE, "warning", SAYS_MACHINE),
        (OFF, "warning", "libb.so is in the wheel as pkg/lib/libb.so, but not on this file's RPATH: it is"),
        (BY_SONAME, "warning", "libb.so.1 is in the wheel as pkg/libb.so, but not"),
        (DATA, "", ""),
        ({"a.so": library(stack="RWE")}, "error", "It asks for an executable stack."),
        ({"a.so": library(stack="")}, "warning", "It has no PT_GNU_STACK header"),
        ({"a.so": library(machine="EM_AARCH64")}, "error", "It is for EM_AARCH64; the tag is linux_x86_64."),
        # code objects and relocatables are not loaded
        ({"a.hsaco": library(machine="EM_AMDGPU", stack=""), "b.o": library("x", kind="ET_REL")}, "", ""),
        ({"a.so": elf_of(debug_bytes=7)}, "note", "7 bytes of debug sections."),
        (TWINS, "warning", "2 files have the SONAME libx.so.1: a/libx.so.1, b/libx.so.1. One of them is"),
        # programs name no folders of one machine either
        (PROGRAM, "error", "Its RPATH names folders of one machine: /lib/intel64."),
        *(
            ({"torch/lib/a.so": library(rpath=("$ORIGIN", entry))}, severity, words)
            for entry, severity, words in (
                ("/home/me/lib", "error", "Its RPATH names folders of one machine: /home/me/lib."),
                ("lib", "error", "Its RPATH names folders of one machine"),
                ("$ORIGINAL/lib", "error", "Its RPATH names folders of one machine"),
                ("", "error", "Its RPATH has an empty entry"),
                ("$ORIGIN/../../..", "warning", "Its RPATH leaves site-packages"),
            )
        ),
        *(
            ({"torch/lib/a.so": library(rpath=(entry,))}, "", "")
            for entry in ("$ORIGIN", "${ORIGIN}/../lib", "$ORIGIN/../..", "$ORIGIN/../../_rocm_sdk_core/lib")
        ),
    ],
)
def test_what_a_loader_would_stumble_over(files: dict[str, elf.ElfFacts], severity: str, words: str) -> None:
    seen = judged(TORCH_WHEEL, files)
    assert [one for one, _ in seen] == ([severity] if severity else [])
    assert all(said.startswith(words) for _, said in seen)


LISTING = """4 libs found in cache `/etc/ld.so.cache'
\tlibfmt.so.10 (libc6,x86-64) => /lib/x86_64-linux-gnu/libfmt.so.10
\tlibblas.so.3 (libc6,x86-64, hwcap: "x86-64-v3") => /lib/x86_64-linux-gnu/libblas.so.3
\tlibold.so.1 (libc6) => /lib/i386-linux-gnu/libold.so.1
\tlibarm.so.1 (libc6,AArch64) => /lib/aarch64-linux-gnu/libarm.so.1
"""


def test_what_the_loader_finds_is_the_machines() -> None:
    loader = libraries.loader_names(LISTING, "x86_64")
    assert loader == {"libfmt.so.10", "libblas.so.3"}
    assert libraries.loader_names(LISTING, "aarch64") == {"libarm.so.1"}
    files = {"a.so": library("libfmt.so.10", "libgomp.so.1", "libblas.so.3", "libold.so.1")}
    needs = (
        "It needs libfmt.so.10, libgomp.so.1 and libblas.so.3, which no wheel provides: the machine must have"
    )
    nowhere = ("error", "It needs libold.so.1: unresolved dependency.")
    for tag, severity in (("linux", "warning"), ("manylinux_2_28", "error")):
        view = make_view(TORCH_WHEEL.replace("linux", tag), files=files)
        seen = [(one.severity, one.message) for one in libraries.check(view, POLICY, loader)]
        assert seen == [(severity, f"{needs} them."), nowhere]


def test_policy_may_assume_providers_and_preloaded_libraries() -> None:
    provider = POLICY.providers["torch"].model_copy(update={"assumed_by": ("torchaudio",)})
    policy = POLICY.model_copy(update={"providers": {**POLICY.providers, "torch": provider}})
    assert found(make_view(AUDIO, files={"a.so": library("libc10.so")}), policy) == []
    assert found(make_view(files=OFF), POLICY.model_copy(update={"preloaded": ("pkg/lib/*",)})) == []


@pytest.mark.parametrize("libraries", ["_rocm_sdk_libraries", "_rocm_sdk_libraries_gfx94X_dcgpu"])
def test_each_library_of_rocm_must_be_found_in_its_folder(libraries: str) -> None:
    needed = ("libamdhip64.so.7", "librocm_sysdeps_liblzma.so.5", "libomp.so", "librccl.so.1")
    core = "$ORIGIN/../../_rocm_sdk_core/lib"
    every = (core, f"{core}/rocm_sysdeps/lib", f"{core}/llvm/lib", f"$ORIGIN/../../{libraries}/lib")

    def messages(*rpath: str) -> list[str]:
        files = {"torch/lib/libtorch_hip.so": library(*needed, rpath=rpath)}
        seen = found(make_view(files=files, requires=["rocm[libraries]==7"]), load_policy())
        assert {severity for severity, _, _ in seen} <= {"error"}
        return [message.split(" ")[2] for _, _, message in seen]

    assert messages(*every) == []
    assert sorted(messages()) == sorted(needed)
    for missing, name in zip(every, needed, strict=True):
        assert messages(*(entry for entry in every if entry != missing)) == [name]
    assert messages("$ORIGIN/../_rocm_sdk_core/lib", *every[1:]) == [needed[0]], "one folder too few"
    assert messages("$ORIGIN/../../_rocm_sdk_devel/lib", *every[1:]) == [needed[0]]


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
def test_glibc_promises(tag: str, glibc: tuple[int, int], fine: bool) -> None:  # noqa: FBT001 - a parameter
    facts = elf.ElfFacts(machine="EM_X86_64", kind="ET_DYN", stack="RW", glibc=glibc)
    messages = [one[2] for one in found(make_view(f"torch-2-cp312-cp312-{tag}.whl", files={"a.so": facts}))]
    assert (messages == []) is fine
    assert fine or f"needs glibc {glibc[0]}.{glibc[1]}" in messages[0]
