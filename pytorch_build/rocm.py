"""The ROCm environment of a build: where the packages come from, installed by name, asked what they are."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import quote

from packaging.utils import canonicalize_name

from core import distributions, process
from core.data import Model, load_toml
from core.errors import ProcessError, RocmError, UsageError, nearest
from core.installer import Install, Sources, configured
from rocm_packaging import versions

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from core.interpreters import Interpreter
    from core.options import Common

INDEXES_FILE = Path(__file__).with_name("rocm_indexes.toml")

_QUERY = """
import json, sys
import rocm_sdk
from rocm_sdk import _dist_info
json.dump({
    "version": rocm_sdk.__version__,
    "family": _dist_info.determine_target_family(),
}, sys.stdout)
"""


@dataclass(frozen=True, kw_only=True)
class RocmSource:
    """Where ROCm packages come from.

    Attributes:
        version: The exact version.
        index_urls: Indexes, the first in the place of the public one.
        find_links: Folders and flat pages.
        digests: File name to SHA-256, where the packages are a run's own outputs.
        origin: In words, for people.
    """

    version: str
    index_urls: tuple[str, ...] = ()
    find_links: tuple[str, ...] = ()
    digests: tuple[tuple[str, str], ...] = ()
    origin: str = ""

    @property
    def sources(self) -> Sources:
        """The installer's sources: nothing of ROCm may come from the person's own indexes.

        The public Python index holds placeholders named ``rocm``, ``rocm-sdk-core`` …
        """
        return Sources(
            index_url=self.index_urls[0] if self.index_urls else "",
            extra_index_urls=self.index_urls[1:],
            find_links=self.find_links,
            no_index=not self.index_urls,
            cert=configured().cert,
        )


@dataclass(frozen=True, kw_only=True)
class RocmSdk:
    """What an installed ``rocm_sdk`` says of itself.

    Attributes:
        version: Its version.
        root: The ROCm tree.
        bin: Its programs.
        cmake: Its CMake packages, for CMAKE_PREFIX_PATH.
        targets: The gfx targets or families that the distribution knows.
    """

    version: str
    root: Path
    bin: Path
    cmake: Path
    targets: tuple[str, ...]


class _Index(Model):
    url: str
    default: bool = False


class _IndexesFile(Model):
    indexes: dict[str, _Index]


def release_index_url(name: str, family: str) -> str:
    """Give the address of a release index for a family.

    Args:
        name: A name in `rocm_indexes.toml`; "" for the default one.
        family: The GPU family.

    Raises:
        UsageError: An unknown name.
    """
    indexes = load_toml(INDEXES_FILE, _IndexesFile).indexes
    chosen = name or next(key for key, index in indexes.items() if index.default)
    if chosen not in indexes:
        raise UsageError(f"Unknown ROCm index {chosen!r}. {nearest(chosen, indexes)}")
    return indexes[chosen].url.replace("{family}", quote(family))


def in_run(common: Common, artifact_group: str) -> RocmSource | None:
    """Find the ROCm packages that the run itself built, if it did.

    Raises:
        MissingInputError: The run lies in a store that this machine cannot give as a folder.
    """
    store, outputs = common.open_store(), common.outputs
    found = [one for one in distributions.in_run(store, outputs, artifact_group) if is_rocm(one.name)]
    sdists = [one for one in found if one.name == "rocm"]
    if not sdists:
        return None
    newest = sdists[-1]
    chosen = [one for one in found if one.version == newest.version]
    folders = {store.fetch(one.key, common.cache / "fetched" / outputs.prefix).parent for one in chosen}
    return RocmSource(
        version=str(newest.version),
        find_links=tuple(sorted(str(folder) for folder in folders)),
        digests=tuple((one.filename, store.digest(one.key)) for one in chosen),
        origin=f"this run's outputs ({store.url}/{outputs.python_prefix(artifact_group)})",
    )


def is_rocm(name: str) -> bool:
    """Say whether a normalised distribution name is one of ROCm's own packages."""
    return name in {"rocm", "rocm-profiler"} or name.startswith("rocm-sdk-")


