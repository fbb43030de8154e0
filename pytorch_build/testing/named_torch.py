"""Torch from sources that a person named: resolved into exact files first, then installed by digest."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from packaging.utils import canonicalize_name, parse_sdist_filename, parse_wheel_filename

from core import console, installer, locks, resolving
from core.errors import DataError, EnvironmentSetupError, MissingInputError, ProcessError
from core.installer import Install, Sources, configured, pinned
from core.named_sources import alone
from core.resolving import Question
from pytorch_build.testing.devices import PREFIXES, told_to_sdist
from rocm_packaging.layouts import BOOTSTRAP, LIBRARIES, device_package, device_target, is_rocm, sdk_target
from rocm_packaging.sources import RocmSource, with_layout

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from core.interpreters import Interpreter
    from core.resolving import Resolved
    from rocm_packaging.layouts import Layout

_BUILT_WITH = ("rocm",)  # sdists that are built with what the tests' lock has
_DEVICE = r"((?:amd|rocm)-[a-z-]+-device-gfx[0-9a-z-]+)"
# how uv says that a source has none of it, or none of the version
_ABSENT = re.compile(rf"no versions? of {_DEVICE}|only {_DEVICE}\S* is available|{_DEVICE} was not found")


@dataclass(frozen=True, kw_only=True)
class Named:
    """Sources of our wheels that a person named.

    Attributes:
        index_urls: Indexes.
        find_links: Folders and flat pages.
        version: The version of torch; "" for the newest that they have.
    """

    index_urls: tuple[str, ...] = ()
    find_links: tuple[str, ...] = ()
    version: str = ""

    @property
    def words(self) -> str:
        """The sources in words."""
        return ", ".join((*self.index_urls, *self.find_links))

    @property
    def sources(self) -> Sources:
        """These sources alone."""
        return alone(self.index_urls, self.find_links, cert=configured().cert)

    def rocm(self, version: str) -> RocmSource:
        """Return them as where ROCm of a version comes from."""
        return RocmSource(
            version=version, index_urls=self.index_urls, find_links=self.find_links, origin=self.words
        )

    @property
    def beside_own(self) -> Sources:
        """These sources and the person's own, which third parties' packages come from."""
        own = configured()
        return Sources(
            index_url=own.index_url,
            extra_index_urls=(*self.index_urls, *own.extra_index_urls),
            find_links=(*self.find_links, *own.find_links),
            no_index=own.no_index and not self.index_urls,
            cert=own.cert,
        )

    def holds(self, address: str) -> bool:
        """Say whether a file's address is one of these sources'."""
        hosts = {_host(one) for one in (*self.index_urls, *self.find_links) if "://" in one}
        folders = [one.rstrip("/") + "/" for one in self.find_links if "://" not in one]
        path = address.removeprefix("file://")
        return _host(address) in hosts if _host(address) else any(path.startswith(one) for one in folders)


def _host(address: str) -> str:
    scheme, separator, rest = address.partition("://")
    return rest.partition("/")[0].rpartition("@")[2].lower() if separator and scheme != "file" else ""


def newest_torch(named: Named, target: Interpreter) -> str:
    """Ask named sources for their newest torch for a Python.

    Raises:
        MissingInputError: They have none, or do not answer.
    """
    try:
        version = installer.newest("torch", named.sources, python=target.version)
    except ProcessError as problem:
        raise MissingInputError(
            f"No torch for Python {target.series} was found at {named.words}.",
            hint="Name other sources (--find-links, --index-url, --index-subdir), or another Python (-P).",
        ) from problem
    except DataError as problem:
        raise MissingInputError(
            f"{named.words} did not say which torch it has.", hint="Give --torch-version."
        ) from problem
    console.say(f"torch {version} (the newest at {named.words})")
    return version


def resolved(
    named: Named,
    target: Interpreter,
    *,
    gpu_family: str,
    targets: Sequence[str] = (),
    constraints: Sequence[str] = (),
) -> Sequence[Resolved]:
    """Resolve torch from named sources, and what it requires from the person's own, too.

    Args:
        named: The sources, with the version.
        target: The environment's interpreter.
        gpu_family: The family that the sdist of `rocm` is to require; "" for none.
        targets: The gfx targets whose device packages are installed, of split packages.
        constraints: Versions that hold where something is required at all.

    Raises:
        EnvironmentSetupError: It cannot be satisfied, or a package of ours would come from elsewhere.
        RocmError: The sources have ROCm packages of both layouts.
    """
    first, *others = _layouts(named, gpu_family)
    own = _own_bootstrap(named, target) if first == "split" else ()

    def asked(layout: Layout) -> Sequence[Resolved]:
        # an extra that a fat wheel lacks asks for nothing
        extras = ",".join(f"device-{one}" for one in targets) if layout == "split" else ""
        question = Question(
            requirements=(f"torch[{extras}]=={named.version}" if extras else f"torch=={named.version}",),
            constraints=(*constraints, *(f"{one.name}=={one.version}" for one in own)),
            sources=named.beside_own,
            python=target.executable,
            pre_names=("torch", "triton", "pytorch-triton-rocm", *_BUILT_WITH, *_devices(targets)),
            gpu_family=sdk_target(layout, gpu_family, targets),
        )
        return _with_devices(question, targets if layout == "split" else ())

    try:
        found = asked(first)
    except EnvironmentSetupError as problem:
        if not others:
            raise _explained(problem, named) from problem
        found = asked(others[0])  # this torch may be of the other layout's time
    rocm = next((one.version for one in found if one.name == "rocm"), "")
    if others and rocm:
        with_layout(named.rocm(rocm), gpu_family)  # refuses both layouts of one version
    found = [next((mine for mine in own if mine.name == one.name), one) for one in found]
    for one in found:
        strange = [file.url for file in one.files if is_ours(one.name) and not named.holds(file.url)]
        if strange:
            raise EnvironmentSetupError(
                f"{one.name} {one.version} would be taken from {strange[0]}, not from {named.words}.",
                hint="Name the source that has it, too: --find-links or --index-url, which may be repeated.",
            )
    return found


def _layouts(named: Named, gpu_family: str) -> Sequence[Layout]:
    """Return the layouts of ROCm's packages that sources have in any version; split, the newer one, first."""
    if not gpu_family:
        return ("unsplit",)
    kinds: Mapping[Layout, Sequence[str]] = {
        "split": (LIBRARIES,),
        "unsplit": [f"{LIBRARIES}-{canonicalize_name(one)}" for one in gpu_family.split(";")],
    }
    found = [
        layout
        for layout, names in kinds.items()
        if any(installer.versions(name, named.sources) for name in names)
    ]
    return found or ("unsplit",)


