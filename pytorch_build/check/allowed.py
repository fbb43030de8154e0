"""What wheels of our distributions may bring into an environment.

Components say it of their wheels: upstream's of 2026 have what stands there. Whoever builds something that
brings more adds it in a policy, as each finding of `pytorch_build.check.site_packages` says.
"""

from __future__ import annotations

from collections.abc import Mapping
from fnmatch import fnmatchcase

from pytorch_build.components import COMPONENTS
from pytorch_build.components.component import AllowedContents
from rocm_packaging.packages.layouts import packages


def allowed_of_components() -> Mapping[str, AllowedContents]:
    """Return what wheels of components may bring into an environment, by patterns of distributions."""
    allowed: dict[str, AllowedContents] = {}
    for component in COMPONENTS.values():
        names = (component.distribution, *component.other_names)
        for name in names:
            # They hold the same files, whatever they are called.
            allowed[name] = component.allowed | AllowedContents(replaces=names)
        if component.has_split_device_code:
            device_packages = f"{component.device_prefix}*"
            allowed[device_packages] = AllowedContents(
                top_level=(component.module,),
                requirements=(component.distribution, "rocm-sdk-device-*", device_packages),
            )
    return allowed


def allowed_of_rocm_packages() -> Mapping[str, AllowedContents]:
    """Return what ROCm's packages, ours and TheRock's, may bring into an environment, by patterns."""
    folders = packages().payloads
    return {
        "rocm": AllowedContents(
            top_level=("rocm_sdk",),
            programs=("rocm-sdk",),
            requirements=("rocm-sdk-*", "rocm-profiler", "rocm-bootstrap"),
        ),
        "rocm-bootstrap": AllowedContents(top_level=("rocm_bootstrap",)),
        "rocm-profiler": AllowedContents(
            top_level=("rocm_profiler", f"{folders['profiler']}*"),
            programs=tuple(packages().profiler_programs),
            requirements=("rocm-sdk-core",),
        ),
        "rocm-sdk-core": AllowedContents(
            top_level=("rocm_sdk_core", f"{folders['core']}*"),
            programs=tuple(packages().programs),
        ),
        "rocm-sdk-devel": AllowedContents(
            top_level=("rocm_sdk_devel", f"{folders['devel']}*"),
            requirements=("rocm-sdk-core",),
        ),
        "rocm-sdk-libraries*": AllowedContents(
            top_level=("rocm_sdk_libraries*", f"{folders['libraries']}*"),
            requirements=("rocm-sdk-core",),
        ),
        "rocm-sdk-device-*": AllowedContents(
            top_level=("rocm_sdk_device_*", f"{folders['device']}*"),
            requirements=("rocm-sdk-core", "rocm-sdk-libraries"),
        ),
    }


def find_allowed(distribution: str, additions: Mapping[str, AllowedContents]) -> AllowedContents | None:
    """Return what a distribution may bring into an environment; None where neither data nor policy says.

    A distribution that only the policy names is held to that.
    """
    allowed: AllowedContents | None = None
    for values in (allowed_of_components(), allowed_of_rocm_packages(), additions):
        for pattern, value in values.items():
            if fnmatchcase(distribution, pattern):
                allowed = value if allowed is None else allowed | value
    return allowed
