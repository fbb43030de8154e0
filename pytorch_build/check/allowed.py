"""What wheels of our distributions may bring into an environment.

Components say it of their wheels: upstream's of 2026 have what stands there. Whoever builds something that
brings more adds it in a policy, as each finding of `pytorch_build.check.site_packages` says.
"""

from __future__ import annotations

from collections.abc import Mapping
from fnmatch import fnmatchcase

from pytorch_build.components import COMPONENTS
from pytorch_build.components.component import Allowed
from rocm_packaging.packages.layouts import packages


def component_distributions() -> Mapping[str, Allowed]:
    """Return what wheels of the components may bring, and those with their device code."""
    allowed: dict[str, Allowed] = {}
    for component in COMPONENTS.values():
        names = (component.distribution, *component.other_names)
        for name in names:
            # They hold the same files, whatever they are called.
            allowed[name] = component.allowed | Allowed(replaces=names)
        if component.has_split_device_code:
            device_packages = f"{component.device_prefix}*"
            allowed[device_packages] = Allowed(
                top_level=(component.module,),
                requirements=(component.distribution, "rocm-sdk-device-*", device_packages),
            )
    return allowed


def rocm_distributions() -> Mapping[str, Allowed]:
    """Return what ROCm's packages may bring: ours, and TheRock's, whose layout they have."""
    folders = packages().payloads
    return {
        "rocm": Allowed(
            top_level=("rocm_sdk",),
            programs=("rocm-sdk",),
            requirements=("rocm-sdk-*", "rocm-profiler", "rocm-bootstrap"),
        ),
        "rocm-bootstrap": Allowed(top_level=("rocm_bootstrap",)),
        "rocm-profiler": Allowed(
            top_level=("rocm_profiler", f"{folders['profiler']}*"),
            programs=tuple(packages().profiler_programs),
            requirements=("rocm-sdk-core",),
        ),
        "rocm-sdk-core": Allowed(
            top_level=("rocm_sdk_core", f"{folders['core']}*"),
            programs=tuple(packages().programs),
        ),
        "rocm-sdk-devel": Allowed(
            top_level=("rocm_sdk_devel", f"{folders['devel']}*"),
            requirements=("rocm-sdk-core",),
        ),
        "rocm-sdk-libraries*": Allowed(
            top_level=("rocm_sdk_libraries*", f"{folders['libraries']}*"),
            requirements=("rocm-sdk-core",),
        ),
        "rocm-sdk-device-*": Allowed(
            top_level=("rocm_sdk_device_*", f"{folders['device']}*"),
            requirements=("rocm-sdk-core", "rocm-sdk-libraries"),
        ),
    }


def find_allowed(distribution: str, additions: Mapping[str, Allowed]) -> Allowed | None:
    """Return what a distribution may bring, with what a policy adds; None where nobody says.

    A distribution that only the policy names is held to that.
    """
    allowed: Allowed | None = None
    for values in (component_distributions(), rocm_distributions(), additions):
        for pattern, value in values.items():
            if fnmatchcase(distribution, pattern):
                allowed = value if allowed is None else allowed | value
    return allowed
