"""What this distribution of ROCm consists of. Written by the build into every package."""

import functools
import importlib.util
import os
import re
import shutil
import sys
import sysconfig
import warnings


def locations(spec):
    """The folders of a package, whether or not it has an ``__init__.py``."""
    return list(spec.submodule_search_locations or ())


class PackageEntry:
    """One of the distribution's packages.

    `dist`, `payload` and `module` may hold ``{family}``: such a package exists once a GPU family.
    One with a `marker` lies over another's folder, and the marker is the file that tells it is there.
    """

    def __init__(self, logical_name, *, dist, payload, module, extra="", marker=""):
        self.logical_name = logical_name
        self.dist = dist
        self.payload = payload
        self.module = module
        self.extra = extra
        self.marker = marker

    def __repr__(self):
        return f"PackageEntry({self.dist!r})"

    @property
    def is_target_specific(self):
        return "{family}" in self.dist

    def _family(self, family):
        if not self.is_target_specific:
            return ""
        return family or determine_target_family()

    def get_dist_package_name(self, target_family=None):
        """Name of the distribution package, as an installer knows it."""
        return self.dist.replace("{family}", self._family(target_family))

    def get_dist_package_require(self, target_family=None):
        """Requirement that pins the package to this distribution's version."""
        return f"{self.get_dist_package_name(target_family)}=={__version__}"

    def get_py_package_name(self, target_family=None):
        """Name of the folder in site-packages that holds the package's files."""
        family = re.sub(r"\W", "_", self._family(target_family))
        return self.payload.replace("{family}", family) + PY_PACKAGE_SUFFIX_NONCE

    def get_pure_py_package_name(self, target_family=None):
        """Name of the importable module beside the files."""
        return self.module.replace("{family}", re.sub(r"\W", "_", self._family(target_family)))

    def has_py_package(self, target_family=None):
        """Whether the package is installed."""
        if self.marker:
            return self.marker_path(target_family) is not None
        spec = importlib.util.find_spec(self.get_py_package_name(target_family))
        # A folder that an uninstall left behind is found too, but without an __init__.py.
        return spec is not None and spec.origin is not None

    def marker_path(self, target_family=None):
        """The marker of an installed package that lies over another's folder, or None."""
        spec = importlib.util.find_spec(self.get_py_package_name(target_family))
        marker = self.marker.replace("{family}", self._family(target_family))
        paths = (os.path.join(folder, marker) for folder in (locations(spec) if spec else ()))
        return next((path for path in paths if os.path.isfile(path)), None)

    @property
    def install_hint(self):
        """The command that installs the package."""
        name = f"rocm[{self.extra}]" if self.extra else "rocm"
        return f"pip install {name}=={__version__}"


class LibraryEntry:
    """One shared library that programs ask for by a short name."""

    def __init__(self, name, package, posix, windows="", *, folder="lib", optional=False):
        self.name = name
        self.package = package
        self.posix = posix
        self.windows = windows
        self.folder = folder
        self.optional = optional

    def __repr__(self):
        return f"LibraryEntry({self.name!r})"

    @property
    def pattern(self):
        """``(folder, glob)`` below the package's files; an empty glob: not on this platform."""
        if sys.platform == "win32":
            return "bin", self.windows
        return self.folder, self.posix


def _by_name(entries):
    return {entry.name: entry for entry in entries}


_CORE = PackageEntry("core", dist="rocm-sdk-core", payload="_rocm_sdk_core", module="rocm_sdk_core")
_PROFILER = PackageEntry(
    "profiler", dist="rocm-profiler", payload="_rocm_profiler", module="rocm_profiler", extra="profiler"
)
_DEVEL = PackageEntry(
    "devel", dist="rocm-sdk-devel", payload="_rocm_sdk_devel", module="rocm_sdk_devel", extra="devel"
)
_FAMILY_LIBRARIES = PackageEntry(
    "libraries",
    dist="rocm-sdk-libraries-{family}",
    payload="_rocm_sdk_libraries_{family}",
    module="rocm_sdk_libraries_{family}",
    extra="libraries",
)
_LIBRARIES = PackageEntry(
    "libraries",
    dist="rocm-sdk-libraries",
    payload="_rocm_sdk_libraries",
    module="rocm_sdk_libraries",
    extra="libraries",
)
_DEVICE = PackageEntry(
    "device",
    dist="rocm-sdk-device-{family}",
    payload="_rocm_sdk_libraries",
    module="",
    extra="device",
    marker=".devel_links/{family}.json",
)