def requirements(version: str, family: str, extras: Sequence[str] = ()) -> tuple[str, ...]:
    """Name every ROCm package of a build exactly, as a cached build of the sdist may be another family's.

    Args:
        version: The exact version.
        family: The GPU family.
        extras: More extras of ``rocm``, such as ``profiler`` or ``device-gfx942``.

    Raises:
        UsageError: Several families.
    """
    if ";" in family:
        raise UsageError(
            f"A build takes the ROCm of one GPU family, and {family} are several.",
            hint="Give one with --gpu-family, and further gfx targets with --pytorch-rocm-arch.",
        )
    names = ["rocm-sdk-core", f"rocm-sdk-libraries-{canonicalize_name(family)}", "rocm-sdk-devel"]
    names += ["rocm-profiler" if extra == "profiler" else f"rocm-sdk-{extra}" for extra in extras]
    return tuple(f"{name}=={version}" for name in ("rocm", *names))


def install_call(source: RocmSource, family: str, extras: Sequence[str] = ()) -> Install:
    """Plan the installation of ROCm for a family.

    Raises:
        UsageError: A version of unknown form, or several families.
    """
    versions.parse(source.version)
    return Install(
        requirements=requirements(source.version, family, extras),
        sources=source.sources,
        # every package is named, so nothing else can be drawn in from these sources
        dependencies=False,
        # setuptools comes from the build's own lock, and these sources need not have it
        build_isolation=False,
        pre=True,
        config_settings=(f"gpu-family={family}",),
        env={"ROCM_SDK_TARGET_FAMILY": family},
    )


def ask(target: Interpreter, *, version: str, family: str, env: Mapping[str, str]) -> RocmSdk:
    """Ask an installed ``rocm_sdk`` for its facts, and refuse empty or other ones.

    Args:
        target: The environment.
        version: What it must be.
        family: What it must be for.
        env: The environment to run it in.

    Raises:
        RocmError: It does not answer, or is of another version or family.
    """
    said = _python(target, env, "-c", _QUERY)
    try:
        facts = json.loads(said)
    except ValueError as problem:
        raise RocmError(f"rocm_sdk in {target.prefix} answered {said.strip()!r}.") from problem
    if facts["version"] != version:
        raise RocmError(
            f"rocm_sdk in {target.prefix} is {facts['version']}, not {version}.", hint="Use --force."
        )
    if facts["family"] != family:
        raise RocmError(
            f"rocm_sdk in {target.prefix} is for {facts['family']!r}, not {family!r}.",
            hint="A cached build of another family was installed: run the stage again with --force.",
        )
    targets = tuple(_python(target, env, "-m", "rocm_sdk", "targets").replace(";", " ").split())
    if not targets:
        raise RocmError(f"rocm_sdk in {target.prefix} names no GPU targets.")
    return RocmSdk(
        version=version,
        root=_path(target, env, "--root"),
        bin=_path(target, env, "--bin"),
        cmake=_path(target, env, "--cmake"),
        targets=targets,
    )


def _path(target: Interpreter, env: Mapping[str, str], which: str) -> Path:
    answer = _python(target, env, "-m", "rocm_sdk", "path", which).strip()
    path = Path(answer)
    if not answer or not path.is_absolute() or not path.is_dir():
        raise RocmError(f"rocm_sdk path {which} in {target.prefix} answered {answer!r}, which is no folder.")
    return path


def _python(target: Interpreter, env: Mapping[str, str], *words: str) -> str:
    try:
        said = process.capture([target.executable, *words], env=env).stdout
    except ProcessError as problem:
        raise RocmError(
            f"rocm_sdk in {target.prefix} does not answer: {problem.message}",
            hint="Install rocm[libraries,devel] for this family: nox -s install_rocm.",
        ) from problem
    if not said.strip():
        raise RocmError(f"rocm_sdk in {target.prefix} gave an empty answer to {' '.join(words[-2:])}.")
    return said
