"""Device code for a user's environment: which device packages are installed beside what was requested.

`pip install torch` of split packages installs, imports, and fails at its first kernel. So what is requested
without an extra ``device-…`` comes with the device packages of this machine's GPUs, or of the GPU family.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

from packaging.utils import canonicalize_name
from packaging.version import Version

from core.errors import MissingInputError
from core.families import detect, families, gpu_targets, parents
from core.parallel import each
from core.wheel.distributions import is_ours
from pytorch_build.test.installation import PREFIXES
from rocm_packaging.origin import require_devices
from rocm_packaging.packages.layouts import (
    LIBRARIES,
    covers,
    device_package,
    device_target,
    is_rocm,
    layout_of,
    sdk_target,
    tested_targets,
)

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from packaging.requirements import Requirement

    from core.packages import Offer
    from core.packages.sources import PackageSource

_EXTRA = "device-"


@dataclass(frozen=True, kw_only=True)
class Devices:
    """The GPUs that packages are installed for."""

    family: str = ""
    targets: tuple[str, ...] = ()
    exact: bool = False

    def sdk_family(self, offers: Iterable[Offer]) -> str:
        """Return the target of the `rocm` sdist: a GPU of split packages, else a family; "" for none."""
        held = [one for one in offers if is_rocm(one.distribution)]
        newest = max((Version(one.version) for one in held if one.distribution == "rocm"), default=None)
        names = [one.distribution for one in held if newest in {None, Version(one.version)}]
        if layout_of(names, where=f"ROCm {newest or ''} on offer") == "split":
            there = [one for one in self.targets if device_package(one) in names]
            if not there:
                require_devices(self.targets, names, where="What is on offer", version=str(newest))
            return sdk_target("split", self.family, there)
        known = self.family.split(";")
        return next((one for one in known if one and set(gpu_targets(one)) & set(self.targets)), known[0])

    def packages(self, chosen: Mapping[str, str], offers: Sequence[Offer]) -> tuple[str, ...]:
        """Return the requirements of the device packages that chosen distributions lack."""
        found: list[str] = []
        for name, prefix in PREFIXES.items():
            version = chosen.get(name, "")
            held = [
                one
                for one in offers
                if version
                and one.distribution.startswith(prefix)
                and Version(one.version) == Version(version)
            ]
            there = {device_target(one.distribution) for one in held}
            absent = [one for one in self.targets if one not in there]
            if held and absent and (self.exact or len(absent) == len(self.targets)):
                raise MissingInputError(
                    f"There is no {prefix}{absent[0]} {version}, without which {name} fails at its first "
                    f"kernel; there is {', '.join(sorted(one.distribution for one in held))}.",
                    hint="Name targets that there are: --packages "
                    f"'{name if name != LIBRARIES else 'rocm'}[device-{min(there)}]'.",
                )
            found += [
                f"{one.distribution}=={one.version}"
                for one in held
                if covers(device_target(one.distribution), self.targets) and one.distribution not in chosen
            ]
        return tuple(sorted(set(found)))


def devices_for(requirements: Sequence[Requirement], gpu_family: str, *, here: bool = True) -> Devices:
    """Decide for which GPUs packages are installed: those that are named, this machine's, or the family's."""
    members = ";".join(one for one in re.split(r"[;,]\s*", gpu_family) if one in families())
    extras = [word for one in requirements for word in one.extras]
    names = [canonicalize_name(one.name) for one in requirements]
    words = [*extras, *(f"{_EXTRA}{gpu}" for name in names if (gpu := device_target(name)))]
    gpus = detect() if here and "device-all" not in words else ()
    chosen = (word.removeprefix(_EXTRA) for word in words if word.startswith(_EXTRA))
    if named := tuple(sorted(gpu for gpu in chosen if gpu in families())):
        return Devices(family=members, targets=named, exact=True)
    targets = tested_targets(members, gpus) if members else gpus
    return Devices(family=members, targets=targets, exact=bool(set(targets) & set(gpus)))


def known_offers(
    source: PackageSource, requirements: Sequence[Requirement], devices: Devices
) -> tuple[Offer, ...]:
    """List what a source offers; of an index, which lists nothing by itself, what is requested."""
    if not source.index_urls:
        return source.listed
    families = devices.family.split(";") if devices.family else ()
    names = {canonicalize_name(one.name) for one in requirements} | {"rocm", LIBRARIES}
    names |= {f"{LIBRARIES}-{canonicalize_name(one)}" for one in families}
    gpus = {gpu for one in devices.targets for gpu in (one, *parents(one))}
    names |= {f"{prefix}{gpu}" for prefix in PREFIXES.values() for gpu in gpus}
    found = each(source.offers, sorted(name for name in names if is_ours(name)))
    return tuple(dict.fromkeys(one for offers in found for one in offers))
