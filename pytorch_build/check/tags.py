"""Tags of a wheel: file name, WHEEL and extension modules have to agree."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import TYPE_CHECKING

from packaging.tags import Tag, compatible_tags, cpython_tags

from pytorch_build.check import Finding, error
from rocm_packaging.packages.layouts import device_target, is_rocm

if TYPE_CHECKING:
    from core.wheel import WheelInfo
    from pytorch_build.check import Severity, WheelView

# name.cpython-312-x86_64-linux-gnu.so, name.cp312-win_amd64.pyd (PEP 3149 and CPython's build)
_EXTENSION = re.compile(r"\.(?:cpython-|cp)(\d+t?)[^/.]*\.(?:so|pyd)$")


def check(view: WheelView) -> Iterator[Finding]:
    """Yield findings where a wheel's tags contradict WHEEL, its compiled files or its extension modules."""
    if view.info is not None:
        yield from _compare_with_info(view, view.info)
    yield from _compare_with_members(view)
    yield from _find_extensions_of_other_pythons(view)


def _compare_with_info(view: WheelView, info: WheelInfo) -> Iterator[Finding]:
    """Yield errors where WHEEL has other tags or another build tag than the file name."""
    tags_of_name = {str(tag) for tag in view.name.tags}
    if tags_of_name != info.tags:
        listed = ", ".join(sorted(info.tags)) or "none"
        expected = ", ".join(sorted(tags_of_name))
        yield error(f"WHEEL lists tags {listed}; the file name says {expected}.")
    if info.wheel_version.split(".")[0] != "1":
        yield error(f"WHEEL has format version {info.wheel_version}; installers read 1.x.")
    build_tag = "".join(str(part) for part in view.name.build_tag)
    if info.build != build_tag:
        yield error(f"WHEEL has build tag {info.build!r}; the file name {build_tag!r}.")


def _compare_with_members(view: WheelView) -> Iterator[Finding]:
    """Yield findings where the platform tag or Root-Is-Purelib contradicts what is compiled."""
    elf_binaries = [binary for binary in view.binaries if binary.elf and binary.elf.machine != "EM_AMDGPU"]
    compiled = [name for name in view.members if name.endswith((".pyd", ".dll", ".dylib"))]
    compiled += [binary.name for binary in elf_binaries]

    is_portable = "any" in view.platforms
    name = view.name.distribution
    # Upstream's ROCm wheels are made like this, and ours as they are.
    severity: Severity = "note" if is_rocm(name) else "warning"
    if compiled and is_portable:
        yield error(f"The tag promises any platform, but {len(compiled)} files are compiled.", compiled[0])
    elif compiled and view.info and view.info.root_is_purelib:
        message = f"Root-Is-Purelib is true, but {len(compiled)} files are compiled."
        yield Finding(
            severity=severity,
            message=message,
            where=compiled[0],
        )
    elif not compiled and not is_portable and not device_target(name):
        yield Finding(
            severity=severity,
            message="The tag names a platform, but nothing is compiled.",
        )


def _find_extensions_of_other_pythons(view: WheelView) -> Iterator[Finding]:
    """Yield errors for extension modules of a Python that the wheel is not for."""
    abis = {tag.abi for tag in view.name.tags}
    interpreters = {tag.interpreter for tag in view.name.tags}
    if interpreters & {"py3", "py2"}:
        return  # a wheel for every Python may carry one extension for each
    for name in view.members:
        match = _EXTENSION.search(name)
        if match is not None and f"cp{match[1]}" not in abis:
            yield error(f"It is for cp{match[1]}, the wheel for {', '.join(sorted(abis))}.", name)


def accepts(python_tag: str, tag: Tag) -> bool:
    """Return whether a Python installs a wheel with a tag; it is given as ``cp312`` or ``cp313-cp313t``."""
    abi = python_tag.rpartition("-")[2]
    interpreter = abi.rstrip("t")
    version = (int(interpreter[2]), int(interpreter[3:]))
    if tag in cpython_tags(version, [abi], [tag.platform]):
        return True
    return tag in compatible_tags(version, interpreter, [tag.platform])
