"""A build's plan in full before anything is there: for any platform, on any platform.

What only an installed SDK or environment can say is assumed, and each assumption is named.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, replace
from pathlib import Path, PurePath, PurePosixPath, PureWindowsPath
from typing import TYPE_CHECKING, Any

from core import console
from core.cli.options import environment
from core.env.installer import Install
from core.run.outputs import key_name, this_platform
from pytorch_build.build.build import Build
from pytorch_build.build.dependencies import NEEDS, Dependency
from pytorch_build.build.facts import ASKED, facts_of_texts, tree_facts
from pytorch_build.build.making import jobs
from pytorch_build.build.plans import plan_build
from pytorch_build.build.plans.types import BuildFacts, RocmFacts
from pytorch_build.build.request import build_request, environment_calls
from pytorch_build.lock.remote import Reader
from pytorch_build.lock.stored import origins, source_lock
from pytorch_build.refs.torch_refs import DISTRIBUTIONS
from pytorch_build.rocm.options import find_source, packages_of
from pytorch_build.sources.git import Repository
from pytorch_build.sources.own_tree import OwnTree
from pytorch_build.sources.trees import (
    DevelopersTree,
    base_version_of,
    managed_tree,
    own_path,
    own_version,
    tags_itself,
)
from pytorch_build.toolchain.pins import LICENSE, load_toolchain, places
from rocm_packaging.packages.layouts import sdk_target
from rocm_packaging.rocm_sources import RocmSource, requirements

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from core.env import Interpreter
    from pytorch_build.build.options import BuildChoices
    from pytorch_build.build.plans.types import BuildPlan, TreeFacts
    from pytorch_build.context import Context
    from pytorch_build.lock.source_lock import SourceLock
    from pytorch_build.sources.trees import Tree
    from rocm_packaging.packages.layouts import Layout

# a checkout at a short path, as the documentation advises for Windows
_FOREIGN: Mapping[str, PurePath] = {
    "linux": PurePosixPath("/b/wheels"),
    "windows": PureWindowsPath("C:/b/wheels"),
}
_PATH = {"linux": "$PATH", "windows": "%PATH%"}


@dataclass(frozen=True, kw_only=True)
class Place:
    """Where a build would run."""

    root: PurePath
    python: PurePath
    packages: PurePath
    tree: PurePath


@dataclass(frozen=True, kw_only=True)
class Sdk:
    """An SDK as it will be installed."""

    version: str
    root: PurePath
    bin: PurePath
    cmake: PurePath
    targets: tuple[str, ...]


@dataclass(frozen=True, kw_only=True)
class Foreseen:
    """What a build would do."""

    build: Build
    plan: BuildPlan
    assumptions: tuple[str, ...]


def foresee(chosen: Context, choices: BuildChoices, *, target: Interpreter, project: str) -> Foreseen:
    """Plan a build whose tree, environment and ROCm need not be there."""
    name = chosen.common.outputs.platform
    lock = source_lock(chosen, choices.rocm, mirrors=choices.mirrors, update=choices.update)
    rocm, assumed = _rocm(chosen, choices, lock.rocm_version)
    base_env = dict(environment()) if name == this_platform() else {}
    build = Build(
        context=chosen,
        choices=choices,
        target=target,
        project=project,
        tree=_tree(chosen, choices, lock, project),
        rocm=rocm,
        dependencies=tuple(_dependencies(chosen, lock, project)),
        base_env={**base_env, "PATH": _PATH[name]},
    )
    place = _place(build)
    sdk = _sdk(build, place) if rocm else None
    request = build_request(
        build,
        tree=place.tree,
        python=place.python,
        rocm=sdk,
        torch_version=next((one.version for one in build.dependencies if one.project == "torch"), ""),
        cache=choices.compiler_cache,
        max_jobs=jobs(build) if name == this_platform() else None,
    )
    known = _facts(build, place, _tree_facts(build, lock))
    plan = plan_build(request, known, platform=build.platform, base_env=build.base_env)
    assumptions = (*_assumptions(build, place), *assumed)
    return Foreseen(build=build, plan=plan, assumptions=assumptions)


def _tree(chosen: Context, choices: BuildChoices, lock: SourceLock, project: str) -> Tree:
    """Name the tree that would be built, without a checkout and without a copy of a developer's."""
    own = choices.own_trees.get(project)
    if own is None:
        return managed_tree(chosen, choices, lock, project)
    base = base_version_of(own) or lock.project(project).base_version
    path = own_path(chosen.common, own, project)
    commit = Repository(path=own, managed=False).commit_of("HEAD")
    source = chosen.ref.projects.get(project)
    return DevelopersTree(
        project=project,
        own=OwnTree(source=own, path=path, commit=commit, diff_digest="", changed=0),
        version=own_version(
            chosen,
            base,
            rocm_version=lock.rocm_version,
            commit=commit,
            tagged=tags_itself(own, project),
        ),
        hipify=chosen.gpu and source is not None and source.hipify,
    )


