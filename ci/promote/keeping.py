"""A keep-list: the gfx targets that a release has device code for, of those that its candidate has.

Groups of targets (``gfx11``, ``gfx12-0``) are never named: their packages stay wherever a kept target is in
them. Everything here is pure; `ci.promote.edits` applies it to the files of packages.
"""

from __future__ import annotations

import ast
import re
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from core.errors import MissingInputError, UsageError, WheelError, nearest
from core.families import families
from rocm_packaging.packages.layouts import covers, device_host, device_target

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from ci.promote.facts import Facts

_Targets = list[str] | dict[str, list[str]]

_EXTRA = re.compile(r"""extra *== *["']device-(gfx[0-9a-z_-]+)["']""")
_DEFAULT_EXTRA = re.compile(r"""extra *== *["']device["']""")
_SECTION = re.compile(r"\[device-(?P<gpu>gfx[0-9a-z_-]+)\s*(?::.*)?\]")
_DEFAULT_SECTION = re.compile(r"\[device\s*(?::.*)?\]")
# One assignment a list where we wrote the file, one call a target where TheRock's builder did.
_LIST = re.compile(r"(?P<name>\w+_TARGET_FAMILIES|FAMILY_TARGETS) = (?P<value>[\[{].*[\]}])")
_APPEND = re.compile(
    r"(?P<name>\w+_TARGET_FAMILIES)\.append\((?P<quote>['\"])(?P<gpu>gfx[^'\"]+)(?P=quote)\)"
)
_DEFAULT = re.compile(r"DEFAULT_TARGET_FAMILY = (?P<quote>['\"])(?P<gpu>gfx[^'\"]+)(?P=quote)")


@dataclass(frozen=True, kw_only=True)
class Kept:
    """The gfx targets that are kept."""

    targets: tuple[str, ...]

    def __post_init__(self) -> None:
        known = _targets()
        for one in self.targets:
            if one not in known:
                raise UsageError(
                    f"--gpu-targets: {one} is no gfx target. {nearest(one, known)}",
                    hint="Name targets alone: packages of their groups, like gfx12-0, are kept with them.",
                )
        if not self.targets:
            raise UsageError("--gpu-targets names no gfx target.")

    def gpu(self, name: str) -> bool:
        """Whether a target, with features or without, or a group of targets is kept."""
        return covers(name.partition(":")[0], self.targets)

    def package(self, distribution: str) -> bool:
        """Whether a distribution is kept, by its normalized name: all that are no device packages are."""
        gpu = device_target(distribution)
        return not gpu or self.gpu(gpu)

    def requirement(self, text: str) -> bool:
        """Whether a requirement is kept: neither on a package that is left out, nor of its extra."""
        extra = _EXTRA.search(text)
        return self.package(canonicalize_name(Requirement(text).name)) and (not extra or self.gpu(extra[1]))


def kept_facts(facts: Facts, kept: Kept) -> tuple[Facts, tuple[str, ...]]:
    """Leave out the device packages that are not kept."""
    named: dict[str, list[str]] = {}
    for wheel in facts.wheels:
        named.setdefault(wheel.cell.family, []).append(wheel.file.distribution)
    _require_kept(facts.set_name, named, kept)
    stay = [one for one in facts.wheels if kept.package(one.file.distribution)]
    rest = [replace(one, requires=tuple(filter(kept.requirement, one.requires))) for one in stay]
    left = {one.file.key for one in facts.wheels} - {one.file.key for one in stay}
    return replace(facts, wheels=tuple(rest)), tuple(sorted(left))


def _require_kept(set_name: str, named: Mapping[str, Iterable[str]], kept: Kept) -> None:
    """Refuse a list that the set does not have, of ROCm's device packages or of a host wheel's."""
    every: dict[str, set[str]] = {}
    for family, names in sorted(named.items()):
        found = {name: device_target(name) for name in names if device_target(name) in _targets()}
        if not any(map(kept.gpu, found.values())):
            has = ", ".join(sorted(set(found.values()))) or "no target"
            raise MissingInputError(
                f"{set_name}: no device code of {family} would be left; it has device packages of {has}.",
                hint="Keep one of these with --gpu-targets, or leave the family out with --gpu-family.",
            )
        for name, gpu in found.items():
            every.setdefault(device_host(name) or "ROCm", set()).add(gpu)
    for of, there in sorted(every.items()):
        absent = [one for one in kept.targets if one not in there]
        if absent:
            raise MissingInputError(
                f"{set_name} has no device packages of {of} for {', '.join(absent)}.",
                hint=f"It has those of {', '.join(sorted(there))}: keep some of these, or stage the others.",
            )


