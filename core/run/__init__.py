"""A run: how its outputs are laid out, here and in a bucket."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal, get_args
from urllib.parse import quote

from core.errors import MissingInputError, UsageError, nearest
from core.stores import Store

Platform = Literal["linux", "windows"]
PLATFORMS: tuple[Platform, ...] = get_args(Platform)
LOCAL_RUN = "local"
PLAIN = "release"  # the build variant that every family has, and that no folder names
# a ROCm build's description of its sources; it lies among the records
BUILD_MANIFEST = "therock_manifest.json"
_SOURCE_LOCK = "source-lock-"  # how the name of a source lock begins

# Names from outside that become a segment of a key: a run's id, an artifact group, parts of a torch ref.
KEY_SEGMENT = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")
_LONGEST_SEGMENT = 128  # characters; with a record's suffix it still is a file name


def this_platform() -> Platform:
    """Name this machine's platform as run outputs do."""
    if sys.platform == "win32":
        return "windows"
    return "linux"


def key_name(name: str) -> str:
    """Write a torch ref or another name with slashes as one path segment (``release-2.10``)."""
    return name.replace("/", "-")


def require_key_segment(name: str, *, option: str) -> None:
    """Refuse a name that may not become a segment of keys, addresses and file names."""
    if len(name) > _LONGEST_SEGMENT:
        raise UsageError(f"{option}: {name[:20]!r}… has {len(name)} characters.", hint="Use a shorter name.")
    if not KEY_SEGMENT.fullmatch(name):
        raise UsageError(
            f"{option}: {name!r} cannot be a part of an address.",
            hint="Begin with a letter or digit; dots, underscores and hyphens may follow.",
        )


def is_record(key: str) -> bool:
    """Return whether a key of a group's manifests is a record's: all are but a ROCm build's own manifest."""
    _folder, _slash, name = key.rpartition("/")
    return name.endswith(".json") and name != BUILD_MANIFEST


def group_name(gpu_family: str, build_variant: str = "") -> str:
    """Return the group of GPU families in a build variant: ``gfx94X-dcgpu-asan``, ``gfx942-gfx1100``."""
    names = [name.strip() for name in re.split(r"[;,]", gpu_family)]
    parts = [name for name in names if name]
    if parts and build_variant not in {"", PLAIN}:
        parts.append(build_variant)
    return "-".join(parts)


