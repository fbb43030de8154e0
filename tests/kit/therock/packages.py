"""ROCm's packages: built of the same artifacts by TheRock's builder and by ours, and read alike."""

import email
import io
import json
import posixpath
import shutil
import tarfile
import tempfile
import zipfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cache, partial
from pathlib import Path, PurePosixPath

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from ci.bisection.differences import commits_in
from core import process
from core.binaries import elf
from core.run import PLATFORMS
from rocm_packaging import artifacts
from rocm_packaging.packages.build import BuildRequest, build
from rocm_packaging.packages.layouts import libraries_in, library_globs, packages
from rocm_packaging.sample import ensure_artifacts
from tests.kit import repos
from tests.kit.environments import UV, Venv
from tests.kit.therock.checkout import TheRock
from tests.kit.therock.comparison import Comparison, Facts, Rule

BUILDER = "build_tools/build_python_packages.py"
TEMPLATES = "build_tools/packaging/python/templates"
OUR_DATA = "rocm_packaging/packages/packages.toml"

DEVELOPMENT = "rocm-sdk-devel"

VERSION = "7.99.0rc1"
TARGET = "gfx942"

# gfx94X is released for one platform alone.
LINUX_FAMILIES = ("gfx94X-dcgpu", "gfx110X-all")
WINDOWS_FAMILIES = ("gfx110X-all",)

COMPONENTS = ("lib", "run", "dbg", "dev", "doc", "test")
MARKERS = "share/markers"

# What profilers have besides: a package takes some of their folders, and leaves others.
PROFILER_FILES = {
    "rocprofiler-compute_run_generic": (
        "lib/rocprofiler-compute/settings.txt",
        "libexec/rocprofiler-compute/rocprof-compute",
        "share/doc/rocprofiler-compute/readme.txt",
        "share/unknown/rocprofiler/readme.txt",
    ),
    "rocprofiler-systems_lib_generic": (
        "include/rocprofiler-systems/categories.h",
        "lib/cmake/rocprofiler-systems/config.cmake",
        "lib/python/site-packages/rocprofsys/user.txt",
        "lib/rocprofiler-systems/settings.txt",
        "share/doc/rocprofiler-systems/readme.txt",
    ),
}

# A build's repository.
SUBMODULE = "rocm-systems"
SUBMODULE_ADDRESS = "https://git.example/rocm-systems.git"
SUBMODULE_COMMIT = "d134b78a4cf2b1a2e0a3e6d4a3a3f0d8a2b3c4d5"
SUBMODULES = f'[submodule "{SUBMODULE}"]\n\tpath = {SUBMODULE}\n\turl = {SUBMODULE_ADDRESS}\n'

# Versions of a device package that is installed beside others of VERSION.
DEVICE = f"rocm-sdk-device-{TARGET}"
DEVICE_VERSIONS = (VERSION, f"{VERSION}.post1", "7.99.0rc2")
DEVICE_FILE = f".kpack/blas_lib_{TARGET}.kpack"
DEVELOPMENT_FOLDER = "_rocm_sdk_devel"

# Folders of artifacts, as several kinds of builds name them.
ARTIFACT_NAMES = (
    "amd-llvm_lib_generic",
    "blas_lib_gfx942",
    "fft_lib_gfx950:xnack+",
    "host-blas_dev_generic",
    "rand_test_gfx94X-dcgpu",
)


# Packages of the same artifacts


@cache
def marked_artifacts(therock: TheRock) -> Path:
    """Return the sample's artifacts, with a file in each artifact of TheRock's that says its name."""
    sample = ensure_artifacts(therock.scratch / "artifacts", split=True)
    folder = Path(tempfile.mkdtemp(dir=therock.scratch)) / "artifacts"
    shutil.copytree(sample, folder, symlinks=True)
    for name, is_specific in therock.ask("topology").items():
        for component in COMPONENTS:
            add_file(folder / f"{name}_{component}_generic", f"{MARKERS}/{name}_{component}")
        if is_specific:
            add_file(folder / f"{name}_lib_{TARGET}", f"{MARKERS}/{name}_lib_{TARGET}")
    for name, paths in PROFILER_FILES.items():
        for path in paths:
            add_file(folder / name, path)
    launcher = folder / "rocprofiler-compute_run_generic" / "marked" / "stage" / "bin" / "rocprof-compute"
    launcher.parent.mkdir()
    launcher.symlink_to("../libexec/rocprofiler-compute/rocprof-compute")
    return folder