def packages_of(*, split, profiler):
    """The packages of a distribution by logical name."""
    entries = [_CORE, *([_LIBRARIES, _DEVICE] if split else [_FAMILY_LIBRARIES])]
    entries += [*([_PROFILER] if profiler else []), _DEVEL]
    return {entry.logical_name: entry for entry in entries}


ALL_LIBRARIES = _by_name(
    [
        LibraryEntry("amdhip64", "core", "libamdhip64.so*", "amdhip64*.dll"),
        LibraryEntry("hipfile", "core", "libhipfile.so*"),
        LibraryEntry("hiprtc", "core", "libhiprtc.so*", "hiprtc0*.dll"),
        LibraryEntry("roctx64", "core", "libroctx64.so*"),
        LibraryEntry("rocprofiler-sdk", "core", "librocprofiler-sdk.so*"),
        LibraryEntry("rocprofiler-sdk-roctx", "core", "librocprofiler-sdk-roctx.so*"),
        LibraryEntry("roctracer64", "core", "libroctracer64.so*"),
        LibraryEntry(
            "rocm_sysdeps_liblzma",
            "core",
            "librocm_sysdeps_liblzma.so*",
            folder="lib/rocm_sysdeps/lib",
        ),
        LibraryEntry(
            "rocm-openblas",
            "core",
            "librocm-openblas.so*",
            "rocm-openblas.dll",
            folder="lib/host-math/lib",
        ),
        LibraryEntry("amd_comgr", "core", "libamd_comgr.so*", "amd_comgr*.dll"),
        LibraryEntry("rocm_kpack", "core", "librocm_kpack.so*", "rocm_kpack*.dll"),
        LibraryEntry("rocm_smi64", "core", "librocm_smi64.so*"),
        LibraryEntry("rocdecode", "core", "librocdecode.so*"),
        LibraryEntry("rocjpeg", "core", "librocjpeg.so*"),
        LibraryEntry("amd_smi", "core", "libamd_smi.so*"),
        LibraryEntry("rocdxg", "core", "librocdxg.so*", optional=True),
        LibraryEntry("rpp", "libraries", "librpp.so*"),
        LibraryEntry("hipblas", "libraries", "libhipblas.so*", "*hipblas.dll"),
        LibraryEntry("hipblaslt", "libraries", "libhipblaslt.so*", "*hipblaslt.dll"),
        LibraryEntry("hipfft", "libraries", "libhipfft.so*", "*hipfft.dll"),
        LibraryEntry("hiprand", "libraries", "libhiprand.so*", "*hiprand.dll"),
        LibraryEntry("hipsparse", "libraries", "libhipsparse.so*", "*hipsparse.dll"),
        LibraryEntry("hipsparselt", "libraries", "libhipsparselt.so*", "*hipsparselt.dll"),
        LibraryEntry("hipsolver", "libraries", "libhipsolver.so*", "*hipsolver.dll"),
        LibraryEntry("rccl", "libraries", "librccl.so*"),
        LibraryEntry("miopen", "libraries", "libMIOpen.so*", "*MIOpen.dll"),
        LibraryEntry("origami", "libraries", "liborigami.so*", "*origami.dll"),
        LibraryEntry("hipdnn", "libraries", "libhipdnn_backend.so*", "*hipdnn_backend.dll"),
    ]
)


def families_of_target(target):
    """Families of this distribution that hold code for a gfx target, the smallest first."""
    base = target.partition(":")[0]
    holding = [name for name in AVAILABLE_TARGET_FAMILIES if base in FAMILY_TARGETS.get(name, ())]
    return sorted(holding, key=lambda name: (len(FAMILY_TARGETS[name]), name))


