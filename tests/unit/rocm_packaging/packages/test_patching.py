from __future__ import annotations

import os
from pathlib import Path

import pytest

from core import process
from core.binaries import elf
from core.binaries.elf import ElfFacts
from core.errors import BuildError
from rocm_packaging.artifacts import Entry
from rocm_packaging.packages import build
from rocm_packaging.packages.build import stub
from rocm_packaging.packages.payload import PayloadFile, with_rpath

CORE = "_rocm_sdk_core"


def file(path: str, *search: str, is_rpath: bool = False, dynamic: bool = True) -> PayloadFile:
    facts = ElfFacts(soname="x.so.1", rpath=search, is_rpath=is_rpath, dynamic=dynamic, program=False)
    return PayloadFile(path=path, entry=Entry(path=path, source=Path(path)), facts=facts)


def in_libraries(one: PayloadFile) -> tuple[str, ...] | None:
    folders = (f"{CORE}/lib", f"{CORE}/lib/rocm_sysdeps/lib")
    return with_rpath(one, "_rocm_sdk_libraries_gfx94X_dcgpu", folders).rpath


def test_libraries_look_into_core_after_their_own_folder() -> None:
    assert in_libraries(file("lib/x.so.1", "$ORIGIN", "/build/lib")) == (
        "$ORIGIN",
        "$ORIGIN/../../_rocm_sdk_core/lib",
        "$ORIGIN/../../_rocm_sdk_core/lib/rocm_sysdeps/lib",
    )
    assert (in_libraries(file("lib/deep/x.so.1")) or ())[0] == "$ORIGIN/../../../_rocm_sdk_core/lib"


def test_core_stays_inside_itself() -> None:
    folders = (f"{CORE}/lib/llvm/lib",)
    assert with_rpath(file("lib/x.so.1", "$ORIGIN"), CORE, folders).rpath == ("$ORIGIN", "$ORIGIN/llvm/lib")
    assert with_rpath(file("lib/llvm/lib/x.so.1"), CORE, folders).rpath == ("$ORIGIN",)


def test_only_what_differs_is_patched() -> None:
    right = in_libraries(file("lib/x.so.1", "$ORIGIN"))
    assert right is not None
    assert in_libraries(file("lib/x.so.1", *right, is_rpath=True)) is None
    assert in_libraries(file("lib/x.so.1", *right)) == right
    assert in_libraries(file("lib/x.so.1", "$ORIGIN", is_rpath=True)) == right
    assert in_libraries(file("bin/static", dynamic=False)) is None
    assert in_libraries(PayloadFile(path="a.txt", entry=Entry(path="a", source=Path("a")))) is None


def test_stub_targets_are_filled_in() -> None:
    room = b"@@STUB-TARGET@@".ljust(1024, b"\0")
    made = stub(b"<" + room + b">", "../lib/llvm/bin/clang")
    assert made == b"<" + b"../lib/llvm/bin/clang".ljust(1024, b"\0") + b">"
    with pytest.raises(BuildError):
        stub(b"nothing here", "x")
    with pytest.raises(BuildError):
        stub(room, "x" * 1024)


@pytest.mark.processes
def test_a_stub_starts_its_target_under_its_own_name(tmp_path: Path) -> None:
    program = tmp_path / "bin" / "tool"
    target = tmp_path / "lib" / "target"
    for path in (program, target):
        path.parent.mkdir()
    program.write_bytes(stub(build.stub_template(), "../lib/target"))
    target.write_text('#!/bin/sh\necho "ran $0 with $1"\nexit 3\n', encoding="utf-8")
    for path in (program, target):
        path.chmod(0o755)
    done = process.capture([program, "argument"], check=False)
    assert done.returncode == 3
    assert done.stdout.endswith("/lib/target with argument\n")
    target.unlink()
    done = process.capture([program], check=False)
    assert done.returncode == 127
    assert "No such file" in done.stderr


@pytest.mark.processes
def test_stubs_are_reproducible() -> None:
    assert build.stub_template() == build.stub_template()


def test_other_files_have_no_elf_facts(tmp_path: Path) -> None:
    (tmp_path / "script").write_text("#!/bin/sh\n", encoding="utf-8")
    assert elf.read(tmp_path / "script") is None
    running = Path(os.readlink("/proc/self/exe"))  # noqa: PTH115 - the link itself is what is asked for
    facts = elf.read(running)
    assert facts is not None
    assert facts.program
