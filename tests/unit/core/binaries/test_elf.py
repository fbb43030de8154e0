import sys
from pathlib import Path

import deflate
import pydantic_core
import pytest
from elftools.elf.dynamic import DynamicSegment
from elftools.elf.elffile import ELFFile
from hypothesis import given
from hypothesis import strategies as st

from core.binaries import elf
from core.errors import ArtifactError
from tests.kit.binaries import EM_AMDGPU, elf_file
from tests.kit.windows import not_on_windows

# Files that real linkers made: this Python, and the extension modules of two of its packages.
REAL_FILES = sorted(
    {
        Path(sys.executable).resolve(),
        *Path(deflate.__file__).parent.glob("*.so"),
        *Path(pydantic_core.__file__).parent.glob("*.so"),
    }
)
LIBRARY = elf_file(
    needed=["libc.so.6", "libm.so.6"], soname="libdemo.so.1", runpath="$ORIGIN", glibc_versions=["GLIBC_2.34"]
)

TEXT_TAGS = ("soname", "rpath", "runpath")


def facts_by_pyelftools(path: Path) -> elf.ElfFacts:
    """Return what another reader of ELF files reads."""
    texts: dict[str, str] = {}
    needed: list[str] = []
    has_interpreter = False
    is_dynamic = False
    with path.open("rb") as stream:
        file = ELFFile(stream)
        is_executable = file["e_type"] == "ET_EXEC"
        for segment in file.iter_segments():
            has_interpreter = has_interpreter or segment["p_type"] == "PT_INTERP"
            if not isinstance(segment, DynamicSegment):
                continue
            is_dynamic = True
            for tag in segment.iter_tags():
                attributes = vars(tag)
                if "needed" in attributes:
                    needed.append(attributes["needed"])
                texts |= {name: attributes[name] for name in TEXT_TAGS if name in attributes}

    rpath = texts.get("runpath", texts.get("rpath", ""))
    return elf.ElfFacts(
        soname=texts.get("soname", ""),
        rpath=tuple(rpath.split(":")) if rpath else (),
        needed=tuple(needed),
        dynamic=is_dynamic,
        program=(is_executable or has_interpreter) and "soname" not in texts,
    )


@not_on_windows("no file of this machine is an ELF file there")
@pytest.mark.parametrize("path", REAL_FILES, ids=lambda path: path.name)
def test_reads_real_files_as_pyelftools_does(path: Path) -> None:
    facts = elf.read(path)
    expected = facts_by_pyelftools(path)

    assert facts is not None
    assert facts.soname == expected.soname
    assert facts.rpath == expected.rpath
    assert facts.needed == expected.needed
    assert facts.dynamic == expected.dynamic
    assert facts.program == expected.program


@pytest.mark.parametrize(
    "content",
    [
        pytest.param(b"", id="empty"),
        pytest.param(b"\x7fEL", id="short"),
        pytest.param(b"#!/bin/sh\n", id="script"),
        pytest.param(b"\x7fELF\x01\x01" + bytes(100), id="32 bits"),
        pytest.param(elf_file(machine=EM_AMDGPU), id="device code"),
    ],
)
def test_reads_nothing_of_other_files(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "file").write_bytes(content)

    assert elf.read(tmp_path / "file") is None


def test_rejects_a_file_that_is_cut_off(tmp_path: Path) -> None:
    (tmp_path / "cut.so").write_bytes(LIBRARY[:100])

    with pytest.raises(ArtifactError, match="cut off") as raised:
        elf.read(tmp_path / "cut.so")

    assert "cut.so" in raised.value.message


@given(position=st.integers(16, len(LIBRARY) - 1), value=st.integers(0, 255))
def test_reads_or_rejects_a_damaged_file(
    tmp_path_factory: pytest.TempPathFactory, position: int, value: int
) -> None:
    path = tmp_path_factory.getbasetemp() / "damaged.so"
    content = bytearray(LIBRARY)
    content[position] = value
    path.write_bytes(content)

    try:
        elf.read(path)
    except ArtifactError as problem:
        assert "damaged.so" in problem.message  # noqa: PT017 - either outcome is right
