"""What this distribution of ROCm consists of. Written by the build into every package."""

import functools
import importlib.util
import os
import re
import shutil
import sys
import sysconfig
import warnings


class PackageEntry:
    """One of the distribution's packages.

    `dist`, `payload` and `module` may hold ``{family}``: such a package exists once a GPU family.
    One with a `marker` lies over another's folder, and the marker is the file that tells it is there.
    """

    def __init__(
        self, logical_name, *, dist, payload, module, extra="", marker=""
    ):
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
        """Return what stands for ``{family}``: a family, or the one of this machine."""
        if not self.is_target_specific:
            return ""
        return family or determine_target_family()

    def get_dist_package_name(self, target_family=None):
        """Return the name of the distribution package, as an installer knows it."""
        return self.dist.replace("{family}", self._family(target_family))

    def get_dist_package_require(self, target_family=None):
        """Return the requirement that pins the package to this distribution's version."""
        return f"{self.get_dist_package_name(target_family)}=={__version__}"

    def get_py_package_name(self, target_family=None):
        """Return the name of the folder in site-packages that holds the package's files."""
        family = re.sub(r"\W", "_", self._family(target_family))
        return self.payload.replace("{family}", family) + PY_PACKAGE_SUFFIX_NONCE

    def get_pure_py_package_name(self, target_family=None):
        """Return the name of the importable module beside the files."""
        return self.module.replace(
            "{family}", re.sub(r"\W", "_", self._family(target_family))
        )

    def has_py_package(self, target_family=None):
        """Return whether the package is installed."""
        if self.marker:
            return self.marker_path(target_family) is not None
        spec = importlib.util.find_spec(self.get_py_package_name(target_family))
        # A folder that an uninstall left behind is found too, but without an __init__.py.
        return spec is not None and spec.origin is not None

    def marker_path(self, target_family=None):
        """Return the marker of an installed package that lies over another's folder, or None."""
        spec = importlib.util.find_spec(self.get_py_package_name(target_family))
        if spec is None:
            return None
        marker = self.marker.replace("{family}", self._family(target_family))
        # A folder without an __init__.py is found, too, perhaps in several places.
        for folder in spec.submodule_search_locations or ():
            path = os.path.join(folder, marker)
            if os.path.isfile(path):
                return path
        return None

    @property
    def install_hint(self):
        """The command that installs the package."""
        name = f"rocm[{self.extra}]" if self.extra else "rocm"
        return f"pip install {name}=={__version__}"


class LibraryEntry:
    """One shared library that programs ask for by a short name."""

    def __init__(
        self, name, package, posix, windows="", *, folder="lib", optional=False
    ):
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


