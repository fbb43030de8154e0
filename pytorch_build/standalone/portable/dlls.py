"""Which DLLs a wheel for Windows needs, and whether anything brings them; by file inspection alone."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import PurePosixPath
from typing import TYPE_CHECKING

from core.archive import zip_members
from core.errors import CheckError
from core.wheel.wheel_record import require_listing
from pytorch_build.check import windows
from pytorch_build.check.policy import load_policy
from pytorch_build.standalone.fat.binaries import read_members
from pytorch_build.standalone.fat.table import matches

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from pytorch_build.standalone.fat.binaries import Binary

_PROMISED = {"system", "redistributable", "python"}


@dataclass(frozen=True, kw_only=True)
class DllNeeds:
    """Where a wheel's DLLs come from: name, in small letters -> who in the wheel needs it."""

    inside: Mapping[str, tuple[str, ...]]
    promised: Mapping[str, tuple[str, ...]]
    others: Mapping[str, tuple[str, ...]]
    missing: Mapping[str, tuple[str, ...]]


def analyse_dlls(wheel: Path) -> DllNeeds:
    """Analyse a wheel for Windows."""
    with zip_members.opened(wheel) as archive:
        infos = [info for info, _ in require_listing(wheel, archive).files]
    return sort_needs(read_members(wheel, infos))


def sort_needs(binaries: Mapping[str, Binary]) -> DllNeeds:
    """Sort the needs of a wheel's files by where they are met."""
    policy = load_policy()
    own = {PurePosixPath(path).name.lower() for path in binaries}
    others = tuple(pattern for provider in policy.providers.values() for pattern in provider.brings)
    sorted_: dict[str, dict[str, list[str]]] = {"inside": {}, "promised": {}, "others": {}, "missing": {}}
    for path, binary in sorted(binaries.items()):
        for name in binary.needed:
            where = (
                "inside"
                if name.lower() in own
                else "promised"
                if windows.origin(name, policy.windows) in _PROMISED
                else "others"
                if matches(name, others)
                else "missing"
            )
            sorted_[where].setdefault(name.lower(), []).append(path)
    return DllNeeds(
        **{where: {name: tuple(by) for name, by in sorted(found.items())} for where, found in sorted_.items()}
    )


def require_brought(wheel: Path, needs: DllNeeds) -> None:
    """Refuse a wheel that needs DLLs which nothing brings."""
    if needs.missing:
        listed = ", ".join(f"{name} (for {', '.join(by[:3])})" for name, by in needs.missing.items())
        raise CheckError(
            f"{wheel.name} needs DLLs that nothing brings: {listed}.",
            hint="Copy them beside the DLLs that need them before the wheel is made.",
        )
