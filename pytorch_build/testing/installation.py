"""What is tested, and how it is installed: a run's wheels by their digests, or torch from named sources."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from packaging.utils import parse_sdist_filename, parse_wheel_filename

from core import console, installer, locks, records, resolving, serving
from core.errors import DataError, EnvironmentSetupError, MissingInputError, ProcessError
from core.installer import Install, Sources, configured, pinned
from core.named_sources import alone
from core.resolving import Question
from core.target_locks import pinned_file
from pytorch_build.checks.expected import run_lock
from pytorch_build.refs.torch_refs import DISTRIBUTIONS
from rocm_packaging.layouts import is_rocm

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from contextlib import AbstractContextManager
    from pathlib import Path

    from core.interpreters import Interpreter
    from core.records import FileRecord
    from core.resolving import Resolved
    from pytorch_build.context import Context

_BUILT_WITH = ("rocm",)  # sdists that are built with what the tests' lock has


def wheels_of(context: Context, target: Interpreter) -> Sequence[FileRecord]:
    """Gather what the run's records promise for this ref, family and Python, ROCm included.

    Raises:
        MissingInputError: No record names a wheel of the ref.
    """
    store, outputs = context.common.open_for_reading(), context.common.outputs
    ours = set(DISTRIBUTIONS.values())
    found: dict[str, FileRecord] = {}
    rocm_version = run_lock(context).rocm_version if context.gpu else ""
    for record in records.read_all(store, outputs, context.artifact_group):
        same = record.cell.torch_ref == context.ref.name and record.cell.python == target.tag
        for one in record.files if record.status == "ok" else ():
            if (one.distribution in ours and same) or (
                is_rocm(one.distribution) and one.version == rocm_version and context.gpu
            ):
                found[one.name] = one
    if not any(one.distribution in ours for one in found.values()):
        raise MissingInputError(
            f"Run {outputs.run_id} has no wheels of {context.ref.name} for {context.gpu_family} and Python "
            f"{target.series}.",
            hint="Build some first: nox -s build_torch (with the same --torch-ref, --gpu-family and -P).",
        )
    return [found[name] for name in sorted(found)]


def prebuilt(context: Context) -> Sequence[str]:
    """Give the requirements of the ref's projects that are installed instead of built."""
    return tuple(source.prebuilt for source in context.ref.projects.values() if source.prebuilt)


def page_of(context: Context, wheels: Sequence[FileRecord]) -> AbstractContextManager[str]:
    """Give the address of the run's flat page, which must list what the records promise."""
    common = context.common
    return serving.flat_page(common.open_for_reading(), common.outputs, context.artifact_group, wheels)


def install_calls(
    context: Context, wheels: Sequence[FileRecord], page: str, *, tools: Install
) -> Sequence[Install]:
    """Plan the installation: test tools, the recorded files by digest, then what they require.

    Args:
        context: The ref and family.
        wheels: The recorded files.
        page: Address of the run's flat page.
        tools: Installs what the tests need, and what the sdist of `rocm` is built with.
    """
    exact = Sources(find_links=(page,), no_index=True, cert=configured().cert)
    pins = tuple(f"{one.distribution}=={one.version}" for one in wheels)
    return (
        tools,
        pinned(
            pinned_file(context.common, wheels), exact, gpu_family=context.gpu_family if context.gpu else ""
        ),
        # ours are there already and pinned, so only third parties' packages are added
        Install(requirements=(*pins, *prebuilt(context)), sources=configured().with_find_links(page)),
    )


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
    named: Named, target: Interpreter, *, gpu_family: str, constraints: Sequence[str] = ()
) -> Sequence[Resolved]:
    """Resolve torch from named sources, and what it requires from the person's own, too.

    Args:
        named: The sources, with the version.
        target: The environment's interpreter.
        gpu_family: The family that the sdist of `rocm` is to require; "" for none.
        constraints: Versions that hold where something is required at all.

    Raises:
        EnvironmentSetupError: It cannot be satisfied, or a package of ours would come from elsewhere.
    """
    found = resolving.resolve(
        Question(
            requirements=(f"torch=={named.version}",),
            constraints=tuple(constraints),
            sources=named.beside_own,
            python=target.executable,
            pre_names=("torch", "triton", "pytorch-triton-rocm", *_BUILT_WITH),
            gpu_family=gpu_family,
        )
    )
    for one in found:
        strange = [file.url for file in one.files if is_ours(one.name) and not named.holds(file.url)]
        if strange:
            raise EnvironmentSetupError(
                f"{one.name} {one.version} would be taken from {strange[0]}, not from {named.words}.",
                hint="Name the source that has it, too: --find-links or --index-url, which may be repeated.",
            )
    return found


def is_ours(distribution: str) -> bool:
    """Say whether a distribution is one that this project builds."""
    return distribution in {"torch", "torchaudio", "torchvision", "apex"} or is_rocm(distribution)


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
    """Plan the installation of a resolution: test tools, then every file by its digest.

    Args:
        found: The resolution.
        named: The sources.
        folder: Where the list of files is written.
        tools: Installs what the tests need.
        gpu_family: The family that the sdist of `rocm` is to require; "" for none.
    """
    path = locks.kept(folder, "named", "".join(f"{one.pinned}\n" for one in found))
    return (tools, pinned(path, named.beside_own, gpu_family=gpu_family))