def discover_current_target_family():
    """Ask ``offload-arch`` for this machine's GPUs; the family of the first that we have, or None."""
    import subprocess  # for this alone, and it takes its time

    path = os.pathsep.join([sysconfig.get_path("scripts"), os.environ.get("PATH", "")])
    program = shutil.which("offload-arch", path=path)
    if program is None:
        return None
    try:
        said = subprocess.run([program], capture_output=True, text=True, timeout=60, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return None
    if said.returncode != 0:
        return None
    for target in said.stdout.split():
        found = families_of_target(target)
        if found:
            return found[0]
    return None


@functools.lru_cache(maxsize=None)
def determine_target_family():
    """The GPU family whose libraries to use, decided once a process.

    ROCM_SDK_TARGET_FAMILY; else the only family whose libraries are installed; else that of
    this machine's GPU; else the distribution's default, with a warning.
    """
    requested = requested_target_family()
    if requested:
        return requested[0]
    installed = installed_target_families()
    if len(installed) == 1:
        return installed[0]
    found = discover_current_target_family()
    if found and (not installed or found in installed):
        return found
    if installed and DEFAULT_TARGET_FAMILY not in installed:
        return installed[0]
    if not installed and len(AVAILABLE_TARGET_FAMILIES) > 1:
        warnings.warn(
            "No GPU of this distribution was found and ROCM_SDK_TARGET_FAMILY is not set; "
            f"taking {DEFAULT_TARGET_FAMILY} of {', '.join(AVAILABLE_TARGET_FAMILIES)}",
            stacklevel=2,
        )
    return DEFAULT_TARGET_FAMILY


def requested_target_family():
    """The families that ROCM_SDK_TARGET_FAMILY stands for; none where it is not set.

    In a split distribution each gfx target is a family, and the name of a group stands for several.
    """
    requested = os.environ.get("ROCM_SDK_TARGET_FAMILY")
    if not requested:
        return []
    if requested in AVAILABLE_TARGET_FAMILIES:
        return [requested]
    if SPLIT and requested in FAMILY_TARGETS:
        return list(FAMILY_TARGETS[requested])
    raise ValueError(
        f"Requested ROCM_SDK_TARGET_FAMILY={requested} is not available in the distribution "
        f"(available: {', '.join(AVAILABLE_TARGET_FAMILIES)})"
    )


def installed_target_families():
    """Families of this distribution whose libraries are installed here, sorted."""
    entry = ALL_PACKAGES.get("device") or ALL_PACKAGES["libraries"]
    return sorted(name for name in AVAILABLE_TARGET_FAMILIES if entry.has_py_package(name))


def has_libraries():
    """Whether libraries are installed, of any GPU family."""
    entry = ALL_PACKAGES["libraries"]
    if entry.is_target_specific:
        return bool(installed_target_families())
    return entry.has_py_package()


def installed_libraries():
    """One family for each libraries package that is installed: in a split distribution there is one."""
    if ALL_PACKAGES["libraries"].is_target_specific:
        return installed_target_families()
    return [DEFAULT_TARGET_FAMILY] if has_libraries() else []


def get_targets():
    """Gfx targets that the installed libraries hold code for; of the whole distribution, without any."""
    families = installed_target_families() or AVAILABLE_TARGET_FAMILIES
    return list(dict.fromkeys(target for name in families for target in FAMILY_TARGETS.get(name, ())))


def get_extras():
    """Extras of the `rocm` package -> the requirements of each, for this machine."""
    extras = {}
    for entry in ALL_PACKAGES.values():
        if entry.logical_name == "device":
            chosen = requested_target_family() or [determine_target_family()]
            extras["device"] = [entry.get_dist_package_require(name) for name in chosen]
            every = {name: _marked(entry, name) for name in AVAILABLE_TARGET_FAMILIES}
            extras.update((f"device-{name}", [line]) for name, line in every.items())
            extras["device-all"] = list(every.values())
        elif entry.extra:
            extras[entry.extra] = [entry.get_dist_package_require()]
    return extras


def _marked(entry, name):
    """The requirement of a device package, only for the platform that has one."""
    line = entry.get_dist_package_require(name)
    if not (LINUX_TARGET_FAMILIES and WINDOWS_TARGET_FAMILIES):
        return line
    platforms = {"linux": name in LINUX_TARGET_FAMILIES, "win32": name in WINDOWS_TARGET_FAMILIES}
    only = [platform for platform, has in platforms.items() if has]
    return f'{line} ; sys_platform == "{only[0]}"' if len(only) == 1 else line


# The facts of this build.