def add_file(artifact: Path, path: str) -> None:
    """Add a file to an artifact, in a stage of its own."""
    file = artifact / "marked" / "stage" / path
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(f"{artifact.name}\n", encoding="utf-8")

    manifest = artifact / artifacts.MANIFEST
    stages = manifest.read_text(encoding="utf-8").split() if manifest.is_file() else []
    if "marked/stage" not in stages:
        manifest.write_text("\n".join([*stages, "marked/stage", ""]), encoding="utf-8")


@cache
def upstream_packages(therock: TheRock) -> Path:
    """Return the folder of the packages that TheRock's builder makes."""
    folder = Path(tempfile.mkdtemp(dir=therock.scratch))
    therock.ask(
        "build_packages",
        artifacts=marked_artifacts(therock),
        output=folder,
        version=VERSION,
        linux=",".join(LINUX_FAMILIES),
        windows=",".join(WINDOWS_FAMILIES),
    )
    return folder / "dist"


@cache
def our_packages(therock: TheRock) -> Path:
    """Return the folder of the packages that this project makes."""
    folder = Path(tempfile.mkdtemp(dir=therock.scratch))
    request = BuildRequest(
        artifact_dir=marked_artifacts(therock),
        output_dir=folder,
        version=VERSION,
        linux_families=LINUX_FAMILIES,
        windows_families=WINDOWS_FAMILIES,
    )
    build(request)
    return folder


def wheels_in(folder: Path) -> Iterator[tuple[str, zipfile.ZipFile]]:
    """Yield each wheel of a folder, after the name of its distribution."""
    for path in sorted(folder.glob("*.whl")):
        with zipfile.ZipFile(path) as wheel:
            yield canonicalize_name(path.name.partition("-")[0]), wheel


def read_member(wheel: zipfile.ZipFile, name: str) -> str:
    """Return the text of a file in a wheel's `.dist-info`; empty where it has none."""
    for member in wheel.namelist():
        if member.endswith(f".dist-info/{name}"):
            return wheel.read(member).decode()
    return ""


# What a package is read as


def files_of(folder: Path) -> Facts:
    """Return the files of each package that programs see, and those of the development tree alone."""
    files: dict[str, set[str]] = {}
    for name, wheel in wheels_in(folder):
        files[name] = set()
        for member in wheel.namelist():
            if member.startswith("_rocm_") and not is_builders(member):
                files[name].add(member.partition("/")[2])

    runtime_files: set[str] = set()
    for name in files.keys() - {DEVELOPMENT}:
        runtime_files |= files[name]
    files[DEVELOPMENT] |= set(packed_paths(folder)) - {"__init__.py"}
    files[DEVELOPMENT] -= runtime_files
    return files


def is_builders(member: str) -> bool:
    """Return whether a file is none of the artifacts', but one that the builder writes of itself."""
    return member.endswith("/__init__.py") or "/.devel_links/" in member


def packed_paths(folder: Path) -> Iterator[str]:
    """Yield the paths below the development tree that its package has in an archive."""
    (path,) = folder.glob("rocm_sdk_devel-*.whl")
    with zipfile.ZipFile(path) as wheel, wheel.open("rocm_sdk_devel/_devel.tar") as packed:
        content = io.BytesIO(packed.read())
    with tarfile.open(fileobj=content) as archive:
        for member in archive:
            if not member.isdir():
                yield member.name.partition("/")[2]


