"""GPU targets of device code: read from sections of ELF and PE files, compared with what a wheel promises."""

from __future__ import annotations

import mmap
import re
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from core.binaries import elf
from pytorch_build.check import DeviceFacts, Expectation, Finding, Policy, Severity, WheelView
from pytorch_build.check.bundles import COMPRESSED_MAGIC, PLAIN_MAGIC, Bundle, BundleError, read_bundles
from rocm_packaging.packages import kpack
from rocm_packaging.packages.layouts import covers, device_target

if TYPE_CHECKING:
    from core.binaries.elf import ElfFacts
    from core.binaries.pe import PeFacts
    from pytorch_build.check.bundles import Data

    _Found = Iterator[tuple[Severity, str, str]]  # with the message and where

CHECK = "device_code"
MAGICS = (PLAIN_MAGIC, COMPRESSED_MAGIC)
_WRAPPER_SIZE = 24
# A code object's metadata note names its target in full (AMDGPU backend guide, code object V3 and up).
_NOTE_TARGET = re.compile(rb"amdgcn-amd-amdhsa--(gfx[0-9a-z-]+(?::[a-z]+[+-])*)")
_TARGET = re.compile(r"gfx[0-9a-f]{3,4}")
# SPIR-V, compiled for whatever GPU it meets.
PORTABLE = "amdgcnspirv"


def file_facts(path: Path) -> DeviceFacts | None:
    """Read the device code of any file: a library, a code object, a bare bundle, an archive."""
    with path.open("rb") as stream:
        head = stream.read(len(PLAIN_MAGIC))
        if head.startswith(elf.MAGIC):
            facts = elf.read_all_facts(stream, path.name)
            return elf_facts(facts, mapped(path)) if facts else None
        if head.startswith(kpack.MAGIC):
            archive = kpack.read(stream)
            binaries = frozenset(kernel.binary.rpartition("#")[0] for kernel in archive.kernels)
            targets = frozenset(kernel.target for kernel in archive.kernels)
            return DeviceFacts(targets=targets, archived=binaries)
        return _of_bundles(read_bundles(mapped(path))) if head.startswith(MAGICS) else None


def _of_bundles(bundles: tuple[Bundle, ...], registered: int = -1) -> DeviceFacts:
    targets = frozenset(target for bundle in bundles for target in bundle.targets)
    return DeviceFacts(bundles=bundles, targets=targets, registered=registered)


def mapped(path: Path) -> Data:
    """Map a file; it is closed by the collector, as an error's traceback may still hold views of it."""
    with path.open("rb") as stream:
        return mmap.mmap(stream.fileno(), 0, access=mmap.ACCESS_READ)


def elf_facts(facts: ElfFacts, data: Data) -> DeviceFacts | None:
    """Read the device code of an ELF file."""
    if facts.machine == "EM_AMDGPU":
        notes = [data[offset : offset + size] for offset, size in facts.notes]
        found = frozenset(one.group(1).decode() for note in notes for one in _NOTE_TARGET.finditer(note))
        return DeviceFacts(targets=found)
    return _section_facts(facts.sections, data, ".hip_fatbin", ".hipFatBinSegment", ".rocm_kpack_ref")


def pe_facts(facts: PeFacts, data: Data) -> DeviceFacts | None:
    """Read the device code of a DLL or program of Windows."""
    # PE has room for eight characters
    return _section_facts(facts.sections, data, ".hip_fat", ".hipFatB", ".kpackrf")


def _section_facts(
    sections: Mapping[str, tuple[int, int]], data: Data, fatbin: str, wrappers: str, moved: str
) -> DeviceFacts | None:
    if moved in sections:  # by rocm-kpack, out of the library
        return DeviceFacts(split=True)
    if fatbin not in sections:
        return None
    start, size = sections[fatbin]
    section = memoryview(data)[start : start + size]
    if len(section) != size:
        raise BundleError(f"{fatbin} reaches beyond the end of the file")
    registered = sections[wrappers][1] // _WRAPPER_SIZE if wrappers in sections else -1
    return _of_bundles(read_bundles(section), registered)


def check(view: WheelView, expectation: Expectation | None, policy: Policy) -> Iterator[Finding]:
    """Compare a wheel's device code with the GPU targets it is built for.

    A target that no file covers is an error, one that only some files cover a note (libraries may drop
    kernels that a GPU cannot run), one that was not requested a warning.
    """
    device = {binary.member.name: binary.device for binary in view.binaries if binary.device}
    if gpu := device_target(view.name.distribution):
        found = _part(view, gpu, device)
    elif any(facts.split for facts in device.values()):
        found = _host(view, expectation, device)
    else:
        found = _whole(view, expectation, policy, device)
    yield from (view.finding(severity, CHECK, message, where) for severity, message, where in found)


