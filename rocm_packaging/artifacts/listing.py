"""Show a plan: for each file its package, its other names, its RPATH, and how development trees get it."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Literal

from rocm_packaging.packages.packages import payload_folder
from rocm_packaging.packages.patching import Neighbours, needs_patch, search_path
from rocm_packaging.packages.payload import PayloadFile, devel_path

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from rocm_packaging.packages.planning import DevelPlan, Plan, RuntimePlan

How = Literal["as it is", "patched", "stub", "link", "left out"]
COLUMNS = ("package", "path", "how", "soname", "aliases", "rpath", "devel", "source")


@dataclass(frozen=True, kw_only=True)
class Planned:
    """One line of a plan."""

    package: str
    path: str
    how: How
    soname: str = ""
    aliases: tuple[str, ...] = ()
    rpath: str = ""
    devel: str = ""
    source: str = ""


def planned_files(plan: Plan) -> list[Planned]:
    """List what becomes of every file, package by package, then by path."""
    found: list[Planned] = []
    for runtime in plan.runtimes:
        found += _runtime(runtime, plan)
    return [*found, *_devel(plan.devel)]


def _distribution(runtime: RuntimePlan) -> str:
    if runtime.kind == "profiler":
        return "rocm-profiler"
    return "-".join(filter(None, ("rocm-sdk", runtime.kind, runtime.family)))


def _runtime(runtime: RuntimePlan, plan: Plan) -> Iterator[Planned]:
    core = payload_folder("core", suffix=plan.distribution.suffix)
    neighbours = Neighbours(payload=runtime.folder, core=core, folders=runtime.rpath)
    names: dict[str, list[str]] = {}
    for alias in runtime.payload.aliases:
        names.setdefault(devel_path(alias, runtime.payload.aliases[alias]), []).append(alias)
    package = _distribution(runtime)
    for path, file in runtime.payload.files.items():
        yield Planned(
            package=package,
            path=path,
            how=_how(file, neighbours),
            soname=file.facts.soname if file.facts else "",
            aliases=tuple(sorted(names.get(path, ()))),
            rpath=":".join(search_path(file, neighbours)) if needs_patch(file, neighbours) else "",
            devel="" if runtime.kind == "profiler" or file.stub_for else "hard link",
            source=str(file.entry.source),
        )
    for path in runtime.payload.dropped:
        yield Planned(package=package, path=path, how="left out")


def _how(file: PayloadFile, neighbours: Neighbours) -> How:
    if file.stub_for:
        return "stub"
    return "patched" if needs_patch(file, neighbours) else "as it is"


def _devel(tree: DevelPlan) -> Iterator[Planned]:
    package = "rocm-sdk-devel"
    for path, entry in sorted(tree.files.items()):
        yield Planned(package=package, path=path, how="as it is", devel="own", source=str(entry.source))
    for path, link in sorted(tree.links.items()):
        yield Planned(package=package, path=path, how="link", devel="own", source=link)


def table_rows(files: Sequence[Planned]) -> list[tuple[str, ...]]:
    """Give the cells of a table under `COLUMNS`."""
    return [
        (
            one.package,
            one.path,
            one.how,
            one.soname,
            ", ".join(name.rpartition("/")[2] for name in one.aliases),
            one.rpath,
            one.devel,
            one.source,
        )
        for one in files
    ]


def as_json(plan: Plan, files: Sequence[Planned]) -> str:
    """Write a plan as JSON: what is packaged, every file, and the artifacts that no package takes."""
    value = {
        "version": plan.distribution.version,
        "split": plan.distribution.split,
        "families": list(plan.built),
        "unused": list(plan.unused),
        "contradiction": plan.contradiction,
        "files": [asdict(one) for one in files],
    }
    return json.dumps(value, indent=2)
