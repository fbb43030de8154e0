"""GPU targets of device code: read from sections of ELF and PE files, compared with what a wheel promises."""

from __future__ import annotations

import mmap
import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING

from core.binaries import elf
from pytorch_build.check import DeviceFacts, Finding, WheelView, error, note, warning
from pytorch_build.check.bundles import COMPRESSED_MAGIC, PLAIN_MAGIC, Bundle, BundleError, read_bundles
from rocm_packaging.packages import kpack
from rocm_packaging.packages.layouts import covers, device_target

if TYPE_CHECKING:
    from core.binaries.elf import ElfFacts
    from core.binaries.pe import PeFacts
    from pytorch_build.check.bundles import Buffer

MAGICS = (PLAIN_MAGIC, COMPRESSED_MAGIC)
_WRAPPER_SIZE = 24
# A code object's metadata note names its target in full (AMDGPU backend guide, code object V3 and up).
_NOTE_TARGET = re.compile(rb"amdgcn-amd-amdhsa--(gfx[0-9a-z-]+(?::[a-z]+[+-])*)")
_TARGET = re.compile(r"gfx[0-9a-f]{3,4}")
# SPIR-V, compiled for whatever GPU it meets.
PORTABLE = "amdgcnspirv"
# One code object for several processors (AMDGPU backend guide, generic processors).
GENERIC_PROCESSORS: Mapping[str, Collection[str]] = MappingProxyType(
    {
        "gfx9-generic": ("gfx900", "gfx902", "gfx904", "gfx906", "gfx909", "gfx90c"),
        "gfx9-4-generic": ("gfx940", "gfx941", "gfx942", "gfx950"),
        "gfx10-1-generic": ("gfx1010", "gfx1011", "gfx1012", "gfx1013"),
        "gfx10-3-generic": tuple(f"gfx103{number}" for number in range(7)),
        "gfx11-generic": tuple(
            f"gfx11{suffix}" for suffix in ("00", "01", "02", "03", "50", "51", "52", "53")
        ),
        "gfx12-generic": ("gfx1200", "gfx1201"),
    }
)


def file_facts(path: Path) -> DeviceFacts | None:
    """Return the device code of any file: a library, a code object, a bare bundle, an archive; or None."""
    with path.open("rb") as stream:
        head = stream.read(len(PLAIN_MAGIC))
        if head.startswith(elf.MAGIC):
            facts = elf.read_all_facts(stream, path.name)
            return elf_facts(facts, map_file(path)) if facts else None
        if head.startswith(kpack.MAGIC):
            archive = kpack.read(stream)
            binaries = frozenset(kernel.binary.rpartition("#")[0] for kernel in archive.kernels)
            targets = frozenset(kernel.target for kernel in archive.kernels)
            return DeviceFacts(
                targets=targets,
                archived_binaries=binaries,
            )
    if head.startswith(MAGICS):
        return _facts_of_bundles(read_bundles(map_file(path)))
    return None


def _facts_of_bundles(bundles: tuple[Bundle, ...], registered_count: int | None = None) -> DeviceFacts:
    """Return these bundles as a file's device code, with the targets of all of them."""
    targets: set[str] = set()
    for bundle in bundles:
        targets |= bundle.targets
    return DeviceFacts(
        bundles=bundles,
        targets=frozenset(targets),
        registered_count=registered_count,
    )


def map_file(path: Path) -> Buffer:
    """Return a file's bytes, mapped into memory until nothing refers to them any more."""
    with path.open("rb") as stream:
        return mmap.mmap(stream.fileno(), 0, access=mmap.ACCESS_READ)


def elf_facts(facts: ElfFacts, data: Buffer) -> DeviceFacts | None:
    """Return the device code of an ELF file."""
    if facts.machine != "EM_AMDGPU":
        return _section_facts(facts.sections, data, ".hip_fatbin", ".hipFatBinSegment", ".rocm_kpack_ref")
    targets: set[str] = set()
    for offset, size in facts.notes:
        for match in _NOTE_TARGET.finditer(data[offset : offset + size]):
            targets.add(match[1].decode())
    return DeviceFacts(targets=frozenset(targets))


