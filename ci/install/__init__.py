"""Installing a run's wheels for a user: exact files, ours from their source and others' from elsewhere.

The environment is made where there is none and used where there is one; no other folder is wiped.
"""

import json
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from packaging.requirements import InvalidRequirement, Requirement
from packaging.utils import canonicalize_name
from packaging.version import Version

from ci.install.dependencies import mirror
from ci.install.devices import Devices, devices_for, known_candidates
from core import console, files, process
from core.cli.options import ROOT, Common
from core.env import Interpreter, installed, installer, interpreter
from core.env.installer import InstallerCall, Sources, configured_sources
from core.errors import (
    EnvironmentSetupError,
    MissingInputError,
    ProcessError,
    UsageError,
    WheelError,
    nearest,
)
from core.packages.candidates import Candidate
from core.packages.package_source import PackageSource, StoredSource
from core.packages.pages import store_address
from core.packages.resolution import (
    ResolvedPackage,
    call_for_others,
    call_for_ours,
    query_for_others,
    resolve_others,
)
from core.packages.search import Selection, choose_packages
from core.run import Platform
from core.wheel import parse_wheel_name
from core.wheel.distributions import NAMES_FILE, is_ours
from pytorch_build.test.installation import require_device_code
from rocm_packaging.origin import sdist_requirements

INSTALLED_FILE = "run-packages.json"
"""The file in an environment that says of which files its packages of ours were installed."""
_LOG_FILE = "setup_venv.log"
_CONFIGURATION = "pyvenv.cfg"  # what makes a folder a virtual environment (PEP 405)


@dataclass(frozen=True, kw_only=True)
class InstallRequest:
    """What is to be installed.

    Attributes:
        requirements: What the user requires, pinned where it is one of ours.
        source: Where our packages come from.
        candidates: What the source offers for the environment's Python.
        devices: The GPUs that the packages are for.
        platform: The environment's platform.
        pre: Whether pre-releases of others' packages are taken that nothing names.
        cache_dir: The installer's cache; None for its own.
        locks_folder: Where lists of exact files are written for the installer.
    """

    requirements: tuple[str, ...]
    source: PackageSource
    candidates: tuple[Candidate, ...]
    devices: Devices = field(default_factory=Devices)
    platform: Platform = "linux"
    pre: bool = False
    cache_dir: Path | None = None
    locks_folder: Path


@dataclass(frozen=True, kw_only=True)
class ChosenPackages:
    """The files of ours that are installed, and the distributions of others."""

    our_files: tuple[Candidate, ...]
    other_packages: tuple[ResolvedPackage, ...]


# --- What is requested -----------------------------------------------------------------------


def parse_requirements(texts: Sequence[str]) -> tuple[Requirement, ...]:
    """Return requirements as users write them: in one word or several, separated by spaces."""
    requirements: list[Requirement] = []
    for word in " ".join(texts).split():
        try:
            requirements.append(Requirement(word))
        except InvalidRequirement as problem:
            raise UsageError(
                f"--packages: {word!r} is not a requirement.",
                hint="Write them as in --packages 'rocm[libraries,devel]==7.1 torch', without spaces inside.",
            ) from problem
    if not requirements:
        raise UsageError("--packages is empty.", hint="Name packages: --packages 'rocm[libraries] torch'.")
    return tuple(requirements)


def request_packages(
    common: Common,
    source: PackageSource,
    requirements: Sequence[Requirement],
    family: str,
    python: Interpreter,
) -> InstallRequest:
    """Return what is to be installed of a source for a Python and a GPU family; no candidate is an error."""
    devices = devices_for(requirements, family)
    all_candidates = known_candidates(source, requirements, devices)
    if not all_candidates:
        raise source.missing_error("wheel or sdist of ours")
    candidates = tuple(candidate for candidate in all_candidates if candidate.fits(python.tag))
    if not candidates:
        raise _other_pythons_error(source, all_candidates, python)

    count = console.counted(len(candidates), "file")
    console.say(f"{source.description}: {count} for Python {python.series}")
    return InstallRequest(
        requirements=tuple(map(str, requirements)),
        source=source,
        candidates=candidates,
        devices=devices,
        platform=common.platform,
        locks_folder=common.cache / "locks",
    )


def _other_pythons_error(
    source: PackageSource,
    candidates: Sequence[Candidate],
    python: Interpreter,
) -> MissingInputError:
    """Return the error that names the Pythons which a source has wheels for."""
    tags: set[str] = set()
    for candidate in candidates:
        if candidate.is_wheel:
            tags.update(tag.abi for tag in parse_wheel_name(candidate.name).tags)
    return MissingInputError(
        f"Of the {len(candidates)} files at {source.description} none is for Python {python.series}.",
        hint=f"They are for {', '.join(sorted(tags))}: choose another Python with --python.",
    )


