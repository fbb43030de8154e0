"""Installing what is tested, and what a test's record holds of it.

Our packages come from their source alone, others' from the user's own indexes alone; all by digest.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING

from core import env, files
from core.env import installer
from core.errors import CheckError
from core.packages.resolution import call_for_others, call_for_ours, query_for_others, resolve_others
from pytorch_build.components import COMPONENTS
from rocm_packaging.packages import layouts

if TYPE_CHECKING:
    from pathlib import Path

    from core.env import InstalledDistribution, Interpreter
    from core.env.installer import InstallerCall
    from pytorch_build.context import Context
    from pytorch_build.test.gpus import Assignment
    from pytorch_build.test.tested_packages import TestedPackages

_ROCM_DEVICE_PREFIX = "rocm-sdk-device-"
_PIN = re.compile(r"^[\w.-]+==[^\s;\\]+", re.MULTILINE)


def recorded_inputs(
    packages: TestedPackages,
    target: Interpreter,
    tools: Sequence[InstallerCall],
) -> Mapping[str, object]:
    """Return what a record holds of an installation: the packages, the tests' tools and the Python.

    A tool or Python that was updated may change a result, as other wheels may.
    """
    tool_contents = [
        {"requirements": call.requirements, "files": list(map(files.sha256, call.files))} for call in tools
    ]
    return {
        **packages.inputs,
        "installed": True,
        "python": target.version,
        "tools": files.digest_of(tool_contents),
    }


@contextmanager
def plan_installation(
    context: Context,
    target: Interpreter,
    packages: TestedPackages,
    tools: Sequence[InstallerCall],
) -> Iterator[Sequence[InstallerCall]]:
    """Plan the installation: tools, others' packages, ours. Addresses live as long as the context."""
    folder = context.common.cache / "locks"
    # The tools stay what they are locked to.
    query = query_for_others(target.executable, constraints=_pins_of(tools))
    foreign_packages = resolve_others(
        packages.foreign_requirements,
        packages.names,
        query,
        allows_ours=bool(packages.prebuilt_requirements),
    )
    calls = list(tools)
    if foreign_packages:
        calls.append(call_for_others(folder, foreign_packages, None))

    sdist_target = _sdist_target(packages.names, context.gpu_family if context.gpu else "")
    with ExitStack() as stack:
        for source_part in packages.source_parts:
            sources = stack.enter_context(source_part.source.opened(source_part.files, wait=0))
            calls.append(call_for_ours(folder, source_part.files, sources, gpu_family=sdist_target))
        yield calls


def _pins_of(tools: Sequence[InstallerCall]) -> Sequence[str]:
    """Return the requirements that calls install, without digests."""
    pins: list[str] = []
    for call in tools:
        for path in call.files:
            pins += _PIN.findall(path.read_text(encoding="utf-8"))
    for call in tools:
        pins += call.requirements
    return pins


def _sdist_target(distributions: Collection[str], gpu_family: str) -> str:
    """Return what the sdist of `rocm` is built for beside these: the family or, of split packages, a target.

    It is "" where no package of ROCm is installed.
    """
    layout = layouts.layout_of(distributions, where="The installation")
    if layout is None:
        return ""
    gpu_targets = sorted(
        layouts.device_target(distribution)
        for distribution in distributions
        if distribution.startswith(_ROCM_DEVICE_PREFIX)
    )
    return layouts.sdk_target(layout, gpu_family, gpu_targets)


@contextmanager
def prepared_environment(
    context: Context,
    target: Interpreter,
    packages: TestedPackages,
    *,
    tools: Sequence[InstallerCall],
    cache_dir: Path | None,
) -> Iterator[None]:
    """Make the environment hold what is tested, and keep it while it is tested."""
    with plan_installation(context, target, packages, tools) as calls:
        digest = installer.digest_of_calls(target, calls)
        with installer.prepared(
            target,
            calls,
            digest=digest,
            force=context.common.force,
            cache_dir=cache_dir,
        ):
            installer.require_complete(target)
            require_device_code(target, packages.gpu_targets)
            yield


# Device code


def amd_targets(assignments: Sequence[Assignment]) -> tuple[str, ...]:
    """Return the gfx targets of the GPUs that tests run on; none without a GPU, or on others' GPUs."""
    gpu_targets = [assignment.target for assignment in assignments if assignment.target.startswith("gfx")]
    return tuple(dict.fromkeys(gpu_targets))


def require_device_code(target: Interpreter, gpu_targets: Sequence[str]) -> None:
    """Require device packages for whatever is installed without device code of its own.

    Such a torch imports, and fails at its first kernel.
    """
    if not gpu_targets:
        return
    # Of several copies Python imports the first.
    installed = {distribution.name: distribution for distribution in reversed(env.installed(target))}
    for name, device_prefix in device_prefixes().items():
        host = installed.get(name)
        if host is None:
            continue
        # ROCm's libraries are split by their name, PyTorch's wheels by their extras.
        is_split = name == layouts.LIBRARIES or any(extra.startswith("device-gfx") for extra in host.extras)
        if not is_split:
            continue
        for gpu_target in gpu_targets:
            device_package = f"{device_prefix}{gpu_target}"
            problem = _problem_of_device_package(host, device_package, gpu_target, installed)
            if problem is not None:
                raise CheckError(
                    f"{target.prefix}: {problem}",
                    hint=f'Install it: pip install "{device_package}=={host.version}", '
                    f"from where {name} came.",
                )


def device_prefixes() -> Mapping[str, str]:
    """Return how the packages with a distribution's device code begin, by the distribution's name."""
    prefixes = {layouts.LIBRARIES: _ROCM_DEVICE_PREFIX}
    for component in COMPONENTS.values():
        if component.has_split_device_code:
            prefixes[component.distribution] = component.device_prefix
    return prefixes


def _problem_of_device_package(
    host: InstalledDistribution,
    device_package: str,
    gpu_target: str,
    installed: Mapping[str, InstalledDistribution],
) -> str | None:
    """Return why a host has no device code for a target; None where it has."""
    device = installed.get(device_package)
    if device is None:
        return (
            f"{host.name} {host.version} holds no device code, and {device_package} is not installed: "
            f"the first kernel on {gpu_target} would fail."
        )
    if device.version != host.version:
        return f"{device_package} {device.version} does not fit {host.name} {host.version}."
    return None
