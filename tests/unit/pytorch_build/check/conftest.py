"""Writers of what the checks read: offload bundles, ELF files and wheels."""

import hashlib
import struct
import zlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import zstandard

from core.archive import Member
from core.binaries.elf import ElfFacts
from core.wheel import WheelInfo, WheelMetadata, parse_wheel_name, writer
from core.wheel.writer import WheelSpec, metadata_text
from pytorch_build.check import Binary, DeviceFacts, WheelMember, WheelView

MAGIC = b"__CLANG_OFFLOAD_BUNDLE__"
HOST = "host-x86_64-unknown-linux-gnu-"


def plain_bundle(*targets: str, code: bytes = b"\x7fELF-code", kind: str = "hipv4") -> bytes:
    """Write a bundle as clang-offload-bundler does: host first, code objects aligned to 4096."""
    ids = [HOST, *(f"{kind}-amdgcn-amd-amdhsa--{target}" for target in targets)]
    table_size = len(MAGIC) + 8 + sum(24 + len(one) for one in ids)
    offset = -(-table_size // 4096) * 4096
    table, body = MAGIC + struct.pack("<Q", len(ids)), b""
    for one in ids:
        content = b"" if one == HOST else code
        table += struct.pack("<QQQ", offset + len(body), len(content), len(one)) + one.encode()
        body += content.ljust(-(-len(content) // 4096) * 4096, b"\0")
    return table.ljust(offset, b"\0") + body


def compressed_bundle(plain: bytes, *, version: int = 3, method: int = 1, level: int = 3) -> bytes:
    """Wrap a bundle as clang does with --offload-compress."""
    payload = zlib.compress(plain) if method == 0 else zstandard.ZstdCompressor(level=level).compress(plain)
    digest = int.from_bytes(hashlib.md5(plain, usedforsecurity=False).digest()[:8], "little")
    fields = {1: "<IQ", 2: "<IIQ", 3: "<QQQ"}[version]
    total = 8 + struct.calcsize(fields) + len(payload)
    sizes = (len(plain), digest) if version == 1 else (total, len(plain), digest)
    return b"CCOB" + struct.pack("<HH", version, method) + struct.pack(fields, *sizes) + payload


class _Strings:
    def __init__(self) -> None:
        self.data = b"\0"

    def add(self, text: str) -> int:
        at = len(self.data)
        self.data += text.encode() + b"\0"
        return at


def elf_file(
    *,
    machine: int = 62,
    kind: int = 3,
    needed: Sequence[str] = (),
    soname: str = "",
    rpath: str | None = None,
    runpath: str | None = None,
    stack: int | None = 6,
    program: bool = False,
    note: bytes = b"",
    glibc: Sequence[str] = (),
    sections: Mapping[str, bytes] | None = None,
) -> bytes:
    """Write a little-endian ELF64 file with the headers that loaders look at."""
    strings = _Strings()
    tags = [(1, strings.add(name)) for name in needed]
    tags += [(14, strings.add(soname))] if soname else []
    tags += [(15, strings.add(rpath))] if rpath is not None else []
    tags += [(29, strings.add(runpath))] if runpath is not None else []
    versions = [strings.add(name) for name in glibc]
    file_name = strings.add("libc.so.6")
    segment_count = 2 + (stack is not None) + program + bool(note)
    start = 64 + 56 * segment_count
    # PT_LOAD maps the file at address 0, so addresses are offsets.
    dynamic = [*tags, (5, start), (10, len(strings.data)), (0, 0)]
    blob = strings.data.ljust(-(-len(strings.data) // 8) * 8, b"\0")
    dynamic_at = start + len(blob)
    dynamic_data = b"".join(struct.pack("<QQ", *pair) for pair in dynamic)
    note_at = dynamic_at + len(dynamic_data)
    blob += dynamic_data + note
    contents: list[tuple[str, int, bytes, int, int]] = [(".dynstr", 3, strings.data, 0, 0)]
    if versions:
        need = struct.pack("<HHIII", 1, len(versions), file_name, 16, 0)
        for index, name in enumerate(versions):
            last = index == len(versions) - 1
            need += struct.pack("<IHHII", 0, 0, index + 2, name, 0 if last else 16)
        contents.append((".gnu.version_r", 0x6FFFFFFE, need, 1, 1))
    contents += [(name, 1, data, 0, 0) for name, data in (sections or {}).items()]
    names = _Strings()
    headers = [struct.pack("<IIQQQQIIQQ", *([0] * 10))]
    for section, type_, data, link, info in contents:
        at = start + len(blob)
        headers.append(
            struct.pack("<IIQQQQIIQQ", names.add(section), type_, 0, at, at, len(data), link, info, 1, 0)
        )
        blob += data
    name_at = names.add(".shstrtab")
    at = start + len(blob)
    headers.append(struct.pack("<IIQQQQIIQQ", name_at, 3, 0, 0, at, len(names.data), 0, 0, 1, 0))
    blob += names.data
    section_at = start + len(blob)
    size = section_at + 64 * len(headers)

    def segment(type_: int, flags: int, offset: int, length: int) -> bytes:
        return struct.pack("<IIQQQQQQ", type_, flags, offset, offset, offset, length, length, 1)

    segments = segment(1, 5, 0, size) + segment(2, 6, dynamic_at, len(dynamic_data))
    segments += segment(0x6474E551, stack, 0, 0) if stack is not None else b""
    segments += segment(3, 4, start, 1) if program else b""
    segments += segment(4, 4, note_at, len(note)) if note else b""
    ident = b"\x7fELF" + bytes([2, 1, 1]) + bytes(9)
    header = ident + struct.pack(
        "<HHIQQQIHHHHHH",
        *(kind, machine, 1, 0, 64, section_at, 0, 64, 56, segment_count, 64, len(headers), len(headers) - 1),
    )
    return header + segments + blob + b"".join(headers)


def write_wheel(
    folder: Path,
    filename: str,
    files: Mapping[str, bytes],
    *,
    requires: Sequence[str] = (),
    extras: Sequence[str] = (),
    purelib: bool = False,
    licensed: str = "License: BSD",
) -> Path:
    name = parse_wheel_name(filename)
    distribution, version, tag = filename.removesuffix(".whl").split("-", 2)
    fields = [("Name", name.distribution), ("Version", version)]
    fields += [(key, value) for key, _, value in [licensed.partition(": ")] if key]
    fields += [("Provides-Extra", one) for one in extras] + [("Requires-Dist", one) for one in requires]
    spec = WheelSpec(
        distribution=distribution, version=version, tag=tag, metadata=metadata_text(fields), purelib=purelib
    )
    return writer.write_wheel(
        folder, spec, [Member(name=one, source=data) for one, data in files.items()]
    ).path


def make_view(
    filename: str = "torch-2.10.0a0+cpu-cp312-cp312-linux_x86_64.whl",
    *,
    files: Mapping[str, Any] | None = None,
    requires: Sequence[str] = (),
    size: int = 100_000_000,
    purelib: bool = False,
) -> WheelView:
    """Make a view: a number is a plain file's size, facts are those of a compiled one."""
    name = parse_wheel_name(filename)
    members, binaries = [], []
    for path, what in sorted((files or {}).items()):
        member = WheelMember(name=path, size=what if isinstance(what, int) else 1000)
        members.append(member)
        if isinstance(what, ElfFacts):
            binaries.append(Binary(member=member, elf=what))
        elif isinstance(what, DeviceFacts):
            facts = ElfFacts(machine="EM_X86_64", kind="ET_DYN", stack="RW", dynamic=True)
            binaries.append(Binary(member=member, elf=facts, device=what))
    metadata = WheelMetadata(
        name=name.distribution,
        version=name.version,
        requires_dist=tuple(requires),
        requires_python="",
        provides_extra=(),
        license="BSD-3-Clause",
        raw=b"",
    )
    info = WheelInfo(
        wheel_version="1.0",
        root_is_purelib=purelib,
        tags=frozenset(map(str, name.tags)),
        build="".join(str(part) for part in name.build_tag),
    )
    return WheelView(
        name=name, size=size, members=tuple(members), metadata=metadata, info=info, binaries=tuple(binaries)
    )
