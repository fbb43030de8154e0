"""A build's plan in full before anything is there: for any platform, on any platform.

What only an installed SDK or environment can say is assumed, and each assumption is named.
"""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Mapping
from dataclasses import asdict
from itertools import groupby
from operator import itemgetter
from pathlib import Path, PurePath, PurePosixPath, PureWindowsPath
from typing import TYPE_CHECKING, Any

from core import console
from core.cli.options import environment
from core.env.installer import Install
from core.environment import allowed, need_of
from core.run import key_name, this_platform
from pytorch_build.build import machine
from pytorch_build.build.build import NEEDS, Build, BuildChoices, Dependency
from pytorch_build.build.compilers import Compiler, compilers
from pytorch_build.build.plans.projects import plan_build
from pytorch_build.build.site import READ, Site, TreeFacts, facts_of_texts, tree_facts
from pytorch_build.build.stage import jobs
from pytorch_build.build.toolchain import LICENSE, Provided, load_toolchain, places, plan
from pytorch_build.lock.stored import origins, source_lock
from pytorch_build.refs.torch_refs import DISTRIBUTIONS
from pytorch_build.sdk import RocmSdk, find_source, packages_of
from pytorch_build.sources.git import Reader
from pytorch_build.sources.trees import Tree, developers_tree, managed_tree
from rocm_packaging.origin import RocmSource, requirements
from rocm_packaging.packages.layouts import Layout, sdk_target

if TYPE_CHECKING:
    from core.env import Interpreter
    from pytorch_build.build.plans.common import BuildPlan
    from pytorch_build.context import Context
    from pytorch_build.lock.source_lock import SourceLock

# a checkout at a short path, as the documentation advises for Windows
_FOREIGN: Mapping[str, PurePath] = {
    "linux": PurePosixPath("/b/wheels"),
    "windows": PureWindowsPath("C:/b/wheels"),
}
_LISTS = ("requirements_files", "requirements", "as_locked", "removes")
_PATH = {"linux": "$PATH", "windows": "%PATH%"}


def forecast(chosen: Context, choices: BuildChoices, *, target: Interpreter, project: str) -> dict[str, Any]:
    """Plan a build whose tree, environment and ROCm need not be there; return JSON-able data."""
    name = chosen.common.outputs.platform
    lock = source_lock(chosen, choices.rocm, mirrors=choices.mirrors, update=choices.update)
    rocm, assumed = _rocm(chosen, choices, lock.rocm_version)
    # named without a checkout, and without a copy of a developer's
    tree: Tree = (
        developers_tree(chosen, own, project, rocm_version=lock.rocm_version, lock=lambda: lock)
        if (own := choices.own_trees.get(project))
        else managed_tree(chosen, choices, lock, project)
    )
    build = Build(
        context=chosen,
        choices=choices,
        target=target,
        project=project,
        tree=tree,
        rocm=rocm,
        dependencies=tuple(_dependencies(chosen, lock, project)),
        base_env={**(environment() if name == this_platform() else {}), "PATH": _PATH[name]},
    )
    root, site = _site(build, _tree_facts(build, lock))
    return _data(build, plan_build(build, site), (*_assumptions(build, site, root), *assumed))


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
    """Find the packages where that queries no server; otherwise assume today's layout."""
    if not chosen.gpu:
        return None, ()
    packages = packages_of(chosen, choices.rocm)
    if not packages.index_urls and not any("://" in link for link in packages.find_links):
        return find_source(chosen, choices.rocm, version), ()
    # an index of one family has unsplit packages, one of all has split ones
    layout: Layout = "unsplit" if f"/{chosen.gpu_family}/" in packages.description else "split"
    source = RocmSource(version=version, layout=layout, packages=packages)
    return source, (f"The packages of ROCm {version} are {layout}: {packages.description} was not queried.",)