def _dependencies(chosen: Context, lock: SourceLock, project: str) -> Iterator[Dependency]:
    """Name what will be installed first, by the versions of the lock."""
    for name in NEEDS[project]:
        locked = lock.projects.get(name) if name == "torch" or name in chosen.ref.components else None
        if locked is not None and locked.prebuilt:
            yield Dependency(project=name, requirement=locked.prebuilt, version=locked.base_version)
        elif locked is not None:
            version = lock.version(name, gpu=chosen.gpu)
            yield Dependency(project=name, requirement=f"{DISTRIBUTIONS[name]}=={version}", version=version)


def _rocm(chosen: Context, choices: BuildChoices, version: str) -> tuple[RocmSource | None, tuple[str, ...]]:
    """Find the packages where that asks nobody; otherwise assume today's layout."""
    if not chosen.gpu:
        return None, ()
    said = choices.rocm
    packages = packages_of(chosen, said)
    asks = bool(packages.index_urls or any("://" in link for link in packages.find_links))
    if not asks:
        return find_source(chosen, said, version), ()
    # an index of one family has unsplit packages, one of all has split ones
    layout: Layout = "unsplit" if f"/{chosen.gpu_family}/" in packages.words else "split"
    source = RocmSource(version=version, layout=layout, packages=packages)
    return source, (f"The packages of ROCm {version} are {layout}: {packages.words} was not asked.",)


def _place(build: Build) -> Place:
    common, name = build.context.common, build.platform.NAME
    if name == this_platform():
        target, tree = build.target, _path_of(build.tree)
        return Place(root=common.root, python=target.executable, packages=target.purelib, tree=tree)
    root = _FOREIGN[name]
    prefix = root / ".nox" / f"build_{build.project}-{build.target.series.replace('.', '-')}"
    sources = type(root)(common.sources.as_posix().replace(common.root.as_posix(), root.as_posix()))
    windows = name == "windows"
    library = "Lib" if windows else f"lib/python{build.target.series}"
    return Place(
        root=root,
        python=prefix / ("Scripts/python.exe" if windows else "bin/python"),
        packages=prefix / library / "site-packages",
        tree=sources / key_name(build.context.ref.name) / build.project,
    )


def _path_of(tree: Tree) -> Path:
    return tree.own.path if isinstance(tree, DevelopersTree) else Path(getattr(tree, "path", "."))


def _sdk(build: Build, place: Place) -> Sdk:
    root = place.packages / "_rocm_sdk_devel"
    return Sdk(
        version=build.rocm.version if build.rocm else "",
        root=root,
        bin=root / "bin",
        cmake=root / "lib" / "cmake",
        targets=build.gpu_targets,
    )


def _tree_facts(build: Build, lock: SourceLock) -> TreeFacts:
    """Read the few files that count: of the tree where it is, else at its commit, from its origin."""
    own = build.choices.own_trees.get(build.project)
    if own is not None:
        return tree_facts(own)
    common, locked = build.context.common, lock.project(build.project)
    reader = Reader(
        cache=common.cache / "refs", origins=origins(common, build.context.ref, build.choices.mirrors)
    )
    texts = reader.texts(locked.origin, locked.commit, ASKED)
    return facts_of_texts(
        texts, where=PurePosixPath(locked.origin), git_suffix=lambda: f"+git{locked.commit[:8]}"
    )


def _facts(build: Build, place: Place, tree: TreeFacts) -> BuildFacts:
    """Assume a whole SDK, and what `nox -s prepare` provides."""
    windows = build.platform.NAME == "windows"
    rocm = RocmFacts(
        device_libs=True,
        host_math=True,
        sysdeps=not windows,
        libraries=frozenset(build.platform.PRELOADS),
    )
    known = BuildFacts(tree=tree, rocm=rocm if build.rocm else None)
    if not windows:
        return known
    data, at = load_toolchain(), places(Path(".cache"), "windows")
    llvm = build.platform.find_variable(environment(), "LLVM_SYSPATH")
    return replace(
        known,
        openmp=place.root / at.openmp / data.openmp.dll,
        uv=place.root / at.libuv / data.libuv.libraries["windows"],
        licenses={
            "llvm-openmp": place.root / at.openmp / LICENSE,
            "libuv": place.root / at.libuv / LICENSE,
        },
        llvm=PureWindowsPath(llvm or f"C:/b/llvm-{tree.llvm_hash[:8]}-windows-x64"),
    )


