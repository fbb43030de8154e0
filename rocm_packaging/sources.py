"""Where ROCm packages come from, and how they are installed: by exact name and version, from there only."""

from __future__ import annotations

import re
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import quote

from packaging.utils import canonicalize_name

from core import console, distributions, process
from core.data import Model, load_toml
from core.errors import ProcessError, RocmError, UsageError, nearest
from core.installer import Install, Sources, configured
from rocm_packaging import versions

if TYPE_CHECKING:
    from collections.abc import Sequence

    from core.options import Common

INDEXES_FILE = Path(__file__).with_name("rocm_indexes.toml")

_LATEST = re.compile(r"^rocm \((?P<version>[^)]+)\)", re.MULTILINE)


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


def newest(source: RocmSource) -> str:
    """Ask a source for its newest version of ``rocm``.

    Raises:
        RocmError: It has none, or does not answer.
    """
    argv = [
        sys.executable,
        "-m",
        "pip",
        "--isolated",
        "--disable-pip-version-check",
        "index",
        "versions",
        "--pre",
    ]
    sources = source.sources
    argv += ["--no-index"] if sources.no_index else ["--index-url", sources.index_url]
    for url in sources.extra_index_urls:
        argv += ["--extra-index-url", url]
    for link in sources.find_links:
        argv += ["--find-links", link]
    argv += ["--cert", sources.cert] if sources.cert else []
    try:
        said = process.capture([*argv, "rocm"]).stdout
    except ProcessError as problem:
        raise RocmError(
            f"No version of rocm was found at {source.origin}.",
            hint="Name a source (--rocm-find-links, --rocm-index-url), or the version (--rocm-version).",
        ) from problem
    match = _LATEST.search(said)
    if match is None:
        raise RocmError(
            f"{source.origin} did not say which rocm versions it has.", hint="Give --rocm-version."
        )
    console.say(f"ROCm version: {match['version']} (the newest at {source.origin})")
    return match["version"]
