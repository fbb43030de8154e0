"""ROCm's artifacts as folders: what a build has left of each component, and one tree made of several."""

from __future__ import annotations

import filecmp
import json
import os
import posixpath
import re
import stat
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING

from core.errors import ArtifactError, MissingInputError, nearest

if TYPE_CHECKING:
    from core.families import Family


COMPONENTS = ("lib", "run", "dbg", "dev", "doc", "test")
GENERIC = "generic"
MANIFEST = "artifact_manifest.txt"
INCOMPLETE = ".incomplete"  # while a directory has this file, artifacts of its set are missing
_NAME = re.compile(r"(?P<name>[A-Za-z][A-Za-z0-9-]*)_(?P<component>[a-z]+)_(?P<target>[^_]+)")
_OVERLAY = PurePosixPath("base/aux-overlay/stage/share/therock")


@dataclass(frozen=True, kw_only=True)
class Artifact:
    """One artifact: a component (``lib``, ``dev`` …) of a part of ROCm, for all GPUs or a target."""

    name: str
    component: str
    target: str
    path: Path
    stage_folders: tuple[str, ...]

    @cached_property
    def entries(self) -> tuple[TreeEntry, ...]:
        """Its files and links, as they were when first asked for; listed stage folders may be absent."""
        entries: list[TreeEntry] = []
        for stage_folder in self.stage_folders:
            root = self.path / stage_folder
            if root.is_dir():
                entries += _walk(str(root), "")
        return tuple(entries)


@dataclass(frozen=True, kw_only=True)
class TreeEntry:
    """A file or a symbolic link of ROCm's tree."""

    path: str
    source: Path
    link: str = ""
    executable: bool = False


@dataclass(frozen=True, kw_only=True)
class BuildInfo:
    """What a ROCm build says of itself."""

    split: bool
    targets: tuple[str, ...]
    version: str
    commit: str = ""


def scan(directory: Path) -> tuple[Artifact, ...]:
    """List the artifacts of a directory, sorted by name, component and target."""
    if not directory.is_dir():
        raise MissingInputError(
            f"{directory} is not a directory.",
            hint="Fetch artifacts: nox -s fetch_artifacts.",
        )
    if (directory / INCOMPLETE).exists():
        raise ArtifactError(
            f"{directory} is incomplete: fetching artifacts into it has not ended, or has failed.",
            hint="Run the same nox -s fetch_artifacts again.",
        )
    folders = [path for path in directory.iterdir() if path.is_dir() and not path.name.startswith(".")]
    artifacts = [_artifact(folder) for folder in folders]
    if not artifacts:
        raise MissingInputError(
            f"{directory} holds no artifact folders (name_component_target).",
            hint="Fetch and unpack artifacts: nox -s fetch_artifacts.",
        )
    artifacts.sort(
        key=lambda artifact: (
            artifact.name,
            artifact.component,
            artifact.target,
            artifact.path,
        )
    )
    return tuple(artifacts)


def _artifact(path: Path) -> Artifact:
    match = _NAME.fullmatch(path.name)
    if match is None:
        raise ArtifactError(
            f"{path} is not named name_component_target.",
            hint="Move it elsewhere.",
        )
    if match["component"] not in COMPONENTS:
        close = nearest(match["component"], COMPONENTS)
        raise ArtifactError(f"{path} has an unknown component {match['component']!r}. {close}")
    try:
        text = (path / MANIFEST).read_text(encoding="utf-8")
    except FileNotFoundError:
        raise ArtifactError(f"{path} has no {MANIFEST}.", hint="Fetch the artifact again.") from None
    except (OSError, UnicodeDecodeError) as problem:
        raise ArtifactError(f"{path / MANIFEST} cannot be read: {problem}.") from problem
    return Artifact(
        name=match["name"],
        component=match["component"],
        target=re.split("[:~]", match["target"])[0],  # on Windows ~ stands for the colon
        path=path,
        stage_folders=parse_stage_folders(text, path / MANIFEST),
    )


def select_artifacts(
    artifacts: Iterable[Artifact],
    *,
    names: Collection[str],
    components: Collection[str],
    targets: Collection[str],
) -> list[Artifact]:
    """Return the artifacts of these names, components and targets."""
    matches: list[Artifact] = []
    for artifact in artifacts:
        has_name = artifact.name in names and artifact.component in components
        if has_name and artifact.target in targets:
            matches.append(artifact)
    return matches


def parse_stage_folders(text: str, where: Path | str) -> tuple[str, ...]:
    """Read a manifest: one stage folder a line, relative to the artifact."""
    folders = [line.strip() for line in text.splitlines() if line.strip()]
    for folder in folders:
        first_part = folder.partition("/")[0]
        if posixpath.isabs(folder) or posixpath.normpath(folder) != folder or first_part in {".", ".."}:
            raise ArtifactError(f"{where} lists {folder!r}, which is outside of the artifact.")
    return tuple(dict.fromkeys(folders))


def build_info(artifacts: Iterable[Artifact]) -> BuildInfo:
    """Read what the build says of itself, from the base artifact."""
    manifest_path = _base_artifact(artifacts).path / _OVERLAY / "therock_manifest.json"
    manifest = _read_json(manifest_path)
    flags = manifest.get("flags")
    is_split = flags.get("KPACK_SPLIT_ARTIFACTS") if isinstance(flags, dict) else None
    if not isinstance(is_split, bool):
        raise ArtifactError(f"{manifest_path} has no flags.KPACK_SPLIT_ARTIFACTS.")

    dist_info = _read_json(manifest_path.with_name("dist_info.json"))
    targets = str(dist_info.get("dist_amdgpu_targets", "")).split(";")
    return BuildInfo(
        split=is_split,
        targets=tuple(filter(None, targets)),
        version=str(manifest.get("rocm_version", "")),
        commit=str(manifest.get("the_rock_commit", "")),
    )