def requirements_of(folder: Path) -> Facts:
    """Return what each wheel requires, and its extras."""
    requirements: dict[str, Sequence[str]] = {}
    for name, wheel in wheels_in(folder):
        metadata = email.message_from_string(read_member(wheel, "METADATA"))
        lines = [str(Requirement(line)) for line in metadata.get_all("Requires-Dist", [])]
        requirements[name] = [*lines, *metadata.get_all("Provides-Extra", [])]
    return requirements


def search_paths_of(folder: Path) -> Facts:
    """Return where the libraries of each package look for others, from `site-packages`."""
    search_paths: dict[str, set[str]] = {}
    for name, wheel in wheels_in(folder):
        for member in wheel.namelist():
            if ".so" not in PurePosixPath(member).name:
                continue
            library = elf.read_needs(io.BytesIO(wheel.read(member)), member)
            for path in library.rpath if library is not None else ():
                place = path.replace("$ORIGIN", posixpath.dirname(member))
                search_paths.setdefault(name, set()).add(posixpath.normpath(place))
    return search_paths


def device_links_of(folder: Path) -> Facts:
    """Return the links by which device code gets into the development tree."""
    links: dict[str, Sequence[str]] = {}
    for name, wheel in wheels_in(folder):
        for member in wheel.namelist():
            if "/.devel_links/" in member:
                document = json.loads(wheel.read(member))
                rows = [f"{link['relpath']} -> {link['target']}" for link in document["links"]]
                links[name] = [f"version {document['version']}", *rows]
    return links


# Comparisons


def compare_packages(therock: TheRock, read: Callable[[Path], Facts]) -> Comparison:
    """Compare what both builders' packages are read as."""
    return Comparison(upstream=read(upstream_packages(therock)), downstream=read(our_packages(therock)))


def compare_meta_package(therock: TheRock) -> Comparison:
    """Compare what `rocm` requires on a machine with a GPU, by extra."""
    return Comparison(
        upstream=meta_requirements(therock, upstream_packages(therock)),
        downstream=meta_requirements(therock, our_packages(therock)),
    )


def meta_requirements(therock: TheRock, folder: Path) -> Facts:
    """Return what the sdist of `rocm` requires, by extra and platform."""
    unpacked = Path(tempfile.mkdtemp(dir=therock.scratch))
    with tarfile.open(folder / f"rocm-{VERSION}.tar.gz") as sdist:
        sdist.extractall(unpacked, filter="data")
    text = therock.ask("sdist_requirements", folder=unpacked / f"rocm-{VERSION}", target=TARGET)

    requirements: dict[str, list[str]] = {}
    section = "of every installation"
    for line in filter(None, text.splitlines()):
        if line.startswith("["):
            section = line
        else:
            requirements.setdefault(section, []).append(line)
    return requirements


def compare_post_releases(therock: TheRock) -> Comparison:
    """Compare which versions of a device package are linked into a development tree."""
    return Comparison(
        upstream=linked_versions(therock, upstream_packages(therock)),
        downstream=linked_versions(therock, our_packages(therock)),
    )


def linked_versions(therock: TheRock, folder: Path) -> Facts:
    """Return whether the development tree of one version gets device code of others, or is refused."""
    linked: dict[str, str] = {}
    for version in DEVICE_VERSIONS:
        venv = install_packages(therock, folder, device_version=version)
        environment = process.handed_on(ROCM_SDK_TARGET_FAMILY=TARGET)
        expansion = process.capture([venv.python, "-m", "rocm_sdk", "init"], env=environment, check=False)
        if expansion.returncode != 0:
            linked[version] = "refused"
        elif (venv.site / DEVELOPMENT_FOLDER / DEVICE_FILE).exists():
            linked[version] = "linked"
        else:
            linked[version] = "not linked"
    return linked


