"""Installing a run's wheels for a user: exact files, ours from their source and others' from elsewhere.

The environment is made where there is none and used where there is one; no other folder is wiped.

`pip install torch` of split packages installs, imports, and fails at its first kernel. So what is requested
without an extra ``device-…`` comes with the device packages of this machine's GPUs, or of the GPU family.
"""

import json
import re
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from packaging.requirements import InvalidRequirement, Requirement
from packaging.utils import canonicalize_name
from packaging.version import Version

from ci.install.dependencies import mirror
from core import console, files, process
from core.cli.options import Common
from core.env import Interpreter, installed, installer, interpreter
from core.env.installer import Install, Sources, configured
from core.errors import EnvironmentSetupError, MissingInputError, ProcessError, UsageError, nearest
from core.families import detect, families, gpu_targets, parents
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
from core.parallel import map_in_threads
from core.run import Platform
from core.wheel.distributions import is_ours
from pytorch_build.test.installation import device_prefixes, require_device_code
from rocm_packaging.origin import require_devices, sdist_requirements
from rocm_packaging.packages import layouts

MARKER = "run-packages.json"
_EXTRA = "device-"
_CONFIGURATION = "pyvenv.cfg"  # what makes a folder a virtual environment (PEP 405)


@dataclass(frozen=True, kw_only=True)
class Devices:
    """The GPUs that packages are installed for."""

    family: str = ""
    targets: tuple[str, ...] = ()
    exact: bool = False

    def sdk_family(self, offers: Iterable[Candidate]) -> str:
        """Return the target of the `rocm` sdist: a GPU of split packages, else a family; "" for none."""
        held = [one for one in offers if layouts.is_rocm(one.distribution)]
        newest = max((Version(one.version) for one in held if one.distribution == "rocm"), default=None)
        names = [one.distribution for one in held if newest in {None, Version(one.version)}]
        if layouts.layout_of(names, where=f"ROCm {newest or ''} on offer") == "split":
            there = [one for one in self.targets if layouts.device_package(one) in names]
            if not there:
                require_devices(self.targets, names, where="What is on offer", version=str(newest))
            return layouts.sdk_target("split", self.family, there)
        known = self.family.split(";")
        return next((one for one in known if one and set(gpu_targets(one)) & set(self.targets)), known[0])

    def packages(self, chosen: Mapping[str, str], offers: Sequence[Candidate]) -> tuple[str, ...]:
        """Return the requirements of the device packages that chosen distributions lack."""
        found: list[str] = []
        for name, prefix in device_prefixes().items():
            version = chosen.get(name, "")
            held = [
                one
                for one in offers
                if version
                and one.distribution.startswith(prefix)
                and Version(one.version) == Version(version)
            ]
            there = {layouts.device_target(one.distribution) for one in held}
            absent = [one for one in self.targets if one not in there]
            if held and absent and (self.exact or len(absent) == len(self.targets)):
                raise MissingInputError(
                    f"There is no {prefix}{absent[0]} {version}, without which {name} fails at its first "
                    f"kernel; there is {', '.join(sorted(one.distribution for one in held))}.",
                    hint="Name targets that there are: --packages "
                    f"'{name if name != layouts.LIBRARIES else 'rocm'}[device-{min(there)}]'.",
                )
            found += [
                f"{one.distribution}=={one.version}"
                for one in held
                if layouts.covers(layouts.device_target(one.distribution), self.targets)
                and one.distribution not in chosen
            ]
        return tuple(sorted(set(found)))


def devices_for(requirements: Sequence[Requirement], gpu_family: str, *, here: bool = True) -> Devices:
    """Decide for which GPUs packages are installed: those that are named, this machine's, or the family's."""
    members = ";".join(one for one in re.split(r"[;,]\s*", gpu_family) if one in families())
    extras = [word for one in requirements for word in one.extras]
    names = [canonicalize_name(one.name) for one in requirements]
    words = [*extras, *(f"{_EXTRA}{gpu}" for name in names if (gpu := layouts.device_target(name)))]
    gpus = detect() if here and "device-all" not in words else ()
    chosen = (word.removeprefix(_EXTRA) for word in words if word.startswith(_EXTRA))
    if named := tuple(sorted(gpu for gpu in chosen if gpu in families())):
        return Devices(family=members, targets=named, exact=True)
    targets = layouts.tested_targets(members, gpus) if members else gpus
    return Devices(family=members, targets=targets, exact=bool(set(targets) & set(gpus)))


def known_offers(
    source: PackageSource, requirements: Sequence[Requirement], devices: Devices
) -> tuple[Candidate, ...]:
    """List what a source offers; of an index, which lists nothing by itself, what is requested."""
    if not source.index_urls:
        return source.listed
    families = devices.family.split(";") if devices.family else ()
    names = {canonicalize_name(one.name) for one in requirements} | {"rocm", layouts.LIBRARIES}
    names |= {f"{layouts.LIBRARIES}-{canonicalize_name(one)}" for one in families}
    gpus = {gpu for one in devices.targets for gpu in (one, *parents(one))}
    names |= {f"{prefix}{gpu}" for prefix in device_prefixes().values() for gpu in gpus}
    found = map_in_threads(source.candidates, sorted(name for name in names if is_ours(name)))
    return tuple(dict.fromkeys(one for offers in found for one in offers))