_CORE = PackageEntry(
    "core", dist="rocm-sdk-core", payload="_rocm_sdk_core", module="rocm_sdk_core"
)
_PROFILER = PackageEntry(
    "profiler",
    dist="rocm-profiler",
    payload="_rocm_profiler",
    module="rocm_profiler",
    extra="profiler",
)
_DEVEL = PackageEntry(
    "devel",
    dist="rocm-sdk-devel",
    payload="_rocm_sdk_devel",
    module="rocm_sdk_devel",
    extra="devel",
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
    """Return the packages of a distribution by logical name."""
    entries = [_CORE]
    if split:
        entries += [_LIBRARIES, _DEVICE]
    else:
        entries.append(_FAMILY_LIBRARIES)
    if profiler:
        entries.append(_PROFILER)
    entries.append(_DEVEL)
    return {entry.logical_name: entry for entry in entries}


ALL_LIBRARIES = {
    library.name: library
    for library in (
        LibraryEntry("amdhip64", "core", "libamdhip64.so*", "amdhip64*.dll"),
        LibraryEntry("hipfile", "core", "libhipfile.so*"),
        LibraryEntry("hiprtc", "core", "libhiprtc.so*", "hiprtc0*.dll"),
        LibraryEntry("roctx64", "core", "libroctx64.so*"),
        LibraryEntry("rocprofiler-sdk", "core", "librocprofiler-sdk.so*"),
        LibraryEntry(
            "rocprofiler-sdk-roctx", "core", "librocprofiler-sdk-roctx.so*"
        ),
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
        LibraryEntry(
            "rocm_kpack", "core", "librocm_kpack.so*", "rocm_kpack*.dll"
        ),
        LibraryEntry("rocm_smi64", "core", "librocm_smi64.so*"),
        LibraryEntry("rocdecode", "core", "librocdecode.so*"),
        LibraryEntry("rocjpeg", "core", "librocjpeg.so*"),
        LibraryEntry("amd_smi", "core", "libamd_smi.so*"),
        LibraryEntry("rocdxg", "core", "librocdxg.so*", optional=True),
        LibraryEntry("rpp", "libraries", "librpp.so*"),
        LibraryEntry("hipblas", "libraries", "libhipblas.so*", "*hipblas.dll"),
        LibraryEntry(
            "hipblaslt", "libraries", "libhipblaslt.so*", "*hipblaslt.dll"
        ),
        LibraryEntry("hipfft", "libraries", "libhipfft.so*", "*hipfft.dll"),
        LibraryEntry("hiprand", "libraries", "libhiprand.so*", "*hiprand.dll"),
        LibraryEntry(
            "hipsparse", "libraries", "libhipsparse.so*", "*hipsparse.dll"
        ),
        LibraryEntry(
            "hipsparselt", "libraries", "libhipsparselt.so*", "*hipsparselt.dll"
        ),
        LibraryEntry(
            "hipsolver", "libraries", "libhipsolver.so*", "*hipsolver.dll"
        ),
        LibraryEntry("rccl", "libraries", "librccl.so*"),
        LibraryEntry("miopen", "libraries", "libMIOpen.so*", "*MIOpen.dll"),
        LibraryEntry("origami", "libraries", "liborigami.so*", "*origami.dll"),
        LibraryEntry(
            "hipdnn", "libraries", "libhipdnn_backend.so*", "*hipdnn_backend.dll"
        ),
    )
}


def families_of_target(target):
    """Return the families of this distribution that hold code for a gfx target, the smallest first."""
    base_target = target.partition(":")[0]
    families = [
        name
        for name in AVAILABLE_TARGET_FAMILIES
        if base_target in FAMILY_TARGETS.get(name, ())
    ]
    return sorted(families, key=lambda name: (len(FAMILY_TARGETS[name]), name))


def discover_current_target_family():
    """Return the family of the first of this machine's GPUs that we have; None where there is none.

    ``offload-arch`` is asked.
    """
    import subprocess  # for this alone, and it takes its time

    path = os.pathsep.join(
        [sysconfig.get_path("scripts"), os.environ.get("PATH", "")]
    )
    program = shutil.which("offload-arch", path=path)
    if program is None:
        return None
    try:
        completed = subprocess.run(
            [program], capture_output=True, text=True, timeout=60, check=False
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    if completed.returncode != 0:
        return None

    for target in completed.stdout.split():
        families = families_of_target(target)
        if families:
            return families[0]
    return None


@functools.lru_cache(maxsize=None)
def determine_target_family():
    """Return the GPU family whose libraries to use, decided once a process.

    ROCM_SDK_TARGET_FAMILY; else the only family whose libraries are installed; else that of
    this machine's GPU; else the distribution's default, with a warning.
    """
    requested_families = requested_target_family()
    if requested_families:
        return requested_families[0]
    installed_families = installed_target_families()
    if len(installed_families) == 1:
        return installed_families[0]

    family_of_machine = discover_current_target_family()
    if family_of_machine and (
        not installed_families or family_of_machine in installed_families
    ):
        return family_of_machine
    if installed_families and DEFAULT_TARGET_FAMILY not in installed_families:
        return installed_families[0]

    if not installed_families and len(AVAILABLE_TARGET_FAMILIES) > 1:
        warnings.warn(
            "No GPU of this distribution was found and ROCM_SDK_TARGET_FAMILY is not set; "
            f"taking {DEFAULT_TARGET_FAMILY} of {', '.join(AVAILABLE_TARGET_FAMILIES)}",
            stacklevel=2,
        )
    return DEFAULT_TARGET_FAMILY


def requested_target_family():
    """Return the families that ROCM_SDK_TARGET_FAMILY stands for; none where it is not set.

    In a split distribution each gfx target is a family, and the name of a group stands for several.
    """
    requested_name = os.environ.get("ROCM_SDK_TARGET_FAMILY")
    if not requested_name:
        return []
    if requested_name in AVAILABLE_TARGET_FAMILIES:
        return [requested_name]
    if SPLIT and requested_name in FAMILY_TARGETS:
        return list(FAMILY_TARGETS[requested_name])
    raise ValueError(
        f"Requested ROCM_SDK_TARGET_FAMILY={requested_name} is not available in the distribution "
        f"(available: {', '.join(AVAILABLE_TARGET_FAMILIES)})"
    )


def installed_target_families():
    """Return the families of this distribution whose libraries are installed here, sorted."""
    entry = ALL_PACKAGES.get("device") or ALL_PACKAGES["libraries"]
    return sorted(
        name for name in AVAILABLE_TARGET_FAMILIES if entry.has_py_package(name)
    )


def has_libraries():
    """Return whether libraries are installed, of any GPU family."""
    entry = ALL_PACKAGES["libraries"]
    if entry.is_target_specific:
        return bool(installed_target_families())
    return entry.has_py_package()


def installed_libraries():
    """Return a family for each libraries package that is installed: in a split distribution there is one."""
    if ALL_PACKAGES["libraries"].is_target_specific:
        return installed_target_families()
    if not has_libraries():
        return []
    return [DEFAULT_TARGET_FAMILY]


def get_targets():
    """Return the gfx targets that the installed libraries hold code for; without any, the distribution's."""
    targets = []
    for name in installed_target_families() or AVAILABLE_TARGET_FAMILIES:
        targets += FAMILY_TARGETS.get(name, ())
    return list(dict.fromkeys(targets))


def get_extras():
    """Return the extras of the `rocm` package with the requirements of each, for this machine."""
    extras = {}
    for entry in ALL_PACKAGES.values():
        if entry.logical_name == "device":
            extras.update(_device_extras(entry))
        elif entry.extra:
            extras[entry.extra] = [entry.get_dist_package_require()]
    return extras


def _device_extras(entry):
    """Return ``device`` for this machine, ``device-gfxN`` for each target, and ``device-all``."""
    families = requested_target_family() or [determine_target_family()]
    extras = {
        "device": [entry.get_dist_package_require(name) for name in families]
    }
    all_requirements = []
    for name in AVAILABLE_TARGET_FAMILIES:
        requirement = _requirement_on_platform(entry, name)
        extras[f"device-{name}"] = [requirement]
        all_requirements.append(requirement)
    extras["device-all"] = all_requirements
    return extras


def _requirement_on_platform(entry, name):
    """Return the requirement of a device package, only for the platform that has one."""
    requirement = entry.get_dist_package_require(name)
    if not (LINUX_TARGET_FAMILIES and WINDOWS_TARGET_FAMILIES):
        return requirement
    is_on_linux = name in LINUX_TARGET_FAMILIES
    is_on_windows = name in WINDOWS_TARGET_FAMILIES
    if is_on_linux == is_on_windows:
        return requirement
    platform = "linux" if is_on_linux else "win32"
    return f'{requirement} ; sys_platform == "{platform}"'


# The facts of this build.