def pe_facts(facts: PeFacts, data: Buffer) -> DeviceFacts | None:
    """Return the device code of a DLL or program of Windows."""
    # PE has room for eight characters.
    return _section_facts(facts.sections, data, ".hip_fat", ".hipFatB", ".kpackrf")


def _section_facts(
    sections: Mapping[str, tuple[int, int]],
    data: Buffer,
    bundles_section: str,
    wrappers_section: str,
    reference_section: str,
) -> DeviceFacts | None:
    """Return the device code in a library's sections, whose names differ by platform; None without any."""
    if reference_section in sections:  # rocm-kpack moved the code out of the library
        return DeviceFacts(is_split=True)
    if bundles_section not in sections:
        return None

    start, size = sections[bundles_section]
    section = memoryview(data)[start : start + size]
    if len(section) != size:
        raise BundleError(f"{bundles_section} reaches beyond the end of the file")
    registered_count = None
    if wrappers_section in sections:
        _start, wrappers_size = sections[wrappers_section]
        registered_count = wrappers_size // _WRAPPER_SIZE
    return _facts_of_bundles(read_bundles(section), registered_count)


def check(view: WheelView) -> Iterator[Finding]:
    """Yield findings where a wheel's device code differs from the GPU targets it is built for.

    A target that no file covers is an error, one that only some files cover a note (libraries may drop
    kernels that a GPU cannot run), one that was not requested a warning.
    """
    facts_by_member: dict[str, DeviceFacts] = {}
    for binary in view.binaries:
        if binary.device is not None:
            facts_by_member[binary.name] = binary.device

    gpu = device_target(view.name.distribution)
    if gpu:
        yield from _check_device_package(view, gpu, facts_by_member)
    elif any(facts.is_split for facts in facts_by_member.values()):
        yield from _check_host(view, facts_by_member)
    else:
        yield from _check_bundles(facts_by_member)
        if view.expectation is not None and view.expectation.gpu_targets is not None:
            yield from _compare_targets(view, view.expectation.gpu_targets, facts_by_member)


def _check_device_package(
    view: WheelView,
    gpu: str,
    facts_by_member: Mapping[str, DeviceFacts],
) -> Iterator[Finding]:
    """Yield errors for a device wheel that holds code for other GPUs than its name says, or none."""
    has_kernels = False
    for member, facts in facts_by_member.items():
        processors = [processor(target) for target in facts.targets]
        has_kernels = has_kernels or covers(gpu, processors)
        foreign_targets = [target for target in facts.targets if not covers(gpu, (processor(target),))]
        if facts.archived_binaries and foreign_targets:
            yield error(f"It holds code for {', '.join(sorted(foreign_targets))}, not for {gpu}.", member)

    is_unreadable = False
    for binary in view.binaries:
        if binary.name.endswith(kpack.SUFFIX) and binary.problems:
            is_unreadable = True  # which is an error of its own
    if _TARGET.fullmatch(gpu) and not is_unreadable and not has_kernels:
        yield error(f"It holds no kernels for {gpu}.")


def _check_host(view: WheelView, facts_by_member: Mapping[str, DeviceFacts]) -> Iterator[Finding]:
    """Yield findings on a wheel whose device code was moved out: an extra must lead to each target."""
    yield note("Its device code was moved to wheels of its own (.kpack).")
    extras = view.metadata.provides_extra if view.metadata else ()
    targets = view.expectation.gpu_targets if view.expectation else None
    for target in targets or ():
        if f"device-{target}" not in extras:
            yield error(f"No extra device-{target} leads to the code for {target}.")
    for member, facts in facts_by_member.items():
        if facts.bundles:
            yield error("It still holds device code, while that of other files was moved.", member)