@dataclass(frozen=True, kw_only=True)
class Wanted:
    """What is to be installed."""

    requirements: tuple[str, ...]
    source: PackageSource
    offers: tuple[Candidate, ...]
    devices: Devices = field(default_factory=Devices)
    platform: Platform = "linux"
    pre: bool = False
    cache_dir: Path | None = None
    locks: Path


def wanted_of(
    common: Common,
    source: PackageSource,
    requirements: Sequence[Requirement],
    family: str,
    python: Interpreter,
) -> Wanted:
    """Find what a source offers of requirements for a Python and a GPU family; none is an error."""
    devices = devices_for(requirements, family)
    known = known_offers(source, requirements, devices)
    offers = tuple(candidate for candidate in known if candidate.fits(python.tag))
    if not known:
        raise source.missing_error("wheel or sdist of ours")
    if not offers:
        there = sorted({one.name.split("-")[-2] for one in known if one.name.endswith(".whl")})
        raise MissingInputError(
            f"Of the {len(known)} files at {source.description} none is for Python {python.series}.",
            hint=f"They are for {', '.join(there)}: choose another Python with --python.",
        )
    console.say(f"{source.description}: {console.counted(len(offers), 'file')} for Python {python.series}")
    return Wanted(
        requirements=tuple(map(str, requirements)),
        source=source,
        offers=offers,
        devices=devices,
        platform=common.platform,
        locks=common.cache / "locks",
    )


@dataclass(frozen=True, kw_only=True)
class Chosen:
    """What was chosen: our files, and others' distributions."""

    ours: tuple[Candidate, ...]
    theirs: tuple[ResolvedPackage, ...]


def parse_requirements(words: Sequence[str]) -> tuple[Requirement, ...]:
    """Read requirements as users write them: in one word or several, separated by spaces."""
    found = []
    for word in (part for one in words for part in one.split()):
        try:
            found.append(Requirement(word))
        except InvalidRequirement as problem:
            raise UsageError(
                f"--packages: {word!r} is not a requirement.",
                hint="Write them as in --packages 'rocm[libraries,devel]==7.1 torch', without spaces inside.",
            ) from problem
    if not found:
        raise UsageError("--packages is empty.", hint="Name packages: --packages 'rocm[libraries] torch'.")
    return tuple(found)


def pinned(requirement: Requirement, offers: Sequence[Candidate], *, newest: bool = False) -> str:
    """Pin a requirement to the version on offer; one of another's distribution stays as it is."""
    name = canonicalize_name(requirement.name)
    offered = [one for one in offers if one.distribution == name]
    if not offered:
        if is_ours(name):
            known = nearest(name, [one.distribution for one in offers])
            raise MissingInputError(f"There is no {name} for this Python. {known}")
        return str(requirement)
    if requirement.url:
        raise UsageError(f"{requirement.name} is to come from the index, not from {requirement.url}.")
    fitting = sorted({Version(one.version) for one in offered if one.satisfies(requirement.specifier)})
    held = {Version(one.version): " (yanked)" if one.yanked else "" for one in offered}
    versions = ", ".join(f"{one}{held[one]}" for one in sorted(held))
    if not fitting:
        raise MissingInputError(f"There is no {requirement}, but {name} {versions}.")
    if len(fitting) > 1 and not newest:
        raise UsageError(
            f"The run has several versions of {name}: {versions}.",
            hint=f"Name one, such as {name}=={fitting[-1]}.",
        )
    extras = f"[{','.join(sorted(requirement.extras))}]" if requirement.extras else ""
    marker = f" ; {requirement.marker}" if requirement.marker else ""
    return f"{requirement.name}{extras}=={fitting[-1]}{marker}"


@contextmanager
def others_index(stored: StoredSource | None, url: str) -> Iterator[Sources | None]:
    """Yield the index of third-party packages: the one that is named, else the store's own."""
    cert = configured().cert
    if url or stored is None or stored.store.find(mirror().index_key) is None:
        yield Sources(index_url=url, cert=cert) if url else None
        return
    # a bucket without a server in front of it answers no folder's address
    folder = mirror().index_key.removesuffix("index.html")
    with store_address(stored.store, folder, {}) as base:
        yield Sources(index_url=f"{base}/{folder}", cert=cert)


def choose(wanted: Wanted, theirs: Sources | None, python: Interpreter) -> Chosen:
    """Choose files, ours and theirs, with the device packages of what is ours."""
    devices = wanted.devices

    def select(*device_packages: str) -> Selection:
        return choose_packages(
            wanted.source,
            (*wanted.requirements, *device_packages),
            python=python,
            platform=wanted.platform,
            sdist_requirements=sdist_requirements(wanted.source, devices.family, devices.targets),
        )

    ours = select()
    device_packages = devices.packages(ours.versions, wanted.offers)
    if device_packages:
        ours = select(*device_packages)

    query = query_for_others(python.executable, theirs, pre=wanted.pre, cache_dir=wanted.cache_dir)
    return Chosen(ours=ours.files, theirs=resolve_others(ours.others, list(ours.versions), query))