def _assumptions(build: Build, place: Place) -> Iterator[str]:
    if this_platform() != build.platform.NAME:
        yield f"The checkout is {place.root}, and nothing of this machine's environment counts."
    if build.rocm:
        yield f"ROCm is complete below {place.packages}, and has every library that torch loads first."
    yield from (
        f"{one.requirement} is among the run's outputs, or built before."
        for one in build.dependencies
        if not one.digest
    )
    if build.platform.NAME == "windows" and build.project == "torch":
        yield "nox -s prepare has been run."
    yield "Without SOURCE_DATE_EPOCH the commands get the commit's time."


def _after(build: Build) -> Iterator[str]:
    """Say what is done once upstream's commands have ended."""
    if build.platform.NAME == "linux":
        yield "set the search paths (RPATH) of every ELF file of the wheel"
    if build.splits:
        yield f"split it into a host wheel and one device wheel each for {', '.join(build.gpu_targets)}"
    yield "install the wheel, and import it without the build's environment"
    if build.platform.NAME == "linux" and build.rocm:
        yield "import it without rocm-sdk-devel, and without loading ROCm's libraries first"
    yield "check the wheel, as check_wheels does; an error finding ends the build"
    yield "put the wheel and its record among the run's outputs"


def as_data(foreseen: Foreseen) -> dict[str, Any]:
    """Return the plan as JSON-able data; values of variables are masked as everywhere."""
    build, plan = foreseen.build, foreseen.plan
    rocm = None
    if build.rocm is not None:
        family = build.context.gpu_family
        rocm = Install(
            requirements=requirements(build.rocm, family, build.choices.rocm.extras),
            sources=build.rocm.packages.direct,
            gpu_family=sdk_target(build.rocm.layout, family),
        )
    calls = [
        {
            "requirements": list(call.requirements),
            "files": [path.name for path in call.files],
            "hashed": call.hashed,
            "env": dict(call.env),
            "from": [*([call.sources.index_url] if call.sources.index_url else []), *call.sources.find_links]
            if call.sources
            else [],
        }
        for call in environment_calls(build, rocm)
    ]
    return {
        "project": plan.project,
        "version": plan.version,
        "platform": build.platform.NAME,
        "python": build.target.version,
        "torch_ref": build.context.ref.name,
        "gpu_family": build.context.gpu_family,
        "gpu_targets": list(build.gpu_targets),
        "source": dict(build.tree.inputs),
        "assumptions": list(foreseen.assumptions),
        "environment": calls,
        "uninstall": list(dict.fromkeys((*plan.uninstall, plan.distribution))),
        "requirements_files": list(plan.requirements_files),
        "requirements": list(plan.requirements),
        "as_locked": list(plan.as_locked),
        "removes": list(plan.removes),
        "file_drops": [
            {
                name: value if name == "content" else str(value)
                for name, value in asdict(drop).items()
                if value
            }
            for drop in plan.file_drops
        ],
        "env": {name: console.mask(value) for name, value in sorted(plan.env.items())},
        "unset": sorted(plan.unset),
        "commands": [{"argv": list(one.argv), "cwd": str(one.cwd)} for one in plan.commands],
        "wheel": {"folder": str(plan.wheel_dir), "pattern": plan.wheel_glob, "version": plan.version},
        "after": list(_after(build)),
        "notes": list(plan.notes),
    }


def show(data: Mapping[str, Any]) -> None:
    """Print the plan for people."""
    console.say(
        f"{data['project']} {data['version']}: {data['torch_ref']} for {data['gpu_family']} on "
        f"{data['platform']}, Python {data['python']}"
    )
    for title in ("assumptions", "notes"):
        for sentence in data[title]:
            console.say(f"{title.removesuffix('s')}: {sentence}")
    installs = [(" ".join((*call["requirements"], *call["files"])),) for call in data["environment"]]
    console.table(("environment, in this order",), installs)
    own = [*data["requirements_files"], *data["requirements"]]
    console.say(f"out of it: {', '.join(data['uninstall'])}; the project's own: {', '.join(own)}")
    if data["as_locked"]:
        console.say(f"then as locked: {', '.join(data['as_locked'])}")
    console.table(("variable", "value"), list(data["env"].items()))
    console.say(f"unset: {', '.join(data['unset'])}")
    console.say(f"removed from the tree: {', '.join(data['removes'])}")
    drops = [(drop["path"], drop.get("source", "written by the build")) for drop in data["file_drops"]]
    if drops:
        console.table(("in the tree while it is built", "from"), drops)
    console.table(("command", "in"), [(" ".join(one["argv"]), one["cwd"]) for one in data["commands"]])
    wheel = data["wheel"]
    console.say(f"leaves one {wheel['pattern']} of version {wheel['version']} in {wheel['folder']}")
    for step in data["after"]:
        console.say(f"then: {step}")