def metadata_lines(lines: Sequence[str], kept: Kept) -> Sequence[str]:
    """Drop the extras and requirements that are not kept from the fields of core metadata.

    What the extra ``device`` requires, one target's package, becomes that of the first target that is kept.
    """
    found = []
    for line in lines:
        name, _, value = line.partition(":")
        value = value.strip()
        if name.lower() == "provides-extra" and value.startswith("device-gfx"):
            found += [line] if kept.gpu(value.removeprefix("device-")) else []
        elif name.lower() != "requires-dist" or kept.requirement(value):
            found.append(line)
        elif _DEFAULT_EXTRA.search(value):
            found.append(_on_another(line, value, lines, kept))
    return found


def requires_lines(lines: Sequence[str], kept: Kept) -> Sequence[str]:
    """Do the same to the lines of a ``requires.txt``, whose sections are the extras."""
    found, dropped, default = [], False, False
    for line in lines:
        if line.startswith("["):
            section = _SECTION.fullmatch(line.strip())
            dropped = section is not None and not kept.gpu(section["gpu"])
            default = _DEFAULT_SECTION.fullmatch(line.strip()) is not None
        stays = not line.strip() or line.startswith(("[", "#")) or kept.requirement(line)
        if dropped or not (stays or default):
            continue
        found.append(line if stays else _on_another(line, line, lines, kept))
    return found


def _on_another(line: str, requirement: str, lines: Sequence[str], kept: Kept) -> str:
    """Let the requirement of the extra ``device`` be on a kept target's package that the file names, too."""
    old = canonicalize_name(Requirement(requirement).name)
    kind = old.removesuffix(device_target(old))
    others = re.findall(rf"{re.escape(kind)}(gfx[0-9a-z]+)", "\n".join(lines))
    new = next((gpu for gpu in others if gpu in kept.targets), None)
    if new is None:
        raise WheelError(f"It names no {kind} of {', '.join(kept.targets)}.")
    return line.replace(old, f"{kind}{new}", 1)


def dist_info(content: bytes, kept: Kept) -> bytes:
    """Drop the targets that are not kept from a ``_dist_info.py``; the default becomes one that is."""
    offered: dict[str, list[str]] = {}
    lines = []
    for line in content.decode().split("\n"):
        if found := _APPEND.fullmatch(line):
            if not kept.gpu(found["gpu"]):
                continue
            offered.setdefault(found["name"], []).append(found["gpu"])
        elif found := _LIST.fullmatch(line):
            value = _without(_literal(found["value"]), kept)
            offered[found["name"]] = list(value)
            line = f"{found['name']} = {value!r}"  # noqa: PLW2901 - the line as it is now
        lines.append(line)
    names = offered.get("AVAILABLE_TARGET_FAMILIES", [])
    if not names:
        raise WheelError("It lists no gfx target that is kept.")
    only = [of for key, of in offered.items() if key.startswith(("LINUX_", "WINDOWS_")) and of]
    default = next((one for one in names if all(one in of for of in only)), names[0])
    return "\n".join(_with_default(line, default, kept) for line in lines).encode()


def _literal(text: str) -> _Targets:
    try:
        value: _Targets = ast.literal_eval(text)
    except (ValueError, SyntaxError) as problem:
        raise WheelError(f"It lists gfx targets by a program, not by name: {text}.") from problem
    return value


def _without(value: _Targets, kept: Kept) -> _Targets:
    """Leave what is not kept out of a list of targets, or of the lists of families."""
    if isinstance(value, list):
        return [one for one in value if kept.gpu(one)]
    rest = {name: [one for one in of if kept.gpu(one)] for name, of in value.items()}
    return {name: of for name, of in rest.items() if of}


def _with_default(line: str, default: str, kept: Kept) -> str:
    found = _DEFAULT.fullmatch(line)
    return f"DEFAULT_TARGET_FAMILY = {default!r}" if found and not kept.gpu(found["gpu"]) else line


def _targets() -> frozenset[str]:
    """Return every gfx target."""
    return frozenset(target for one in families().values() for target in one.targets)