def _part(view: WheelView, gpu: str, device: Mapping[str, DeviceFacts]) -> _Found:
    """Check a wheel of device code: it holds what its name says, and nothing else."""
    for member, facts in device.items():
        other = sorted(one for one in facts.targets if not covers(gpu, (processor(one),)))
        if facts.archived and other:
            yield "error", f"It holds code for {', '.join(other)}, not for {gpu}.", member
    kernels = any(covers(gpu, map(processor, facts.targets)) for facts in device.values())
    broken = any(one.member.name.endswith(kpack.SUFFIX) and one.problems for one in view.binaries)
    if _TARGET.fullmatch(gpu) and not broken and not kernels:
        yield "error", f"It holds no kernels for {gpu}.", ""


def _host(view: WheelView, expectation: Expectation | None, device: Mapping[str, DeviceFacts]) -> _Found:
    """Check a wheel whose device code was moved: its extras lead to all that is promised."""
    yield "note", "Device code was moved to wheels of its own (.kpack).", ""
    extras = view.metadata.provides_extra if view.metadata else ()
    for target in expectation.gpu_targets if expectation else ():
        if f"device-{target}" not in extras:
            yield "error", f"No extra device-{target} leads to the code for {target}.", ""
    for member, facts in device.items():
        if facts.bundles:
            yield "error", "Its device code is still here, and others' was moved.", member


def _whole(
    view: WheelView, expectation: Expectation | None, policy: Policy, device: Mapping[str, DeviceFacts]
) -> _Found:
    for member, facts in device.items():
        count = len(facts.bundles)
        if facts.registered > count:
            yield "error", f"{facts.registered} bundles are registered, {count} are there.", member
        if count and not facts.targets:
            yield "error", f"{count} bundles hold no device code.", member
    if expectation is None:
        return
    found = frozenset(target for facts in device.values() for target in facts.targets)
    wanted = expectation.gpu_targets
    if wanted and not found:
        if view.name.distribution in policy.device_code:
            yield "error", f"There is no device code; {', '.join(wanted)} are expected.", ""
        return
    yield from _targets(wanted, found, device, policy)


def _targets(
    wanted: Iterable[str], found: frozenset[str], device: Mapping[str, DeviceFacts], policy: Policy
) -> _Found:
    for target in wanted:
        if is_covered(target, found, policy):
            for member, facts in device.items():
                if facts.targets and not is_covered(target, facts.targets, policy):
                    yield "note", f"No device code for {target} in this file.", member
        else:
            partly = sorted(one for one in found if processor(one) == processor(target))
            only = f"; there is only {', '.join(partly)}" if partly else ""
            yield "error", f"No device code for {target}{only}.", ""
    if extra := sorted(target for target in found if not is_asked_for(target, wanted, policy)):
        yield "warning", f"Device code for {', '.join(extra)}, which was not requested.", ""


def processor(target: str) -> str:
    """Return a target without its features: ``gfx942`` of ``gfx942:xnack+``."""
    return target.partition(":")[0]


def features(target: str) -> frozenset[str]:
    """Return a target's features: ``xnack+`` of ``gfx942:xnack+``."""
    return frozenset(target.split(":")[1:])


def is_covered(target: str, found: Iterable[str], policy: Policy) -> bool:
    """Return whether code for `target` is among `found`, whatever mode the GPU is in.

    Code that does not name a feature runs in both of its modes; code for ``xnack+`` and code
    for ``xnack-`` together do too (clang's target ID documentation).
    """
    if PORTABLE in found:
        return True
    names = {
        processor(target),
        *(name for name, members in policy.generic.items() if processor(target) in members),
    }
    wanted = features(target)
    fitting = [features(one) for one in found if processor(one) in names]
    # Features that the target itself names are settled; code for the other mode does not count.
    left = [one - wanted for one in fitting if not {_opposite(feature) for feature in wanted} & one]
    return _covers_all_modes(left)


def _covers_all_modes(variants: list[frozenset[str]]) -> bool:
    if not variants or frozenset() in variants:
        return bool(variants)
    name = min(feature[:-1] for variant in variants for feature in variant)
    return all(
        _covers_all_modes([one - {name + sign} for one in variants if _opposite(name + sign) not in one])
        for sign in "+-"
    )


def _opposite(feature: str) -> str:
    return feature[:-1] + ("-" if feature.endswith("+") else "+")


def is_asked_for(found: str, wanted: Iterable[str], policy: Policy) -> bool:
    """Return whether code for `found` is of use where `wanted` is wanted."""
    if found == PORTABLE:
        return True
    names = {processor(found), *policy.generic.get(processor(found), ())}
    return any(
        processor(one) in names and not {_opposite(feature) for feature in features(one)} & features(found)
        for one in wanted
    )