def pin_requirement(
    requirement: Requirement,
    candidates: Sequence[Candidate],
    *,
    takes_newest: bool = False,
) -> str:
    """Return a requirement of the version on offer; one of another's distribution stays as it is."""
    name = canonicalize_name(requirement.name)
    of_this_name = [candidate for candidate in candidates if candidate.distribution == name]
    if not of_this_name:
        if is_ours(name):
            suggestion = nearest(name, [candidate.distribution for candidate in candidates])
            raise MissingInputError(f"There is no {name} for this Python. {suggestion}")
        return str(requirement)
    if requirement.url:
        raise UsageError(f"{requirement.name} is to come from the index, not from {requirement.url}.")

    versions: set[Version] = set()
    for candidate in of_this_name:
        if candidate.satisfies(requirement.specifier):
            versions.add(Version(candidate.version))
    listing = _list_versions(of_this_name)
    if not versions:
        raise MissingInputError(f"There is no {requirement}, but {name} {listing}.")
    newest_version = max(versions)
    if len(versions) > 1 and not takes_newest:
        raise UsageError(
            f"The run has several versions of {name}: {listing}.",
            hint=f"Name one, such as {name}=={newest_version}.",
        )

    extras = ",".join(sorted(requirement.extras))
    extras_in_brackets = f"[{extras}]" if extras else ""
    pin = f"{requirement.name}{extras_in_brackets}=={newest_version}"
    if requirement.marker is None:
        return pin
    return f"{pin} ; {requirement.marker}"


def _list_versions(candidates: Sequence[Candidate]) -> str:
    """Return the versions of candidates as an error names them, oldest first."""
    notes: dict[Version, str] = {}
    for candidate in candidates:
        notes[Version(candidate.version)] = " (yanked)" if candidate.yanked else ""
    return ", ".join(f"{version}{notes[version]}" for version in sorted(notes))


# --- What is chosen --------------------------------------------------------------------------


@contextmanager
def opened_dependency_index(stored_source: StoredSource | None, *, url: str = "") -> Iterator[Sources | None]:
    """Yield the index of third-party packages: the one that is named, else the store's; None for neither."""
    cert = configured_sources().cert
    if url:
        yield Sources(index_url=url, cert=cert)
        return
    if stored_source is None or stored_source.store.find(mirror().index_key) is None:
        yield None
        return

    # A bucket without a server in front of it answers no folder's address.
    folder = mirror().index_key.removesuffix("index.html")
    with store_address(stored_source.store, folder, pages={}) as address:
        yield Sources(index_url=f"{address}/{folder}", cert=cert)


def choose(
    request: InstallRequest,
    dependency_index: Sources | None,
    python: Interpreter,
) -> ChosenPackages:
    """Choose files of ours, with the device packages of what is chosen, and distributions of others."""
    selection = _select_ours(request, python)
    device_packages = request.devices.packages(selection.versions, request.candidates)
    if device_packages:
        selection = _select_ours(request, python, device_packages)
    _require_our_names(request, selection)

    query = query_for_others(
        python.executable,
        dependency_index,
        pre=request.pre,
        cache_dir=request.cache_dir,
    )
    other_packages = resolve_others(selection.others, list(selection.versions), query)
    return ChosenPackages(our_files=selection.files, other_packages=other_packages)


def _select_ours(
    request: InstallRequest,
    python: Interpreter,
    device_packages: Sequence[str] = (),
) -> Selection:
    devices = request.devices
    return choose_packages(
        request.source,
        (*request.requirements, *device_packages),
        python=python,
        platform=request.platform,
        sdist_requirements=sdist_requirements(request.source, devices.family, devices.targets),
    )


def _require_our_names(request: InstallRequest, selection: Selection) -> None:
    """Refuse what the source has under a name that is not one of ours.

    It would be taken from the index of third-party packages, where that name is a stranger's.
    """
    offered_names = {candidate.distribution for candidate in request.candidates}
    for requirement in map(Requirement, selection.others):
        name = canonicalize_name(requirement.name)
        if name in offered_names:
            raise WheelError(
                f"{name} is at {request.source.description}, and is not one of our names: "
                "installers would take it from the index of third-party packages.",
                hint=f"Add the name to {NAMES_FILE.relative_to(ROOT)}.",
            )


# --- The installation ------------------------------------------------------------------------


def install_chosen(
    target: Interpreter,
    request: InstallRequest,
    chosen: ChosenPackages,
    our_sources: Sources,
    dependency_index: Sources | None,
) -> None:
    """Install chosen files into an environment, each side's from its own side and by digest."""
    if not chosen.our_files:
        console.warn("None of the packages is one of ours.")
    _uninstall_other_files(target, chosen.our_files)
    calls = _installer_calls(request, chosen, our_sources, dependency_index)
    with console.group(f"environment {target.prefix.name}"):
        for call in calls:
            installer.install(target, call, cache_dir=request.cache_dir)

    versions = {file.distribution: file.version for file in chosen.our_files}
    installer.require_planned(target, versions)
    strangers = installer.unplanned_packages(target, versions)
    if strangers:
        console.warn(f"{target.prefix} also has {', '.join(strangers)}, which are not of this source.")
    digests = {file.distribution: file.sha256 for file in chosen.our_files}
    files.write_json(target.prefix / INSTALLED_FILE, digests)
    installer.require_complete(target)
    # What lacks device code is told here, and not by the first kernel.
    require_device_code(target, request.devices.targets if request.devices.exact else ())