@dataclass(frozen=True, kw_only=True)
class RunOutputs:
    """The keys and addresses of one run's outputs."""

    run_id: str
    platform: Platform
    external_repo: str = ""  # {owner}-{repo}/ in the bucket that forks and other repositories share
    address: str = ""  # where clients read the keys; `at` takes it from a store

    def __post_init__(self) -> None:
        require_key_segment(self.run_id, option="--run-id")

    @property
    def immutable(self) -> bool:
        """Whether a wheel may never be replaced: not in ``local`` and ``local-…``, one machine's own runs."""
        return not is_local(self.run_id)

    @property
    def prefix(self) -> str:
        """The key prefix of the run, without a slash at its end."""
        return f"{self.external_repo}{self._folder}"

    @property
    def _folder(self) -> str:
        return f"{self.run_id}-{self.platform}"

    def url_of(self, key: str) -> str:
        """Return the public address of a key, quoted so that ``+`` in a version survives."""
        return f"{self.address}/{quote(key)}"

    def artifacts_folder(self, cache: Path, artifact_group: str) -> Path:
        """Folder on this machine that a group's artifacts are fetched into, and packaged from."""
        run_folder = cache / "artifacts" / self._folder
        return run_folder / artifact_group

    def python_prefix(self, artifact_group: str) -> str:
        """Key prefix of the folder that holds a group's wheels and sdists."""
        return f"{self.prefix}/python/{artifact_group}"

    def python_index_prefix(self, artifact_group: str) -> str:
        """Key prefix of the PEP 503 pages."""
        return f"{self.python_prefix(artifact_group)}/simple"

    def python_find_links_url(self, artifact_group: str) -> str:
        """Public address of the flat page, for ``pip --find-links``."""
        return self.url_of(f"{self.python_prefix(artifact_group)}/index.html")

    def python_index_url(self, artifact_group: str) -> str:
        """Public address of the PEP 503 root, for ``pip --index-url``."""
        return self.url_of(f"{self.python_index_prefix(artifact_group)}/")

    def at(self, store: Store) -> RunOutputs:
        """Return the same run with the addresses that a store's clients use."""
        return replace(self, address=store.url_of("").removesuffix("/"))

    def manifests_prefix(self, artifact_group: str) -> str:
        """Key prefix of a group's records."""
        return f"{self.prefix}/manifests/{artifact_group}"

    def record_key(self, artifact_group: str, name: str) -> str:
        """Key of one record, such as ``build_torch-release-2.10-cp312``."""
        folder = self.manifests_prefix(artifact_group)
        return f"{folder}/{key_name(name)}.json"

    @property
    def source_locks_prefix(self) -> str:
        """Key prefix of the folder that holds the source locks, and other files."""
        return f"{self.prefix}/manifests"

    def source_lock_key(self, torch_ref: str) -> str:
        """Key of a torch ref's source lock."""
        return f"{self.source_locks_prefix}/{_SOURCE_LOCK}{key_name(torch_ref)}.json"

    def is_source_lock(self, key: str) -> bool:
        """Return whether a key is that of a source lock of the run."""
        name = key.removeprefix(f"{self.source_locks_prefix}/")
        return name.startswith(_SOURCE_LOCK) and name.endswith(".json") and "/" not in name

    @property
    def plan_key(self) -> str:
        """Key of the run's plan, beside its source locks."""
        return f"{self.prefix}/manifests/plan.json"

    def logs_prefix(self, artifact_group: str) -> str:
        """Key prefix of a group's logs."""
        return f"{self.prefix}/logs/{artifact_group}"

    def reports_prefix(self, artifact_group: str) -> str:
        """Key prefix of a group's findings and test reports."""
        return f"{self.prefix}/reports/{artifact_group}"


def is_local(run_id: str) -> bool:
    """Return whether a run is of one machine alone: ``local``, or ``local-…`` for a changed tree."""
    return run_id == LOCAL_RUN or run_id.startswith(f"{LOCAL_RUN}-")


def artifact_groups(store: Store, outputs: RunOutputs, gpu_family: str) -> Sequence[str]:
    """Return the groups that hold wheels: all, or the one of a GPU family; none is an error."""
    prefix = f"{outputs.prefix}/python"
    groups: set[str] = set()
    for stored in store.list(prefix):
        key_in_group = stored.key.removeprefix(f"{prefix}/")
        groups.add(key_in_group.split("/")[0])
    return choose_groups(
        store,
        outputs,
        sorted(groups),
        group_name(gpu_family),
        content=f"wheels in {store.url}/{prefix}",
    )


def record_keys_by_group(outputs: RunOutputs, keys: Iterable[str]) -> Mapping[str, Sequence[str]]:
    """Return the keys of records among those of a run's manifests, by artifact group."""
    record_keys: dict[str, list[str]] = {}
    prefix = outputs.manifests_prefix("")
    for key in keys:
        artifact_group, slash, _name = key.removeprefix(prefix).partition("/")
        if slash and is_record(key):
            record_keys.setdefault(artifact_group, []).append(key)
    return record_keys


def choose_groups(
    store: Store, outputs: RunOutputs, groups: Sequence[str], name: str, *, content: str
) -> Sequence[str]:
    """Return all groups that a run has of some content, or the one of a name; none is an error."""
    if not groups:
        raise MissingInputError(
            f"Run {outputs.run_id} has no {content}.",
            hint="Build something first, or name another run with --run-id.",
        )
    if name and name not in groups:
        suggestion = nearest(name, groups)
        message = f"Run {outputs.run_id} has no group {name!r} in {store.url}."
        raise MissingInputError(message, hint=suggestion)
    if name:
        return [name]
    return groups