def _own_bootstrap(named: Named, target: Interpreter) -> tuple[Resolved, ...]:
    """Resolve what TheRock's host wheels require from the sources alone: others have that name, too."""
    if not installer.versions(BOOTSTRAP, named.sources):
        return ()
    question = Question(requirements=(BOOTSTRAP,), sources=named.sources, python=target.executable, pre=True)
    return tuple(one for one in resolving.resolve(question) if one.name == BOOTSTRAP)


def _devices(targets: Sequence[str]) -> Sequence[str]:
    return [f"{prefix}{one}" for prefix in PREFIXES.values() for one in targets]


def _with_devices(question: Question, targets: Sequence[str]) -> Sequence[Resolved]:
    """Resolve; ask again for device packages of ROCm that a fat torch does not know of."""
    found = resolving.resolve(question)
    rocm = next((one.version for one in found if one.name == LIBRARIES), "")
    absent = {device_package(one) for one in targets} - {one.name for one in found}
    host = any(one.name.startswith(PREFIXES["torch"]) for one in found)
    if host or not (rocm and absent):
        return found
    more = tuple(f"{name}=={rocm}" for name in sorted(absent))
    return resolving.resolve(replace(question, requirements=(*question.requirements, *more)))


def _explained(problem: EnvironmentSetupError, named: Named) -> EnvironmentSetupError:
    """Name the device package that a source lacks, where that is why nothing could be resolved."""
    absent = _ABSENT.search(" ".join(problem.message.split()))
    if absent is None:
        return problem
    return EnvironmentSetupError(
        f"{named.words} has no {absent[absent.lastindex or 0]} of the version that torch {named.version} "
        "needs for its first kernel.",
        hint="Name a source that has it, too (--find-links, --index-url), or another GPU family "
        "(--gpu-family).\n" + problem.message,
    )


def is_ours(distribution: str) -> bool:
    """Return whether a distribution is one that this project builds."""
    known = {"torch", "torchaudio", "torchvision", "apex"}
    return distribution in known or is_rocm(distribution) or bool(device_target(distribution))


def digests_of(found: Sequence[Resolved], target: Interpreter) -> Mapping[str, str]:
    """Give our files of a resolution for a Python, by name, with their digests."""
    return {
        file.filename: file.sha256
        for one in found
        if is_ours(one.name)
        for file in one.files
        if _fits(file.filename, target)
    }


def _fits(filename: str, target: Interpreter) -> bool:
    if not filename.endswith(".whl"):
        parse_sdist_filename(filename)
        return True
    tags = parse_wheel_filename(filename)[3]
    return any(
        tag.interpreter.startswith("py3") or tag.interpreter == target.tag.removesuffix("t") for tag in tags
    )


def named_calls(
    found: Sequence[Resolved], named: Named, *, folder: Path, tools: Install, gpu_family: str
) -> Sequence[Install]:
    """Plan the installation of a resolution: test tools, then every file by its digest, ours from there.

    Args:
        found: The resolution.
        named: The sources.
        folder: Where the list of files is written.
        tools: Installs what the tests need.
        gpu_family: The family that the sdist of `rocm` is to require; "" for none.
    """
    told = told_to_sdist([one.name for one in found], gpu_family)
    calls = [tools]
    for ours, sources in ((False, named.beside_own), (True, named.sources)):
        lines = "".join(f"{one.pinned}\n" for one in found if is_ours(one.name) == ours)
        if lines:
            calls.append(pinned(locks.kept(folder, "named", lines), sources, gpu_family=told if ours else ""))
    return calls
