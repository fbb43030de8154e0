"""Where ROCm packages come from, and how they are installed: by exact name and version, from there only."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import quote

from packaging.utils import canonicalize_name
from packaging.version import Version

from core import console, distributions, files, installer, records
from core.data import Model, load_toml
from core.errors import DataError, MissingInputError, ProcessError, RocmError, UsageError, nearest
from core.families import gpu_targets
from core.installer import Install, configured
from core.named_sources import alone
from rocm_packaging import versions

if TYPE_CHECKING:
    from collections.abc import Sequence

    from core.installer import Sources
    from core.options import Common
    from core.records import FileRecord

INDEXES_FILE = Path(__file__).with_name("rocm_indexes.toml")


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
        return alone(self.index_urls, self.find_links, cert=configured().cert)

    def of_version(self, version: str) -> RocmSource:
        """Give the same source for a version."""
        return replace(self, version=version)

    def contents(self) -> dict[str, str] | None:
        """Digest what folders hold of ROCm: file name to SHA-256; None where an address may change.

        Raises:
            MissingInputError: The folders hold none.
        """
        if self.index_urls or any("://" in link for link in self.find_links):
            return None
        found = [path for link in self.find_links for path in sorted(Path(link).glob("rocm*"))]
        digests = {
            path.name: files.sha256(path) for path in found if distributions.is_distribution(path.name)
        }
        if not digests:
            raise MissingInputError(
                f"There are no ROCm packages in {', '.join(self.find_links)}.",
                hint="Name the folder that holds rocm-V.tar.gz and the wheels: --find-links DIR.",
            )
        return digests


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
    store, outputs = common.open_for_reading(), common.outputs
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


def in_record(
    common: Common, artifact_group: str, families: Sequence[str], version: str = ""
) -> Sequence[FileRecord]:
    """List the ROCm packages that the run's records promise for GPU families, sorted by file name.

    Args:
        common: The run and its store.
        artifact_group: The group.
        families: The families; libraries of other ones are left out.
        version: The version; "" for the newest.

    Raises:
        MissingInputError: The run has no ``rocm`` of that version.
    """
    store, outputs = common.open_for_reading(), common.outputs
    recorded = {
        one.name: one
        for record in records.read_all(store, outputs, artifact_group)
        for one in (record.files if record.status == "ok" else ())
        if is_rocm(one.distribution)
    }
    known = sorted({one.version for one in recorded.values() if one.distribution == "rocm"}, key=Version)
    chosen = version or (known[-1] if known else "")
    if chosen not in known:
        what = f"ROCm {version}" if version else "ROCm packages"
        raise MissingInputError(
            f"Run {outputs.run_id} has no {what} for {', '.join(families)} in {store.url}.",
            hint="Build some (nox -s build_rocm), name another run (--run-id, --store), or where they are: "
            "--find-links DIR, --index-url URL.",
        )
    found = [
        one for one in recorded.values() if one.version == chosen and _serves(one.distribution, families)
    ]
    return sorted(found, key=lambda one: one.name)


def _serves(distribution: str, families: Sequence[str]) -> bool:
    """Say whether a package is for one of the families, or for all."""
    for kind, members in (
        ("rocm-sdk-libraries-", families),
        ("rocm-sdk-device-", [target for one in families for target in gpu_targets(one)]),
    ):
        if distribution.startswith(kind):
            return distribution in {canonicalize_name(f"{kind}{member}") for member in members}
    return True


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
        gpu_family=family,
    )


def named_call(source: RocmSource, families: Sequence[str], extras: Sequence[str]) -> Install:
    """Plan the installation of ``rocm`` with extras from named sources, as its own metadata asks for it.

    Args:
        source: The sources and the version.
        families: GPU families: the first is the one that the extras are for.
        extras: Extras of ``rocm``.

    Raises:
        UsageError: A version of unknown form.
    """
    versions.parse(source.version)
    listed = f"[{','.join(extras)}]" if extras else ""
    more = families[1:] if "libraries" in extras else ()
    libraries = (f"rocm-sdk-libraries-{canonicalize_name(family)}=={source.version}" for family in more)
    return Install(
        requirements=(f"rocm{listed}=={source.version}", *libraries),
        sources=source.sources,
        # setuptools is there already, and these sources need not have it
        build_isolation=False,
        pre=True,
        gpu_family=families[0],
    )


def newest(source: RocmSource) -> str:
    """Ask a source for its newest version of ``rocm``.

    Raises:
        RocmError: It has none, or does not answer.
    """
    hint = "Name a source (--rocm-find-links, --rocm-index-url), or the version (--rocm-version)."
    try:
        version = installer.newest("rocm", source.sources)
    except ProcessError as problem:
        raise RocmError(f"No version of rocm was found at {source.origin}.", hint=hint) from problem
    except DataError as problem:
        raise RocmError(
            f"{source.origin} did not say which rocm versions it has.", hint="Give --rocm-version."
        ) from problem
    console.say(f"ROCm version: {version} (the newest at {source.origin})")
    return version
