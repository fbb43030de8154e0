"""A plan as people and programs read it: what becomes of every file."""

import json
import posixpath
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import Literal, get_args

from rocm_packaging.packages.payload import Payload, PayloadFile
from rocm_packaging.packages.plan import DevelPlan, PackagingPlan, RuntimePlan

How = Literal["as it is", "patched", "stub", "link", "left out"]
COLUMNS = ("package", *get_args(How))


@dataclass(frozen=True, kw_only=True)
class PlannedFile:
    """One file of a plan: its package, its other names, its RPATH, and how development trees get it."""

    package: str
    path: str
    how: How
    soname: str = ""
    aliases: tuple[str, ...] = ()
    rpath: str = ""
    devel: str = ""
    source: str = ""


def planned_files(plan: PackagingPlan) -> list[PlannedFile]:
    """List what becomes of every file, package by package, then by path."""
    files: list[PlannedFile] = []
    for runtime in plan.runtimes:
        files += _files_of_runtime(runtime)
    files += _files_of_devel(plan.devel)
    return files


def _files_of_runtime(runtime: RuntimePlan) -> Iterator[PlannedFile]:
    package = runtime.distribution
    aliases = _aliases_by_file(runtime.payload)
    for path, file in runtime.payload.files.items():
        is_linked_to = runtime.kind != "profiler" and not file.stands_for_link
        yield PlannedFile(
            package=package,
            path=path,
            how=_how_packaged(file),
            soname=file.facts.soname if file.facts is not None else "",
            aliases=tuple(aliases.get(path, ())),
            rpath=":".join(file.rpath or ()),
            devel="hard link" if is_linked_to else "",
            source=str(file.entry.source),
        )
    for path in runtime.payload.dropped:
        yield PlannedFile(package=package, path=path, how="left out")


def _how_packaged(file: PayloadFile) -> How:
    if file.stub_for:
        return "stub"
    if file.rpath is not None:
        return "patched"
    return "as it is"


def _aliases_by_file(payload: Payload) -> dict[str, list[str]]:
    """Return the other names of libraries that the wheel cannot hold, by the path that it has."""
    aliases: dict[str, list[str]] = {}
    for alias, name in sorted(payload.aliases.items()):
        path = posixpath.join(posixpath.dirname(alias), name)
        aliases.setdefault(path, []).append(alias)
    return aliases


def _files_of_devel(devel: DevelPlan) -> Iterator[PlannedFile]:
    package = "rocm-sdk-devel"
    for path, entry in sorted(devel.files.items()):
        yield PlannedFile(
            package=package,
            path=path,
            how="as it is",
            devel="own",
            source=str(entry.source),
        )
    for path, link in sorted(devel.links.items()):
        yield PlannedFile(package=package, path=path, how="link", devel="own", source=link)


def table_rows(files: Sequence[PlannedFile]) -> list[tuple[str, ...]]:
    """Count each package's files by what becomes of them, for a table under `COLUMNS`."""
    counts = Counter((file.package, file.how) for file in files)
    rows: list[tuple[str, ...]] = []
    for package in dict.fromkeys(file.package for file in files):
        package_counts = [counts[package, column] for column in get_args(How)]
        rows.append((package, *(str(count) if count else "" for count in package_counts)))
    return rows


def plan_json(plan: PackagingPlan, files: Sequence[PlannedFile]) -> str:
    """Write a plan as JSON: what is packaged, every file, and the artifacts that no package takes."""
    content = {
        "version": plan.dist_info.version,
        "split": plan.dist_info.split,
        "families": list(plan.built_families),
        "unused": list(plan.unused_artifacts),
        "lacking": list(plan.lacking),
        "unmet": list(plan.unmet),
        "contradiction": plan.contradiction,
        "files": [asdict(file) for file in files],
    }
    return json.dumps(content, indent=2)