def install_packages(therock: TheRock, folder: Path, *, device_version: str) -> Venv:
    """Unpack packages into an environment, with device code of a version."""
    venv = Venv(root=Path(tempfile.mkdtemp(dir=therock.scratch)) / "venv")
    process.capture([UV, "venv", "--quiet", "--python", therock.venv.python, venv.root])
    with tarfile.open(folder / f"rocm-{VERSION}.tar.gz") as sdist:
        sdist.extractall(venv.root, filter="data")
    shutil.move(venv.root / f"rocm-{VERSION}" / "src" / "rocm_sdk", venv.site)

    for distribution, wheel in wheels_in(folder):
        if distribution == DEVICE:
            unpack_device(wheel, venv.site, device_version)
        elif "-device-" not in distribution:
            wheel.extractall(venv.site)  # noqa: S202 - a wheel that this test built
    return venv


def unpack_device(wheel: zipfile.ZipFile, site: Path, version: str) -> None:
    """Unpack a device package as one of another version."""
    for member in wheel.namelist():
        content = wheel.read(member)
        if ".dist-info/" in member or "/.devel_links/" in member:
            content = content.replace(VERSION.encode(), version.encode())
        path = site / member.replace(VERSION, version)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)


def compare_artifact_names(therock: TheRock) -> Comparison:
    """Compare what is read of the names of artifacts' folders."""
    folder = Path(tempfile.mkdtemp(dir=therock.scratch))
    for name in ARTIFACT_NAMES:
        add_file(folder / name, f"{MARKERS}/{name}")

    upstream = therock.ask("artifact_names", folder=folder)
    downstream: dict[str, Sequence[str]] = {}
    for artifact in artifacts.scan(folder):
        downstream[artifact.path.name] = f"{artifact.name} {artifact.component} {artifact.target}"
    return Comparison(upstream=upstream, downstream=downstream)


def compare_topology(therock: TheRock) -> Comparison:
    """Compare the artifacts that our packages take with those that there are."""
    data = packages()
    ours = {*data.devel.artifacts}
    for package in (data.core, data.libraries, data.device, data.profiler):
        ours |= {*package.artifacts, *package.only_lib, *package.with_headers, *package.required}
    upstream = ours & therock.ask("topology").keys()
    return Comparison(upstream={"artifacts": sorted(upstream)}, downstream={"artifacts": sorted(ours)})


def compare_programs(therock: TheRock) -> Comparison:
    """Compare the console scripts of packages, on any platform."""
    downstream = {"sdk-core": [*packages().programs], "profiler": [*packages().profiler_programs]}
    upstream: dict[str, Sequence[str]] = {}
    for name in downstream:
        upstream[name] = therock.find(
            r"^\s+\"([\w+.-]+)=rocm_\w+\._cli:", f"{TEMPLATES}/rocm-{name}/setup.py"
        )
    return Comparison(upstream=upstream, downstream=downstream)


def compare_libraries(therock: TheRock) -> Comparison:
    """Compare the libraries that programs ask for by name: package, folder, and the file that each finds."""
    upstream: dict[str, str] = {}
    downstream: dict[str, str] = {}
    for name, library in therock.ask("libraries").items():
        for platform, folder in (("linux", library["folder"]), ("windows", "bin")):
            pattern = library[platform]
            if pattern:
                file = f"{folder}/{pattern.replace('.so*', '.so.7').replace('*', '')}"
                upstream[f"{name} on {platform}"] = f"{library['package']}: {file}"
                package = library["package"]
                found = name in libraries_in(package, [file], platform)
                downstream[f"{name} on {platform}"] = f"{package}: {file}" if found else "not found"

    for platform in PLATFORMS:
        for name in library_globs(platform):
            downstream.setdefault(f"{name} on {platform}", "found")
    return Comparison(upstream=upstream, downstream=downstream)