def _check_bundles(facts_by_member: Mapping[str, DeviceFacts]) -> Iterator[Finding]:
    """Yield errors for files that register more bundles than they hold, or hold bundles without code."""
    for member, facts in facts_by_member.items():
        count = len(facts.bundles)
        if facts.registered_count is not None and facts.registered_count > count:
            yield error(f"It registers {facts.registered_count} bundles and holds {count}.", member)
        if count and not facts.targets:
            yield error(f"Its {count} bundles hold no device code.", member)


def _compare_targets(
    view: WheelView,
    requested_targets: Sequence[str],
    facts_by_member: Mapping[str, DeviceFacts],
) -> Iterator[Finding]:
    """Yield findings on requested targets without device code, and on code for other targets."""
    code_targets: set[str] = set()
    for facts in facts_by_member.values():
        code_targets |= facts.targets
    if requested_targets and not code_targets:
        if view.name.distribution in view.options.policy.device_code:
            yield error(f"There is no device code; {', '.join(requested_targets)} are expected.")
        return

    for target in requested_targets:
        if not is_covered(target, code_targets):
            message = f"There is no device code for {target}"
            variants = [variant for variant in code_targets if processor(variant) == processor(target)]
            if variants:
                message += f", only for {', '.join(sorted(variants))}"
            yield error(f"{message}.")
            continue
        for member, facts in facts_by_member.items():
            if facts.targets and not is_covered(target, facts.targets):
                yield note(f"This file has no device code for {target}.", member)

    unrequested = [target for target in code_targets if not is_requested(target, requested_targets)]
    if unrequested:
        yield warning(f"It holds device code for {', '.join(sorted(unrequested))}, which was not requested.")


def processor(target: str) -> str:
    """Return a gfx target without its features: ``gfx942`` of ``gfx942:xnack+``."""
    return target.partition(":")[0]


def features(target: str) -> frozenset[str]:
    """Return a gfx target's features: ``xnack+`` of ``gfx942:xnack+``."""
    return frozenset(target.split(":")[1:])


def is_covered(target: str, code_targets: Collection[str]) -> bool:
    """Return whether a GPU target runs some of the code for other targets, in each of its modes.

    Code that does not name a feature runs in both of its modes; code for ``xnack+`` and code
    for ``xnack-`` together do too (clang's target ID documentation).
    """
    if PORTABLE in code_targets:
        return True

    processors = {processor(target)}
    for generic_processor, members in GENERIC_PROCESSORS.items():
        if processor(target) in members:
            processors.add(generic_processor)

    # Features that the target itself names are settled; code for the other mode does not count.
    settled = features(target)
    variants: list[frozenset[str]] = []
    for code_target in code_targets:
        variant = features(code_target)
        if processor(code_target) in processors and not _contradicts(variant, settled):
            variants.append(variant - settled)
    return _covers_all_modes(variants)


def _covers_all_modes(variants: Sequence[frozenset[str]]) -> bool:
    """Return whether code with these sets of features serves a GPU in each of its modes."""
    if not variants or frozenset() in variants:
        return bool(variants)
    feature_name = min(feature[:-1] for variant in variants for feature in variant)
    for sign in "+-":
        mode = frozenset({feature_name + sign})
        fitting_variants = [variant - mode for variant in variants if not _contradicts(variant, mode)]
        if not _covers_all_modes(fitting_variants):
            return False
    return True


def _contradicts(variant: frozenset[str], mode: frozenset[str]) -> bool:
    """Return whether a variant of code needs a feature the other way than a mode has it."""
    opposites = {feature[:-1] + ("-" if feature.endswith("+") else "+") for feature in mode}
    return not opposites.isdisjoint(variant)


def is_requested(code_target: str, requested_targets: Iterable[str]) -> bool:
    """Return whether code for a target is of use on one of the requested targets."""
    if code_target == PORTABLE:
        return True
    processors = {processor(code_target), *GENERIC_PROCESSORS.get(processor(code_target), ())}
    for requested_target in requested_targets:
        is_contradicted = _contradicts(features(code_target), features(requested_target))
        if processor(requested_target) in processors and not is_contradicted:
            return True
    return False
