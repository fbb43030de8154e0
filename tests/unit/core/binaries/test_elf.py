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

SAMPLES = sorted(
    {
        Path(sys.executable).resolve(),
        *Path(deflate.__file__).parent.glob("*.so"),
        *Path(pydantic_core.__file__).parent.glob("*.so"),
    }
)


def by_pyelftools(path: Path) -> tuple[str, str, list[str], bool, bool]:
    tags: dict[str, str] = {}
    needed = []
    dynamic = interpreted = False
    with path.open("rb") as stream:
        file = ELFFile(stream)
        for segment in file.iter_segments():
            interpreted = interpreted or segment["p_type"] == "PT_INTERP"
            if isinstance(segment, DynamicSegment):
                dynamic = True
                for tag in segment.iter_tags():
                    found = vars(tag)
                    needed += [found["needed"]] if "needed" in found else []
                    tags |= {name: found[name] for name in ("soname", "rpath", "runpath") if name in found}
        program = (file["e_type"] == "ET_EXEC" or interpreted) and "soname" not in tags
    return tags.get("soname", ""), tags.get("runpath", tags.get("rpath", "")), needed, dynamic, program


@pytest.mark.parametrize("path", SAMPLES, ids=lambda path: path.name)
def test_real_files_say_the_same_to_pyelftools(path: Path) -> None:
    facts = elf.read(path)
    assert facts is not None
    said = (facts.soname, ":".join(facts.rpath), list(facts.needed), facts.dynamic, facts.program)
    assert said == by_pyelftools(path)


@pytest.mark.parametrize("content", [b"", b"\x7fEL", b"#!/bin/sh\n", b"\x7fELF\x01\x01" + bytes(100)])
def test_other_files_have_no_facts(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "file").write_bytes(content)
    assert elf.read(tmp_path / "file") is None


def test_device_code_has_no_facts(tmp_path: Path) -> None:
    code = bytearray(SAMPLES[0].read_bytes()[:4096])
    code[18:20] = (224).to_bytes(2, "little")
    (tmp_path / "kernel.hsaco").write_bytes(code)
    assert elf.read(tmp_path / "kernel.hsaco") is None


def test_a_file_cut_off_is_refused(tmp_path: Path) -> None:
    (tmp_path / "cut").write_bytes(SAMPLES[0].read_bytes()[:100])
    with pytest.raises(ArtifactError, match="damaged ELF file: it is cut off"):
        elf.read(tmp_path / "cut")


@given(position=st.integers(16, 2047), value=st.integers(0, 255))
def test_damage_is_no_crash(tmp_path_factory: pytest.TempPathFactory, position: int, value: int) -> None:
    path = tmp_path_factory.getbasetemp() / "changed.so"
    data = bytearray(SAMPLES[-1].read_bytes()[: 1 << 20])
    data[position] = value
    path.write_bytes(data)
    try:
        elf.read(path)
    except ArtifactError as problem:
        assert "damaged" in problem.message  # noqa: PT017 - either outcome is right