def _site(build: Build, facts: TreeFacts) -> tuple[PurePath, Site]:
    """Return the checkout and the site; assume a whole SDK, and what a build provides besides."""
    common, windows, own = build.context.common, build.platform.windows, build.tree
    here = build.platform.name == this_platform()
    if here:
        root: PurePath = common.root
        python: PurePath = build.target.executable
        packages: PurePath = build.target.purelib
        tree: PurePath = own.path
    else:
        root = _FOREIGN[build.platform.name]
        prefix = root / ".nox" / f"build_{build.project}-{build.target.series.replace('.', '-')}"
        python = prefix / ("Scripts/python.exe" if windows else "bin/python")
        packages = prefix / ("Lib" if windows else f"lib/python{build.target.series}") / "site-packages"
        sources = type(root)(common.sources.as_posix().replace(common.root.as_posix(), root.as_posix()))
        tree = sources / key_name(build.context.ref.name) / build.project
    torch, sdk = build.dependency("torch"), packages / "_rocm_sdk_devel"
    return root, Site(
        tree=tree,
        python=python,
        facts=facts,
        rocm=None
        if build.rocm is None
        else RocmSdk(
            version=build.rocm.version,
            root=sdk,
            bin=sdk / "bin",
            cmake=sdk / "lib" / "cmake",
            targets=build.gpu_targets,
            libraries=frozenset(build.platform.preloads),
            sysdeps=not windows,
        ),
        provided=_provided(root, facts, build) if windows else Provided(),
        torch_version=torch.version if torch else "",
        cache=build.choices.compiler_cache,
        compilers=compilers(build.platform, {**environment(), **build.source.env})
        if here
        else {"CXX": Compiler(path="c++", kind="gcc")},
        max_jobs=jobs(build, machine.need_of(build.context, build.project)) if here else None,
    )


def _provided(root: PurePath, facts: TreeFacts, build: Build) -> Provided:
    data, at = load_toolchain(), places(Path(".cache"), "windows")
    llvm = build.platform.find_variable(environment(), "LLVM_SYSPATH")
    return Provided(
        openmp=root / at.openmp / data.openmp.dll,
        uv=root / at.libuv / data.libuv.libraries["windows"],
        licenses={"llvm-openmp": root / at.openmp / LICENSE, "libuv": root / at.libuv / LICENSE},
        llvm=PureWindowsPath(llvm or f"C:/b/llvm-{facts.llvm_hash[:8]}-windows-x64"),
    )


def _tree_facts(build: Build, lock: SourceLock) -> TreeFacts:
    """Read the few files that count: of the tree where it is, else at its commit, from its origin."""
    own = build.choices.own_trees.get(build.project)
    if own is not None:
        return tree_facts(own)
    common, locked = build.context.common, lock.project(build.project)
    known = origins(common, build.context.ref, build.choices.mirrors)
    texts = Reader(cache=common.cache / "refs", origins=known).texts(locked.origin, locked.commit, READ)
    return facts_of_texts(
        texts, where=PurePosixPath(locked.origin), git_suffix=lambda: f"+git{locked.commit[:8]}"
    )


def _assumptions(build: Build, site: Site, root: PurePath) -> Iterator[str]:
    if this_platform() != build.platform.name:
        yield f"The checkout is {root}, and nothing of this machine's environment counts."
    if site.rocm:
        packages = site.rocm.root.parent
        yield f"ROCm is complete below {packages}, and has every library that torch loads first."
    yield from (
        f"{one.requirement} is among the run's outputs, or built before."
        for one in build.dependencies
        if not one.digest
    )
    if build.platform.windows and build.project == "torch":
        parts = plan(build.context.common.cache, build.platform.name)
        names = " and ".join(f"{part.name} {part.version}" for part in parts)
        yield f"The build provides {names} below .cache/toolchain, where they are not there yet."
    yield "Without SOURCE_DATE_EPOCH the commands get the commit's time."


def _after(build: Build) -> Iterator[str]:
    """Name what is done once upstream's commands have ended."""
    linux = not build.platform.windows
    if linux:
        yield "set the search paths (RPATH) of every ELF file of the wheel"
    if build.splits:
        yield f"split it into a host wheel and one device wheel each for {', '.join(build.gpu_targets)}"
    yield "install the wheel, and import it without the build's environment"
    if linux and build.rocm:
        yield "import it without rocm-sdk-devel, and without loading ROCm's libraries first"
    yield "check the wheel, as check_wheels does; an error finding ends the build, and it is kept here"
    yield "put the wheel and its record among the run's outputs"


