"""The GPUs that packages are installed for, and the packages with their device code.

`pip install torch` of split packages installs, imports, and fails at its first kernel. So what is requested
without an extra ``device-…`` comes with the device packages of this machine's GPUs, or of the GPU family.
"""

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from packaging.version import Version

from core.errors import MissingInputError
from core.families import detect, families, gpu_targets, parents
from core.packages.candidates import Candidate
from core.packages.package_source import PackageSource
from core.parallel import map_in_threads
from core.wheel.distributions import is_ours
from pytorch_build.test.installation import device_prefixes
from rocm_packaging.origin import require_devices
from rocm_packaging.packages import layouts

_EXTRA_PREFIX = "device-"
_EXTRA_OF_ALL = "device-all"


@dataclass(frozen=True, kw_only=True)
class Devices:
    """The GPUs that packages are installed for.

    Attributes:
        family: The GPU families, joined by ``;``; "" for none.
        targets: Their gfx targets.
        exact: Whether each of the targets needs its device code, as it is in this machine or was named.
    """

    family: str = ""
    targets: tuple[str, ...] = ()
    exact: bool = False

    def sdk_family(self, candidates: Iterable[Candidate]) -> str:
        """Return the target of the `rocm` sdist: a GPU of split packages, else a family; "" for none."""
        version, names = _newest_rocm(candidates)
        where = f"ROCm {version or ''} on offer"
        if layouts.layout_of(names, where=where) == "split":
            targets = [target for target in self.targets if layouts.device_package(target) in names]
            if not targets:
                require_devices(self.targets, names, where="What is on offer", version=str(version))
            return layouts.sdk_target("split", self.family, targets)

        family_names = self.family.split(";")
        for name in family_names:
            if name and not set(gpu_targets(name)).isdisjoint(self.targets):
                return name
        return family_names[0]

    def packages(
        self,
        chosen_versions: Mapping[str, str],
        candidates: Sequence[Candidate],
    ) -> tuple[str, ...]:
        """Return the requirements of the device packages that chosen distributions lack."""
        requirements: set[str] = set()
        for host_distribution, device_prefix in device_prefixes().items():
            if host_distribution not in chosen_versions:
                continue
            version = chosen_versions[host_distribution]
            device_packages = [
                candidate
                for candidate in candidates
                if candidate.distribution.startswith(device_prefix)
                and Version(candidate.version) == Version(version)
            ]
            if not device_packages:
                # A fat wheel has its device code itself.
                continue

            self._require_targets(host_distribution, device_prefix, version, device_packages)
            for package in device_packages:
                is_needed = layouts.covers(layouts.device_target(package.distribution), self.targets)
                if is_needed and package.distribution not in chosen_versions:
                    requirements.add(f"{package.distribution}=={package.version}")
        return tuple(sorted(requirements))

    def _require_targets(
        self,
        host_distribution: str,
        device_prefix: str,
        version: str,
        device_packages: Sequence[Candidate],
    ) -> None:
        """Require device packages of the targets: of each that must have its own, else of any."""
        names = sorted(package.distribution for package in device_packages)
        available_targets = {layouts.device_target(name) for name in names}
        missing_targets = [target for target in self.targets if target not in available_targets]
        if not missing_targets:
            return
        if not self.exact and len(missing_targets) < len(self.targets):
            return
        requested_name = "rocm" if host_distribution == layouts.LIBRARIES else host_distribution
        raise MissingInputError(
            f"There is no {device_prefix}{missing_targets[0]} {version}, without which {host_distribution} "
            f"fails at its first kernel; there is {', '.join(names)}.",
            hint="Name targets that there are: --packages "
            f"'{requested_name}[{_EXTRA_PREFIX}{min(available_targets)}]'.",
        )


def _newest_rocm(candidates: Iterable[Candidate]) -> tuple[Version | None, set[str]]:
    """Return the newest version of the `rocm` sdist, and ROCm's packages of it; without one, all of them."""
    names_by_version: dict[Version, set[str]] = {}
    for candidate in candidates:
        if layouts.is_rocm(candidate.distribution):
            version = Version(candidate.version)
            names_by_version.setdefault(version, set()).add(candidate.distribution)

    for version in sorted(names_by_version, reverse=True):
        if "rocm" in names_by_version[version]:
            return version, names_by_version[version]
    return None, set().union(*names_by_version.values())


def devices_for(
    requirements: Sequence[Requirement],
    gpu_family: str,
    *,
    for_this_machine: bool = True,
) -> Devices:
    """Return the GPUs that packages are for: those that are named, this machine's, or the family's."""
    family_names = [name for name in re.split(r"[;,]\s*", gpu_family) if name in families()]
    family = ";".join(family_names)
    named_targets = sorted(set(_named_targets(requirements)))
    if named_targets:
        return Devices(family=family, targets=tuple(named_targets), exact=True)

    gpus: Sequence[str] = ()
    wants_all_devices = any(_EXTRA_OF_ALL in requirement.extras for requirement in requirements)
    if for_this_machine and not wants_all_devices:
        gpus = detect()
    targets = tuple(gpus)
    if family:
        targets = layouts.tested_targets(family, gpus)
    return Devices(family=family, targets=targets, exact=not set(targets).isdisjoint(gpus))


def _named_targets(requirements: Iterable[Requirement]) -> Iterator[str]:
    """Yield the targets that requirements name: ``torch[device-gfx942]``, ``rocm-sdk-device-gfx942``."""
    for requirement in requirements:
        targets = {layouts.device_target(canonicalize_name(requirement.name))}
        for extra in requirement.extras:
            if extra.startswith(_EXTRA_PREFIX):
                targets.add(extra.removeprefix(_EXTRA_PREFIX))
        yield from targets.intersection(families())


def known_candidates(
    source: PackageSource,
    requirements: Sequence[Requirement],
    devices: Devices,
) -> tuple[Candidate, ...]:
    """Return what a source offers; of an index, which lists nothing by itself, what is requested."""
    if not source.index_urls:
        return source.listed

    names = {"rocm", layouts.LIBRARIES}
    for requirement in requirements:
        names.add(canonicalize_name(requirement.name))
    for family in devices.family.split(";"):
        if family:
            names.add(f"{layouts.LIBRARIES}-{canonicalize_name(family)}")
    for target in devices.targets:
        for gpu in (target, *parents(target)):
            for prefix in device_prefixes().values():
                names.add(f"{prefix}{gpu}")

    our_names = sorted(filter(is_ours, names))
    candidates: dict[Candidate, None] = {}
    for candidates_of_name in map_in_threads(source.candidates, our_names):
        candidates.update(dict.fromkeys(candidates_of_name))
    return tuple(candidates)
