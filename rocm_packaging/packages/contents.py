"""What artifacts must hold: the files that packages promise, and what a set of artifacts lacks."""

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path, PurePosixPath

from core import files
from core.errors import ArtifactError, UsageError
from core.run import Platform
from rocm_packaging.artifacts import (
    COMPONENTS,
    GENERIC,
    Artifact,
    TreeEntry,
    merge_artifacts,
    select_artifacts,
)
from rocm_packaging.packages import payload
from rocm_packaging.packages.layouts import WantedFile, packages

_COMPONENTS_WITH_CONTENTS = ("lib", "run", "dev")


@dataclass(frozen=True, kw_only=True)
class TargetSet:
    """Artifacts that are used together: of these targets, for these GPUs' gfx targets."""

    artifact_targets: frozenset[str]
    gpu_targets: tuple[str, ...]


class Gaps:
    """What artifacts lack, held against what they lack on purpose: the names behind ``--without``."""

    def __init__(self, without: Sequence[str]) -> None:
        self._without = without
        self._unused_names = set(without)
        self._gaps: dict[str, bool] = {}  # what is missing -> whether that is on purpose

    def add(self, description: str, *names: str) -> None:
        """Note that something is missing, by any of its names."""
        matching_names: set[str] = set()
        for name in names:
            matching_names.update(pattern for pattern in self._without if fnmatchcase(name, pattern))
        self._unused_names -= matching_names
        self._gaps[description] = bool(matching_names)

    def intended_gaps(self) -> tuple[str, ...]:
        """Return what is missing on purpose; fail on what is missing else, and on names that nothing has."""
        unintended = [description for description, is_intended in self._gaps.items() if not is_intended]
        if unintended:
            listing = "".join(f"\n  {description}" for description in unintended)
            raise ArtifactError(
                f"The artifacts are incomplete. They lack:{listing}",
                hint="Fetch the whole set: nox -s fetch_artifacts. A set that lacks something on purpose is "
                "packaged with --without A,B: names of artifacts or libraries.",
            )
        if self._unused_names:
            raise UsageError(
                f"--without {','.join(sorted(self._unused_names))}: the artifacts lack nothing of that name.",
                hint="Leave it out. Names are those of packages.toml under [contents].",
            )
        return tuple(self._gaps)


def promised_files(
    artifacts: Sequence[Artifact],
    target_sets: Iterable[TargetSet],
    platform: Platform,
    gaps: Gaps,
) -> dict[str, tuple[str, ...]]:
    """Look for what each artifact must hold; return the files that packages have of it, by package."""
    paths_by_package: dict[str, set[str]] = {}
    for name, contents in packages().contents.items():
        for target_set in target_sets:
            named_artifacts = select_artifacts(
                artifacts,
                names={name},
                components=COMPONENTS,
                targets=target_set.artifact_targets,
            )
            if not named_artifacts:
                continue  # whether there must be one is the packages' to say
            tree = merge_artifacts(
                artifact for artifact in named_artifacts if artifact.component in _COMPONENTS_WITH_CONTENTS
            )
            for wanted_file in contents.wanted_files(platform, target_set.gpu_targets):
                path = _find_file(tree, wanted_file, named_artifacts)
                if path is None:
                    _add_gap(gaps, name, wanted_file, named_artifacts)
                elif wanted_file.is_named_by_path:
                    package = "devel" if wanted_file.component == "dev" else packages().kind_of(name)
                    paths_by_package.setdefault(package, set()).add(path)
    return {package: tuple(sorted(paths)) for package, paths in sorted(paths_by_package.items())}


def _find_file(
    tree: Mapping[str, TreeEntry],
    wanted_file: WantedFile,
    artifacts: Sequence[Artifact],
) -> str | None:
    """Return a path that matches and leads to a file with content, of the component that must hold it."""
    folders = {artifact.path for artifact in artifacts if artifact.component == wanted_file.component}
    for path in filter(files.path_pattern(wanted_file.glob).fullmatch, tree):
        real_path = payload.follow(tree, path)
        if real_path is None or not _is_below(tree[path].source, folders):
            continue
        if tree[real_path].source.stat().st_size:
            return path
    return None


def _is_below(path: Path, folders: Collection[Path]) -> bool:
    return any(parent in folders for parent in path.parents)


def _add_gap(gaps: Gaps, artifact_name: str, wanted_file: WantedFile, artifacts: Sequence[Artifact]) -> None:
    """Note what is missing, with the artifacts that are likeliest to lack it."""
    component_artifacts = [artifact for artifact in artifacts if artifact.component == wanted_file.component]
    target_artifacts = [artifact for artifact in component_artifacts if artifact.target in wanted_file.glob]
    generic_artifacts = [artifact for artifact in component_artifacts if artifact.target == GENERIC]
    likeliest_artifacts = target_artifacts or generic_artifacts or component_artifacts

    artifact_names = ", ".join(artifact.path.name for artifact in likeliest_artifacts)
    if not artifact_names:
        artifact_names = f"{artifact_name}_{wanted_file.component}_* (missing)"
    folder_name = PurePosixPath(wanted_file.glob).parent.name
    gaps.add(f"{wanted_file.glob} of {artifact_names}", artifact_name, wanted_file.name, folder_name)
