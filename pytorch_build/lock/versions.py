"""Versions of the wheels: local version suffixes, dev tags, wheel tags.

A wheel's version says what it runs on: ``2.10.0a0+rocm7.10.0a20251120``. Everything here
answers before anything is built, and answers in the normal form of PEP 440, so that it
equals the version in the wheel's file name.

Two facts about the scheme, which is the field's and stays: ``+rocm7…`` sorts above
``+rocm10…``, because PEP 440 compares ``rocm7`` and ``rocm10`` as words, and the git tags
of dev wheels sort by hash, not by date. Pick dev wheels by their full version.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from packaging.version import InvalidVersion, Version

from core.cli.options import RELEASE_TYPES
from core.errors import SourceError, UsageError, nearest

_GIT_TAGGED = frozenset({"dev", "dev-bkc"})
_GIT_TAG_LENGTH = 8
_COMMIT = re.compile(r"[0-9a-f]{8,40}", re.ASCII)
_PYTHON = re.compile(r"3\.([1-9][0-9]*)(?:\.[0-9]+(?:(?:a|b|rc)[0-9]+)?)?(t?)", re.ASCII)


@dataclass(frozen=True, kw_only=True)
class WheelTag:
    """The part of a wheel's tag that its Python decides (PEP 425)."""

    interpreter: str
    abi: str

    def __str__(self) -> str:
        return f"{self.interpreter}-{self.abi}"


def python_tag(version: str) -> WheelTag:
    """Return which wheels a Python version takes: 3.12, 3.12.4 -> cp312-cp312, 3.13t -> cp313-cp313t."""
    match = _PYTHON.fullmatch(version)
    if match is None:
        raise UsageError(
            f"{version!r} is not a Python version.", hint="Write 3.12, or 3.13t for free-threaded Python."
        )
    interpreter = f"cp3{match[1]}"
    return WheelTag(interpreter=interpreter, abi=interpreter + match[2])


def version_suffix(rocm_version: str) -> str:
    """Make the local version suffix of wheels for a ROCm version.

    The scheme of the field's ``determine_version.py``: ``rocm``, or ``devrocm`` for
    development builds, then the ROCm version (without an epoch) with its own ``+`` replaced. Given
    in the normal form, so ``7.10.0.dev0+efed3c`` becomes ``+devrocm7.10.0.dev0.efed3c``.
    """
    parsed = _parse(rocm_version)
    if parsed is None or parsed.epoch:
        raise UsageError(
            f"{rocm_version!r} is not a ROCm version.",
            hint="Write it like 7.10.0a20251120 or 7.10.0.dev0+efed3c.",
        )
    prefix = "devrocm" if "dev" in str(parsed) else "rocm"
    # A digits-only label loses its leading zeros here, as it will in the wheel's name.
    return str(Version(f"0+{prefix}{str(parsed).replace('+', '-')}"))[1:]


def cpu_suffix(label: str = "") -> str:
    """Make the local version suffix of wheels without ROCm: ``+cpu``, or ``+cpu.{label}``."""
    if not label:
        return "+cpu"
    if not re.fullmatch(r"[a-z0-9]+(?:\.[a-z0-9]+)*", label):
        raise UsageError(f"{label!r} is not a local version label.", hint="Write it like sample or my.fork.")
    return str(Version(f"0+cpu.{label}"))[1:]


def edited(suffix: str, digest: str) -> str:
    """Say in a suffix that the tree has edits: ``+cpu.dirty.1f3a9c20``, which installers take for newer."""
    return f"{suffix}.dirty.{digest[:_GIT_TAG_LENGTH]}" if digest else suffix


def without_edits(text: str) -> str:
    """Take what `edited` adds out of a setting, in which each edit would be another configuration."""
    return re.sub(r"\.dirty\.[0-9a-f]{1,8}(?![0-9a-z])", "", text)


def wheel_version(
    base: str, suffix: str, *, release_type: str, commit: str, tagged: bool = False, torch: str = ""
) -> str:
    """Put a wheel's full version together."""
    if release_type not in RELEASE_TYPES:
        raise UsageError(f"Unknown release type {release_type!r}.", hint=nearest(release_type, RELEASE_TYPES))
    parsed = _parse(base)
    if parsed is None or parsed.local:
        raise SourceError(
            f"{base!r} is not a base version for a wheel.",
            hint="Look at the project's version.txt at this commit.",
        )
    git_tag = ""
    if tagged or release_type in _GIT_TAGGED:
        if not _COMMIT.fullmatch(commit):
            raise SourceError(f"{commit!r} is not a commit, so no git tag can be made from it.")
        git_tag = f"git{commit[:_GIT_TAG_LENGTH]}."
    of_torch = _parse(torch) or parsed
    other = (of_torch.major, of_torch.minor) != (parsed.major, parsed.minor)
    label = f"torch{of_torch.major}.{of_torch.minor}." if other else ""
    local = f"{git_tag}{label}{suffix.removeprefix('+')}"
    whole = _parse(f"{parsed}+{local}") if suffix.startswith("+") else None
    if whole is None:
        raise UsageError(
            f"{suffix!r} is not a version suffix.", hint="A suffix looks like +rocm7.10.0 or +cpu."
        )
    return str(whole)


def _parse(version: str) -> Version | None:
    try:
        return Version(version)
    except InvalidVersion:
        return None
