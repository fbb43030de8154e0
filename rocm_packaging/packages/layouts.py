"""The two layouts of ROCm's Python packages, and which packages an installation takes of each.

*unsplit*: ``rocm-sdk-libraries-{family}`` holds the libraries of one GPU family with their device code.
*split*: ``rocm-sdk-libraries`` serves all GPUs, and ``rocm-sdk-device-{target}`` adds the device code of one
gfx target. PyTorch's wheels follow: ``amd-torch-device-{target or bundle}`` lies over a split torch.
"""

import importlib.util
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import Annotated, Literal

from packaging.utils import canonicalize_name
from pydantic import AfterValidator, Field

from core.data import Model, data_file
from core.errors import BuildError, RocmError, UsageError
from core.families import gpu_targets, parents

Layout = Literal["split", "unsplit"]

TEMPLATES = Path(__file__).parents[1] / "templates"
DIST_INFO = TEMPLATES / "dist_info.py"
LIBRARIES = "rocm-sdk-libraries"
# finds the device code of TheRock's host wheels; its version is its own
BOOTSTRAP = "rocm-bootstrap"
_DEVICE = re.compile(r"(?:rocm-sdk|amd-(?P<host>[a-z][a-z0-9-]*?))-device-(?P<gpu>gfx[0-9a-z-]+)")


def is_rocm(name: str) -> bool:
    """Return whether a normalized distribution name is one of ROCm's own packages."""
    return name in {"rocm", "rocm-profiler", BOOTSTRAP} or name.startswith("rocm-sdk-")


def libraries_package(layout: Layout, family: str) -> str:
    """Return the name of the distribution that holds the libraries."""
    if layout == "split":
        return LIBRARIES
    if ";" in family:
        raise UsageError(
            f"Unsplit ROCm packages serve one GPU family, and {family} are several.",
            hint="Choose one with --gpu-family, or take ROCm from a source with split packages.",
        )
    return f"{LIBRARIES}-{canonicalize_name(family)}"


def device_package(target: str) -> str:
    """Return the name of the distribution with ROCm's device code for a gfx target."""
    return f"rocm-sdk-device-{target}"


def layout_of(names: Iterable[str], *, where: str) -> Layout | None:
    """Return the layout by the normalized names of one version's distributions; None without libraries."""
    libraries = sorted(name for name in names if name == LIBRARIES or name.startswith(f"{LIBRARIES}-"))
    if not libraries:
        return None
    if LIBRARIES not in libraries:
        return "unsplit"
    if len(libraries) > 1:
        raise RocmError(
            f"{where} holds ROCm packages of both layouts: {', '.join(libraries)}.",
            hint="Remove one kind, or name a source that has only one.",
        )
    return "split"


def device_target(name: str) -> str:
    """Return the gfx target or bundle that a device package is for; "" for any other distribution."""
    match = _DEVICE.fullmatch(name)
    return match["gpu"] if match is not None else ""


def host_distribution(name: str) -> str:
    """Return the distribution whose device code a package holds: ``torch``, ``torchvision``; or ""."""
    match = _DEVICE.fullmatch(name)
    if match is None:
        return ""
    return match["host"] or ""


def covers(gpu: str, targets: Iterable[str]) -> bool:
    """Return whether a device package's target or bundle (``gfx11``, ``gfx12-0``) is for any of targets."""
    name = gpu.replace("_", "-")  # as wheels' file names have it
    return any(name in (target, *parents(target)) for target in targets)


def serves(name: str, gpu_families: Sequence[str], targets: Sequence[str]) -> bool:
    """Return whether a distribution, by its normalized name, belongs into an environment for these GPUs."""
    gpu = device_target(name)
    if gpu:
        return covers(gpu, targets)
    if name.startswith(f"{LIBRARIES}-"):
        return name in {f"{LIBRARIES}-{canonicalize_name(family)}" for family in gpu_families}
    return True


def tested_targets(family: str, detected: Sequence[str]) -> tuple[str, ...]:
    """Return the targets whose device packages a test needs: this machine's of the family, else all of it."""
    targets = gpu_targets(family)
    return tuple(target for target in targets if target in detected) or targets


def sdk_target(layout: Layout, family: str, targets: Sequence[str] = ()) -> str:
    """Return the value of ROCM_SDK_TARGET_FAMILY; "" where it has to be unset.

    Of split packages upstream's ``rocm_sdk`` refuses every value but a gfx target; builds install none.
    """
    if layout == "unsplit":
        return family
    return targets[0] if targets else ""


PACKAGES_FILE = Path(__file__).with_name("packages.toml")


class RuntimePackage(Model):
    """A package of files that programs need at run time."""

    artifacts: tuple[str, ...]
    components: tuple[str, ...]
    only_lib: tuple[str, ...] = ()
    required: tuple[str, ...] = ()
    with_headers: tuple[str, ...] = ()
    include: tuple[str, ...] = ()
    exclude: tuple[str, ...] = ()
    rpath_core: tuple[str, ...] = ()
    unversioned: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True)
class WantedFile:
    """Something that an artifact must hold: a file of a component that matches a glob.

    `name` is a library's, ``LIBRARY-kernels``, or the glob itself.
    """

    name: str
    component: str
    glob: str

    @property
    def is_named_by_path(self) -> bool:
        """Whether the wheel promises just that file."""
        return self.name == self.glob