def _origin(build: Build, plan: BuildPlan, name: str) -> str:
    """Say where a variable of the build comes from."""
    yours, planned = build.base_env.get(name, ""), plan.env.get(name)
    if planned is None or (planned == yours and need_of(name)):  # else it never gets there from you
        return f"your environment: {need_of(name)}"
    if name in build.source.env:
        return f"the env of {build.project} in the refs data"
    return "the plan, with yours" if yours and yours in planned else "the plan"


def _data(build: Build, plan: BuildPlan, assumptions: tuple[str, ...]) -> dict[str, Any]:
    """Return the plan as data, with the whole environment of its commands; values are masked."""
    family = build.context.gpu_family
    rocm = None
    if build.rocm is not None:
        rocm = Install(
            requirements=requirements(build.rocm, family, build.choices.rocm.extras),
            sources=build.rocm.packages.installer_sources(),
            gpu_family=sdk_target(build.rocm.layout, family),
        )
    calls = [
        {
            "requirements": list(call.requirements),
            "files": [path.name for path in call.files],
            "hashed": call.hashed,
            "env": dict(call.env),
            "from": [*filter(None, (call.sources.index_url,)), *call.sources.find_links]
            if call.sources
            else [],
        }
        for call in build.environment_calls(rocm)
    ]
    env = build.platform.merge(allowed(build.base_env), plan.env, unset=plan.unset)
    overlays = [
        {name: value if name == "content" else str(value) for name, value in asdict(one).items() if value}
        for one in plan.overlays
    ]
    return {
        "project": plan.project,
        "version": plan.version,
        "platform": build.platform.name,
        "python": build.target.version,
        "torch_ref": build.context.ref.name,
        "gpu_family": family,
        "gpu_targets": list(build.gpu_targets),
        "source": dict(build.tree.inputs),
        "assumptions": list(assumptions),
        "environment": calls,
        "uninstall": list(dict.fromkeys((*plan.uninstall, plan.distribution))),
        **{name: list(getattr(plan, name)) for name in _LISTS},
        "file_drops": overlays,
        "env": {name: console.mask(value) for name, value in sorted(env.items())},
        "env_from": {name: _origin(build, plan, name) for name in sorted(env)},
        "commands": [{"argv": list(one.argv), "cwd": str(one.cwd)} for one in plan.commands],
        "wheel": {"folder": str(plan.wheel_dir), "pattern": plan.wheel_glob, "version": plan.version},
        "after": list(_after(build)),
        "notes": list(plan.notes),
    }


def show(data: Mapping[str, Any]) -> None:
    """Print the plan."""
    console.say(
        f"{data['project']} {data['version']}: {data['torch_ref']} for {data['gpu_family']} on "
        f"{data['platform']}, Python {data['python']}"
    )
    for title in ("assumptions", "notes"):
        for sentence in data[title]:
            console.say(f"{title.removesuffix('s')}: {sentence}")
    console.say("\nenvironment, in this order")
    for call in data["environment"]:
        console.say(f"  install {' '.join((*call['requirements'], *call['files']))}")
    console.say(f"  uninstall {' '.join(data['uninstall'])}")
    console.say(f"  install {' '.join((*data['requirements_files'], *data['requirements']))}")
    if data["as_locked"]:
        console.say(f"  install as locked {' '.join(data['as_locked'])}")
    for source in sorted({*data["env_from"].values()}, key=lambda one: (not one.startswith("the"), one)):
        console.say(f"\nvariables of {source}")
        named = {name: data["env"][name] for name, one in data["env_from"].items() if one == source}
        quoted = {name: f'"{one}"' if shlex.quote(one) != one else one for name, one in named.items()}
        console.say("\n".join(f"  {name}={one}" for name, one in quoted.items()))
    console.say("\nin the tree")
    for drop in data["file_drops"]:
        console.say(f"  put {drop['path']}, {drop.get('source', 'written by the build')}")
    console.say(f"  remove {' '.join(data['removes'])}")
    for folder, ran in groupby(data["commands"], key=itemgetter("cwd")):
        console.say("\n  ".join([f"\ncommands in {folder}", *(shlex.join(one["argv"]) for one in ran)]))
    wheel = data["wheel"]
    console.say(f"leaves one {wheel['pattern']} of version {wheel['version']} in {wheel['folder']}\n")
    for step in data["after"]:
        console.say(f"then: {step}")
