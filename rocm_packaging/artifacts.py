"""Artifacts."""

from __future__ import annotations

import filecmp
import json
import os
import posixpath
import re
import stat
from collections.abc import Iterable, Iterator, Mapping, Sequence
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
    """One artifact."""

    name: str
    component: str
    target: str
    path: Path
    stages: tuple[str, ...]

    @cached_property
    def entries(self) -> tuple[Entry, ...]:
        """Its files and links, as they were when first asked for; listed stage folders may be absent."""
        roots = [self.path / stage for stage in self.stages]
        return tuple(entry for root in roots if root.is_dir() for entry in _walk(str(root), ""))


@dataclass(frozen=True, kw_only=True)
class Entry:
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
            f"{directory} is not a directory.", hint="Fetch artifacts: nox -s fetch_artifacts."
        )
    if (directory / INCOMPLETE).exists():
        raise ArtifactError(
            f"{directory} is incomplete: fetching artifacts into it has not ended, or has failed.",
            hint="Run the same nox -s fetch_artifacts again.",
        )
    folders = (path for path in sorted(directory.iterdir()) if path.is_dir())
    found = [_artifact(path) for path in folders if not path.name.startswith(".")]
    if not found:
        raise MissingInputError(
            f"{directory} holds no artifact folders (name_component_target).",
            hint="Fetch and unpack artifacts: nox -s fetch_artifacts.",
        )
    return tuple(sorted(found, key=lambda artifact: (artifact.name, artifact.component, artifact.target)))


def _artifact(path: Path) -> Artifact:
    match = _NAME.fullmatch(path.name)
    if match is None:
        raise ArtifactError(f"{path} is not named name_component_target.", hint="Move it elsewhere.")
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
        stages=parse_stages(text, path / MANIFEST),
    )


def parse_stages(text: str, where: Path | str) -> tuple[str, ...]:
    """Read a manifest: one stage folder a line, relative to the artifact."""
    stages = [line.strip() for line in text.splitlines() if line.strip()]
    for stage in stages:
        first = stage.partition("/")[0]
        if posixpath.isabs(stage) or posixpath.normpath(stage) != stage or first in {".", ".."}:
            raise ArtifactError(f"{where} lists {stage!r}, which is outside of the artifact.")
    return tuple(dict.fromkeys(stages))


def build_info(artifacts: Iterable[Artifact]) -> BuildInfo:
    """Read what the build says of itself, from the base artifact."""
    base = next((a for a in artifacts if (a.name, a.component, a.target) == ("base", "lib", GENERIC)), None)
    if base is None:
        raise ArtifactError("The artifact base_lib_generic is missing.", hint="Fetch it: packaging needs it.")
    source = base.path / _OVERLAY / "therock_manifest.json"
    manifest, info = _read_json(source), _read_json(source.with_name("dist_info.json"))
    flags = manifest.get("flags")
    split = flags.get("KPACK_SPLIT_ARTIFACTS") if isinstance(flags, dict) else None
    if not isinstance(split, bool):
        raise ArtifactError(f"{source} has no flags.KPACK_SPLIT_ARTIFACTS.")
    return BuildInfo(
        split=split,
        targets=tuple(filter(None, str(info.get("dist_amdgpu_targets", "")).split(";"))),
        version=str(manifest.get("rocm_version", "")),
        commit=str(manifest.get("the_rock_commit", "")),
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


def merged(artifacts: Iterable[Artifact], *, folded: bool = False) -> dict[str, Entry]:
    """Lay artifacts over each other into one tree, by path, sorted; `folded` as `require_places`."""
    return laid((entry for artifact in artifacts for entry in artifact.entries), folded=folded)


def laid(found: Iterable[Entry], *, folded: bool = False) -> dict[str, Entry]:
    """Lay entries over each other, as `merged`."""
    tree: dict[str, Entry] = {}
    for entry in found:
        one = tree.setdefault(entry.path, entry)
        same = one is entry or (
            one.link == entry.link and (one.link or filecmp.cmp(one.source, entry.source, shallow=False))
        )
        if not same:
            raise _clash(f"{one.source} and {entry.source} are different files for {one.path}.")
    require_places(tree, folded=folded)
    return dict(sorted(tree.items()))


def require_places(tree: Mapping[str, Entry], *, folded: bool = False) -> None:
    """Require that no file or link lies where another path has a folder.

    Where case does not count (`folded`: Windows), also that no two paths differ in case alone. On Linux
    they may: terminfo has such folders.
    """
    folders: dict[str, Entry] = {}
    for path, entry in tree.items():
        folder = path.rpartition("/")[0]
        while folder and folder not in folders:
            folders[folder] = entry
            folder = folder.rpartition("/")[0]
    for path in sorted(tree.keys() & folders.keys()):
        one, kind = tree[path], "link" if tree[path].link else "file"
        raise _clash(f"{path} is a {kind} ({one.source}) and a folder ({folders[path].source}).")
    spelled: dict[str, tuple[str, Entry]] = {}
    for path, entry in (*folders.items(), *tree.items()) if folded else ():
        known, other = spelled.setdefault(path.casefold(), (path, entry))
        if known != path:
            raise _clash(f"Windows takes {known} ({other.source}) and {path} ({entry.source}) for one name.")


def _clash(message: str) -> ArtifactError:
    return ArtifactError(
        message,
        hint="Fetch both artifacts again, of one run; if they still differ, two projects of that ROCm "
        "install one path: leave the artifact out that does not need it.",
    )


def _walk(folder: str, prefix: str) -> Iterator[Entry]:
    with os.scandir(folder) as found:
        items = sorted(found, key=lambda item: item.name)
    for item in items:
        path = f"{prefix}{item.name}"
        if item.is_symlink():
            link = Path(item.path).readlink().as_posix()
            if posixpath.isabs(link) or (resolve_link(path, link) + "/").startswith("../"):
                raise ArtifactError(f"{item.path} points to {link}, which is outside of ROCm's tree.")
            yield Entry(path=path, source=Path(item.path), link=link)
        elif item.is_dir():
            yield from _walk(item.path, f"{path}/")
        elif item.is_file():
            executable = bool(item.stat().st_mode & stat.S_IXUSR)
            yield Entry(path=path, source=Path(item.path), executable=executable)
        else:
            raise ArtifactError(f"{item.path} is neither a file, a folder nor a link.")


def resolve_link(path: str, link: str) -> str:
    """Return the place in the tree that a link at `path` points to."""
    return posixpath.normpath(posixpath.join(posixpath.dirname(path), link))


def targets_of(family: Family) -> frozenset[str]:
    """Return the targets whose artifacts a family takes: its own names, its gfx targets, ``generic``."""
    return frozenset({GENERIC, *family.name.split(";"), *family.targets})


def families_of(artifacts: Sequence[Artifact]) -> tuple[str, ...]:
    """List the targets other than ``generic``, sorted."""
    return tuple(sorted({artifact.target for artifact in artifacts} - {GENERIC}))