def _base_artifact(artifacts: Iterable[Artifact]) -> Artifact:
    for artifact in artifacts:
        if (artifact.name, artifact.component, artifact.target) == (
            "base",
            "lib",
            GENERIC,
        ):
            return artifact
    raise ArtifactError(
        "The artifact base_lib_generic is missing.",
        hint="Fetch it: packaging needs it.",
    )


def _read_json(path: Path) -> Mapping[str, object]:
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise ArtifactError(f"{path} is missing.", hint="Fetch base_lib_generic again.") from None
    except (OSError, ValueError) as problem:
        raise ArtifactError(f"{path} cannot be read: {problem}.") from problem
    if not isinstance(value, dict):
        raise ArtifactError(f"{path} is not a JSON object.")
    return value


def merge_artifacts(artifacts: Iterable[Artifact], *, ignores_case: bool = False) -> dict[str, TreeEntry]:
    """Lay artifacts over each other into one tree, by path, sorted; `ignores_case` as `require_places`."""
    entries: list[TreeEntry] = []
    for artifact in artifacts:
        entries += artifact.entries
    return merge_entries(entries, ignores_case=ignores_case)


def merge_entries(entries: Iterable[TreeEntry], *, ignores_case: bool = False) -> dict[str, TreeEntry]:
    """Lay entries over each other, as `merge_artifacts`."""
    tree: dict[str, TreeEntry] = {}
    for entry in entries:
        earlier_entry = tree.setdefault(entry.path, entry)
        if earlier_entry is not entry and not _are_same(earlier_entry, entry):
            raise _clash(f"{earlier_entry.source} and {entry.source} are different files for {entry.path}.")
    require_places(tree, ignores_case=ignores_case)
    return dict(sorted(tree.items()))


def _are_same(first: TreeEntry, second: TreeEntry) -> bool:
    """Return whether two entries are the same link, or files of the same content."""
    if first.link or second.link:
        return first.link == second.link
    return filecmp.cmp(first.source, second.source, shallow=False)


def require_places(tree: Mapping[str, TreeEntry], *, ignores_case: bool = False) -> None:
    """Require that no file or link lies where another path has a folder.

    Where case does not count (`ignores_case`: Windows), also that no two paths differ in case alone. On Linux
    they may: terminfo has such folders.
    """
    folders = _folders_of(tree)
    for path in sorted(tree.keys() & folders.keys()):
        entry = tree[path]
        kind = "link" if entry.link else "file"
        raise _clash(f"{path} is a {kind} ({entry.source}) and a folder ({folders[path].source}).")
    if ignores_case:
        _require_distinct_names({**folders, **tree})


def _folders_of(tree: Mapping[str, TreeEntry]) -> dict[str, TreeEntry]:
    """Return the folders of a tree, each with a file or link in it."""
    folders: dict[str, TreeEntry] = {}
    for path, entry in tree.items():
        folder = path.rpartition("/")[0]
        while folder and folder not in folders:
            folders[folder] = entry
            folder = folder.rpartition("/")[0]
    return folders


def _require_distinct_names(entries: Mapping[str, TreeEntry]) -> None:
    """Require that no two paths differ in case alone."""
    paths: dict[str, str] = {}
    for path, entry in entries.items():
        earlier_path = paths.setdefault(path.casefold(), path)
        if earlier_path != path:
            earlier_source = entries[earlier_path].source
            raise _clash(
                f"Windows takes {earlier_path} ({earlier_source}) and {path} ({entry.source}) for one name."
            )


def _clash(message: str) -> ArtifactError:
    return ArtifactError(
        message,
        hint="Fetch both artifacts again, of one run; if they still differ, two projects of that ROCm "
        "install one path: leave the artifact out that does not need it.",
    )


def _walk(folder: str, prefix: str) -> Iterator[TreeEntry]:
    """Yield the files and links below a folder, whose path in the tree is the prefix."""
    with os.scandir(folder) as scan_of_folder:
        directory_entries = sorted(scan_of_folder, key=lambda directory_entry: directory_entry.name)
    for directory_entry in directory_entries:
        path = f"{prefix}{directory_entry.name}"
        source = Path(directory_entry.path)
        if directory_entry.is_symlink():
            yield TreeEntry(path=path, source=source, link=_read_link(source, path))
        elif directory_entry.is_dir():
            yield from _walk(directory_entry.path, f"{path}/")
        elif directory_entry.is_file():
            is_executable = bool(directory_entry.stat().st_mode & stat.S_IXUSR)
            yield TreeEntry(path=path, source=source, executable=is_executable)
        else:
            raise ArtifactError(f"{source} is neither a file, a folder nor a link.")


def _read_link(source: Path, path: str) -> str:
    """Return what a link says, which must stay in the tree that it has a path in."""
    link = source.readlink().as_posix()
    target = resolve_link(path, link)
    if posixpath.isabs(link) or target == ".." or target.startswith("../"):
        raise ArtifactError(f"{source} points to {link}, which is outside of ROCm's tree.")
    return link


def resolve_link(path: str, link: str) -> str:
    """Return the place in the tree that a link at `path` points to."""
    return posixpath.normpath(posixpath.join(posixpath.dirname(path), link))


def targets_of(family: Family) -> frozenset[str]:
    """Return the targets whose artifacts a family takes: its own names, its gfx targets, ``generic``."""
    return frozenset({GENERIC, *family.name.split(";"), *family.targets})


def families_of(artifacts: Sequence[Artifact]) -> tuple[str, ...]:
    """List the targets other than ``generic``, sorted."""
    return tuple(sorted({artifact.target for artifact in artifacts} - {GENERIC}))