def _installer_calls(
    request: InstallRequest,
    chosen: ChosenPackages,
    our_sources: Sources,
    dependency_index: Sources | None,
) -> Sequence[InstallerCall]:
    """Return the installer's calls in their order: what builds sdists, others' packages, and ours."""
    calls: list[InstallerCall] = []
    if any(not file.is_wheel for file in chosen.our_files):
        calls.append(InstallerCall(requirements=("setuptools",), sources=dependency_index))
    if chosen.other_packages:
        calls.append(call_for_others(request.locks_folder, chosen.other_packages, dependency_index))
    if chosen.our_files:
        family = request.devices.sdk_family(request.candidates)
        calls.append(call_for_ours(request.locks_folder, chosen.our_files, our_sources, gpu_family=family))
    return calls


def _uninstall_other_files(target: Interpreter, our_files: Sequence[Candidate]) -> None:
    """Uninstall what an installer would keep by its version, although it was made of another file."""
    installed_file = target.prefix / INSTALLED_FILE
    digests: Mapping[str, str] = {}
    intact_names: set[str] = set()
    if installed_file.is_file():
        digests = json.loads(installed_file.read_text(encoding="utf-8"))
        for distribution in installed(target):
            if distribution.altered_file() is None:
                intact_names.add(distribution.name)

    outdated_names: list[str] = []
    for file in our_files:
        is_same_file = digests.get(file.distribution) == file.sha256
        if not is_same_file or file.distribution not in intact_names:
            outdated_names.append(file.distribution)
    installed_file.unlink(missing_ok=True)
    if outdated_names:
        command = [installer.uv_program(), "pip", "uninstall", "--no-config", "--quiet"]
        process.run([*command, "--python", target.executable, *outdated_names], quiet=True)


# --- Environments ----------------------------------------------------------------------------


@contextmanager
def environment(
    folder: Path,
    *,
    python: str | None = None,
    clean: bool = False,
) -> Iterator[Interpreter]:
    """Yield the environment of a folder, made first where it has to be, for this process alone.

    What its installer says is in the environment's own log.
    """
    folder = folder.absolute()
    with files.machine_lock(str(folder)):
        target = _existing_environment(folder, python, clean=clean)
        if target is None:
            installer.create_environment(folder, base_python(python), with_pip=True)
            target = _inspect(folder)
        else:
            console.detail(f"environment {folder}: there already, Python {target.version}")
        with process.logged(folder / _LOG_FILE):
            yield target


def planned(
    folder: Path,
    *,
    python: str | None = None,
    clean: bool = False,
) -> Interpreter:
    """Return the interpreter that an environment has or, where it is still to be made, is made from."""
    target = _existing_environment(folder.absolute(), python, clean=clean)
    if target is None:
        return interpreter(base_python(python))
    return target


def _existing_environment(
    folder: Path,
    python: str | None,
    *,
    clean: bool,
) -> Interpreter | None:
    """Return the environment that is there, of the Python that is named; None where it is to be made.

    A folder that holds anything but a virtual environment is refused: it would be lost.
    """
    is_environment = (folder / _CONFIGURATION).is_file()
    is_empty_folder = folder.is_dir() and not any(folder.iterdir())
    if folder.exists() and not is_environment and not is_empty_folder:
        raise EnvironmentSetupError(
            f"{folder} exists and is not a virtual environment; it is left alone.",
            hint="Name another folder, or remove this one yourself.",
        )
    if clean or not is_environment:
        return None

    target = _inspect(folder)
    if python:
        series = interpreter(base_python(python)).series
        if series != target.series:
            raise EnvironmentSetupError(
                f"{folder} is an environment of Python {target.series}, not of {series}.",
                hint="Make it anew with --clean, or name another folder.",
            )
    return target


def _inspect(folder: Path) -> Interpreter:
    program = "Scripts/python.exe" if sys.platform == "win32" else "bin/python"
    # Not from memory: another interpreter may have been there a moment ago.
    return interpreter.__wrapped__(folder / program)


def base_python(python: str | None) -> Path:
    """Return the path of an interpreter that is named by its path or version, by default of this one."""
    if not python:
        return Path(sys.executable)
    command = [installer.uv_program(), "python", "find", "--no-config", "--no-project", "--system"]
    try:
        completed = process.capture(
            [*command, "--no-python-downloads", python], env=installer.installer_variables(Sources())
        )
    except ProcessError as problem:
        raise EnvironmentSetupError(
            f"There is no Python {python} on this machine: {problem.output}",
            hint="Install it, or give --python the path of an interpreter.",
        ) from problem
    return Path(completed.stdout.strip())