def install_chosen(
    target: Interpreter, wanted: Wanted, chosen: Chosen, ours: Sources, theirs: Sources | None
) -> None:
    """Install chosen files into an environment, each side's from its own side and by digest."""
    if not chosen.ours:
        console.warn("None of the packages is one of ours.")
    _forget_others(target, chosen)
    calls = []
    if any(not candidate.is_wheel for candidate in chosen.ours):
        calls.append(Install(requirements=("setuptools",), sources=theirs))
    if chosen.theirs:
        calls.append(call_for_others(wanted.locks, chosen.theirs, theirs))
    if chosen.ours:
        family = wanted.devices.sdk_family(wanted.offers)
        calls.append(call_for_ours(wanted.locks, chosen.ours, ours, gpu_family=family))
    with console.group(f"environment {target.prefix.name}"):
        for call in calls:
            installer.install(target, call, cache_dir=wanted.cache_dir)
    planned = {one.distribution: one.version for one in chosen.ours}
    installer.require_planned(target, planned)
    if strangers := installer.unplanned_packages(target, planned):
        console.warn(f"{target.prefix} also has {', '.join(strangers)}, which are not of this source.")
    files.write_json(target.prefix / MARKER, {one.distribution: one.sha256 for one in chosen.ours})
    installer.require_complete(target)
    devices = wanted.devices
    require_device_code(target, devices.targets if devices.exact else ())  # before the first kernel does


def _forget_others(target: Interpreter, chosen: Chosen) -> None:
    """Uninstall what an installer would keep by its version, although it was made of another file."""
    marker = target.prefix / MARKER
    known = json.loads(marker.read_text(encoding="utf-8")) if marker.is_file() else {}
    kept = {one.name for one in installed(target) if one.altered_file() is None} if known else set()
    other = [
        one.distribution
        for one in chosen.ours
        if known.get(one.distribution) != one.sha256 or one.distribution not in kept
    ]
    marker.unlink(missing_ok=True)
    if other:
        argv = [installer.uv_program(), "pip", "uninstall", "--no-config", "--quiet"]
        process.run([*argv, "--python", target.executable, *other], quiet=True)


@contextmanager
def environment(folder: Path, *, python: str = "", clean: bool = False) -> Iterator[Interpreter]:
    """Yield the environment of a folder, made first where it has to be, and hold its lock."""
    folder = folder.absolute()
    beside = folder.parent / f".{folder.name}"
    with files.locked(Path(f"{beside}.lock"), what=str(folder)), process.logged(Path(f"{beside}.log")):
        if target := _existing(folder, python, clean=clean):
            console.detail(f"environment {folder}: there already, Python {target.version}")
            yield target
            return
        installer.create_environment(folder, base_python(python), with_pip=True)
        yield _inspected(folder)


def planned(folder: Path, *, python: str = "", clean: bool = False) -> Interpreter:
    """Return the interpreter that an environment has or, where it is still to be made, is made from."""
    return _existing(folder.absolute(), python, clean=clean) or interpreter(base_python(python))


def _existing(folder: Path, python: str, *, clean: bool) -> Interpreter | None:
    """Return the environment that is there, of the Python that is named; None where it is to be made.

    A folder that holds anything but a virtual environment is refused: it would be lost.
    """
    is_environment = (folder / _CONFIGURATION).is_file()
    if folder.exists() and not is_environment and not (folder.is_dir() and not any(folder.iterdir())):
        raise EnvironmentSetupError(
            f"{folder} exists and is not a virtual environment; it is left alone.",
            hint="Name another folder, or remove this one yourself.",
        )
    if clean or not is_environment:
        return None
    target = _inspected(folder)
    wanted = interpreter(base_python(python)) if python else target
    if wanted.series != target.series:
        raise EnvironmentSetupError(
            f"{folder} is an environment of Python {target.series}, not of {wanted.series}.",
            hint="Make it anew with --clean, or name another folder.",
        )
    return target


def _inspected(folder: Path) -> Interpreter:
    # not from memory: another interpreter may have been there a moment ago
    windows = sys.platform == "win32"
    return interpreter.__wrapped__(folder / ("Scripts/python.exe" if windows else "bin/python"))


def base_python(python: str) -> Path:
    """Find an interpreter: a path, a version, or the one that runs this."""
    if not python:
        return Path(sys.executable)
    argv = [installer.uv_program(), "python", "find", "--no-config", "--no-project", "--system"]
    try:
        found = process.capture(
            [*argv, "--no-python-downloads", python], env=installer.installer_variables(Sources())
        ).stdout.strip()
    except ProcessError as problem:
        raise EnvironmentSetupError(
            f"There is no Python {python} on this machine: {problem.output}",
            hint="Install it, or give --python the path of an interpreter.",
        ) from problem
    return Path(found)