class ArtifactContents(Model):
    """What an artifact must hold; `without` are the gfx targets that a library has no kernels of."""

    libraries: tuple[str, ...] = ()
    linux: tuple[str, ...] = ()
    lib: tuple[str, ...] = ()
    run: tuple[str, ...] = ()
    dev: tuple[str, ...] = ()
    kernels: dict[str, str] = Field(default_factory=dict)
    without: dict[str, tuple[str, ...]] = Field(default_factory=dict)

    def wanted_files(self, platform: str, targets: Sequence[str]) -> Iterator[WantedFile]:
        """Yield what the artifact must hold for gfx targets."""
        yield from self._wanted_libraries(platform)
        yield from self._wanted_paths("lib", self.lib, platform, targets)
        yield from self._wanted_paths("run", self.run, platform, targets)
        yield from self._wanted_paths("dev", self.dev, platform, targets)
        for library, glob in self.kernels.items():
            for target in targets:
                if target not in self.without.get(library, ()):
                    kernels = glob.replace("{target}", target)
                    yield WantedFile(name=f"{library}-kernels", component="lib", glob=kernels)

    def _wanted_libraries(self, platform: str) -> Iterator[WantedFile]:
        globs = library_globs(platform)
        names = list(self.libraries)
        if platform != "windows":
            names += self.linux
        for name in names:
            if name in globs:
                glob = globs[name]
            elif name in library_globs("linux"):
                continue  # `rocm_sdk` knows it, and not on this platform
            elif platform == "windows":
                glob = f"bin/*{name}*.dll"
            else:
                glob = f"lib/lib{name}.so*"
            yield WantedFile(name=name, component="lib", glob=glob)

    def _wanted_paths(
        self,
        component: str,
        globs: Sequence[str],
        platform: str,
        targets: Sequence[str],
    ) -> Iterator[WantedFile]:
        exe = ".exe" if platform == "windows" else ""
        for glob in globs:
            for_each_target = [glob.replace("{isa}", target.removeprefix("gfx")) for target in targets]
            for path in dict.fromkeys(for_each_target or [glob]):
                file = path.replace("{exe}", exe)
                yield WantedFile(name=file, component=component, glob=file)


class DevelPackage(Model):
    """The package of everything that developers need besides."""

    artifacts: tuple[str, ...]
    components: tuple[str, ...]
    links: dict[str, str]


def _require_canonical_license(text: str) -> str:
    from packaging.licenses import canonicalize_license_expression

    canonical = canonicalize_license_expression(text)  # its error is a ValueError
    if canonical != text:
        raise ValueError(f"write {canonical}")
    return text


LicenseExpression = Annotated[str, AfterValidator(_require_canonical_license)]


class LicenseData(Model):
    """SPDX expressions of artifacts."""

    default: LicenseExpression
    artifacts: dict[str, LicenseExpression]

    def of(self, artifact: str) -> str:
        """Return an artifact's expression."""
        return self.artifacts.get(artifact, self.default)


class Program(Model):
    """A program of ROCm that gets a console script."""

    expand: bool = True


class Packages(Model):
    """The whole file."""

    core: RuntimePackage
    profiler: RuntimePackage
    libraries: RuntimePackage
    device: RuntimePackage
    devel: DevelPackage
    payloads: dict[str, str]
    contents: dict[str, ArtifactContents]
    licenses: LicenseData
    programs: dict[str, Program]
    profiler_programs: dict[str, Program]

    def kind_of(self, artifact: str) -> str:
        """Return which package takes an artifact's files for programs."""
        if artifact in self.core.artifacts:
            return "core"
        if artifact in self.profiler.artifacts:
            return "profiler"
        if artifact in self.libraries.artifacts:
            return "libraries"
        return "devel"


packages = data_file(PACKAGES_FILE, Packages)


def payload_folder(package: str, family: str = "", suffix: str = "") -> str:
    """Return the folder of a package's files in site-packages: ``_rocm_sdk_libraries_gfx94X_dcgpu``.

    Device code, by the package's logical name ``device``, lies over the libraries of all GPUs.
    """
    folder = packages().payloads[package]
    if package == "libraries" and family:
        folder = f"{folder}_{identifier(family)}"
    return f"{folder}{suffix}"


def identifier(family: str) -> str:
    """Spell a GPU family as part of a Python name."""
    return re.sub(r"\W", "_", family)


@dataclass(frozen=True, kw_only=True)
class SdkLibrary:
    """A library that `rocm_sdk` knows: its short name, its package, and its glob in ROCm's own tree."""

    name: str
    package: str
    glob: str


@cache
def sdk_libraries(platform: str) -> tuple[SdkLibrary, ...]:
    """Return the libraries of the `rocm_sdk` table that a platform has."""
    libraries: list[SdkLibrary] = []
    for library in _dist_info_template().ALL_LIBRARIES.values():
        if platform == "windows" and library.windows:
            glob = f"bin/{library.windows}"
        elif platform != "windows" and library.posix:
            glob = f"{library.folder}/{library.posix}"
        else:
            continue
        libraries.append(SdkLibrary(name=library.name, package=library.package, glob=glob))
    return tuple(libraries)


def _dist_info_template() -> ModuleType:
    """Import the template of ``_dist_info.py``, which needs nothing but Python."""
    spec = importlib.util.spec_from_file_location("rocm_dist_info_template", DIST_INFO)
    if spec is None or spec.loader is None:
        raise BuildError(f"{DIST_INFO} cannot be loaded.")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@cache
def library_globs(platform: str) -> dict[str, str]:
    """Return what `rocm_sdk` looks for on a platform: short name -> glob in ROCm's own tree."""
    return {library.name: library.glob for library in sdk_libraries(platform)}


def libraries_in(package: str, paths: Iterable[str], platform: str) -> set[str]:
    """Return which libraries of the `rocm_sdk` table a package holds."""
    paths = list(paths)
    names: set[str] = set()
    for library in sdk_libraries(platform):
        if library.package == package and any(fnmatchcase(path, library.glob) for path in paths):
            names.add(library.name)
    return names
