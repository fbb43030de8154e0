"""What auditwheel says of a wheel: the policies that it satisfies, and what it needs of the machine.

Policies are those of PEP 600, in auditwheel's data: a policy is the higher, the older the machines on
which its wheels run. ROCm's libraries and torch's come from other wheels or are loaded first, and
do not count.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING

from core.archive import zip_members
from core.errors import MissingInputError, WheelError
from core.wheel.wheel_record import require_listing
from pytorch_build.check.policy import load_policy
from pytorch_build.standalone.fat.binaries import read_members

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from pytorch_build.check.policy import Policy
    from pytorch_build.standalone.fat.binaries import Binary


@dataclass(frozen=True, kw_only=True)
class Portability:
    """What a wheel is worth on other machines."""

    satisfied: tuple[str, ...]
    reachable: tuple[str, ...]
    external: Mapping[str, Path | None]
    needs: Mapping[str, Binary]

    @property
    def portable(self) -> bool:
        """Whether it needs nothing that manylinux does not promise."""
        return self.satisfied[0].startswith("manylinux")


def excluded(needs: Mapping[str, Binary], policy: Policy) -> frozenset[str]:
    """List patterns of the libraries that do not count: other wheels' own, and those inside."""
    inside = {PurePosixPath(path).name for path in needs} | {one.name for one in needs.values() if one.name}
    others = (pattern for provider in policy.providers.values() for pattern in provider.brings)
    return frozenset({*inside, *others, "libpython3*.so*"})


def analyse(wheel: Path) -> Portability:
    """Analyse a wheel for Linux. Symbols, instruction sets and libraries all count."""
    try:
        from auditwheel.error import AuditwheelError
        from auditwheel.wheel_abi import analyze_wheel_abi
    except ImportError as problem:
        raise MissingInputError(
            "auditwheel, which knows manylinux' policies, is not installed.",
            hint="It is part of the tool on Linux: pip install -r requirements.txt.",
        ) from problem
    with zip_members.opened(wheel) as archive:
        infos = [info for info, _ in require_listing(wheel, archive).files]
    needs = read_members(wheel, infos)
    skip = excluded(needs, load_policy())
    logging.getLogger("auditwheel").setLevel(logging.ERROR)
    try:
        found = [
            analyze_wheel_abi(
                None, None, wheel.resolve(), skip, disable_isa_ext_check=False, allow_graft=graft
            )
            for graft in (False, True)
        ]
    except AuditwheelError as problem:
        raise WheelError(f"auditwheel cannot judge {wheel.name}: {problem}.") from problem
    as_it_is, grafted = found
    best = grafted.overall_policy
    return Portability(
        satisfied=_tags(as_it_is.overall_policy.name, as_it_is.overall_policy.aliases),
        reachable=_tags(best.name, best.aliases),
        external=dict(sorted(grafted.external_refs[best.name].libs.items())),
        needs=needs,
    )


def _tags(name: str, aliases: Iterable[str]) -> tuple[str, ...]:
    return (name, *aliases)


def platform_text(tags: Sequence[str]) -> str:
    """Join platform tags as a wheel's file name does: sorted, with dots (PEP 425)."""
    return ".".join(sorted(tags))