def compare_manifest(therock: TheRock) -> Comparison:
    """Compare what a build says of itself with what is read of that."""
    repository = repos.init_repository(Path(tempfile.mkdtemp(dir=therock.scratch)) / "TheRock")
    repos.write_files(
        repository, {".gitmodules": SUBMODULES, "flags.json": '{"KPACK_SPLIT_ARTIFACTS": true}'}
    )
    repos.run_git(repository, "add", "--all")
    link = f"160000,{SUBMODULE_COMMIT},{SUBMODULE}"
    repos.run_git(repository, "update-index", "--add", "--cacheinfo", link)
    repos.run_git(repository, "commit", "--quiet", "--message", "TheRock")

    manifest = therock.ask(
        "build_manifest", repository=repository, version=VERSION, flags=str(repository / "flags.json")
    )
    upstream = {
        "split": "True",
        "version": "7.99.0",
        "commit": repos.run_git(repository, "rev-parse", "HEAD"),
        SUBMODULE: f"{SUBMODULE_ADDRESS} {SUBMODULE_COMMIT}",
    }
    return Comparison(upstream=upstream, downstream=read_manifest(manifest, repository.parent))


def read_manifest(manifest: Mapping[str, object], folder: Path) -> Facts:
    """Return what this project reads of a manifest: in artifacts, and in an installed package."""
    name = "base_lib_generic"
    add_file(folder / "artifacts" / name, f"{MARKERS}/{name}")
    texts = {"therock_manifest.json": json.dumps(manifest), "dist_info.json": "{}"}
    repos.write_files(folder / "artifacts" / name / "base/aux-overlay/stage/share/therock", texts)
    repos.write_files(folder / "site/_rocm_sdk_core/share/therock", texts)

    info = artifacts.build_info(artifacts.scan(folder / "artifacts"))
    commits = commits_in(folder / "site")
    return {
        "split": str(info.split),
        "version": info.version,
        "commit": info.commit,
        **{name: " ".join(commits[name]) for name in commits if name != "TheRock"},
    }


RULES = (
    Rule(
        name="files of packages",
        upstream=BUILDER,
        downstream=OUR_DATA,
        compare=partial(compare_packages, read=files_of),
    ),
    Rule(
        name="requirements of packages",
        upstream=f"{TEMPLATES}/*/setup.py",
        downstream="rocm_packaging/packages/wheels.py",
        compare=partial(compare_packages, read=requirements_of),
    ),
    Rule(
        name="search paths of libraries",
        upstream=BUILDER,
        downstream=OUR_DATA,
        compare=partial(compare_packages, read=search_paths_of),
    ),
    Rule(
        name="links of device code",
        upstream="build_tools/_therock_utils/py_packaging.py",
        downstream="rocm_packaging/packages/wheels.py",
        compare=partial(compare_packages, read=device_links_of),
    ),
    Rule(
        name="extras of rocm",
        upstream=f"{TEMPLATES}/rocm/src/rocm_sdk/_dist_info.py",
        downstream="rocm_packaging/templates/dist_info.py",
        compare=compare_meta_package,
    ),
    Rule(
        name="post-releases",
        upstream=f"{TEMPLATES}/rocm/src/rocm_sdk/_devel.py",
        downstream="rocm_packaging/templates/rocm/src/rocm_sdk",
        compare=compare_post_releases,
    ),
    Rule(
        name="names of artifacts",
        upstream="build_tools/_therock_utils/artifacts.py",
        downstream="rocm_packaging/artifacts.py",
        compare=compare_artifact_names,
    ),
    Rule(name="artifacts", upstream="BUILD_TOPOLOGY.toml", downstream=OUR_DATA, compare=compare_topology),
    Rule(
        name="programs",
        upstream=f"{TEMPLATES}/*/setup.py",
        downstream=OUR_DATA,
        compare=compare_programs,
    ),
    Rule(
        name="names of libraries",
        upstream=f"{TEMPLATES}/rocm/src/rocm_sdk/_dist_info.py",
        downstream="rocm_packaging/templates/dist_info.py",
        compare=compare_libraries,
    ),
    Rule(
        name="manifest of a build",
        upstream="build_tools/generate_therock_manifest.py",
        downstream="rocm_packaging/artifacts.py, ci/bisection/differences.py",
        compare=compare_manifest,
    ),
)
