"""A run in a folder, with the wheels and records that steps would leave, and a build of it."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import MappingProxyType
from typing import Any, cast

from core.cli.options import Common
from core.env import Interpreter
from core.families import family, group_families
from core.packages.candidates import Candidate
from core.packages.options import SourceOptions
from core.packages.sources import linked_source
from core.run import records
from core.run.records import FileRecord, Record
from core.stores import Store
from core.wheel import distributions
from pytorch_build.build.build import Work
from pytorch_build.build.inputs import BuildInputs, Dependency, inputs_of
from pytorch_build.build.request import BuildRequest
from pytorch_build.components import COMPONENTS
from pytorch_build.context import Context
from pytorch_build.lock.source_lock import LockedProject, SourceLock
from pytorch_build.refs.torch_refs import torch_ref
from pytorch_build.sdk import RocmOptions
from pytorch_build.sources.trees import Tree
from rocm_packaging.origin import RocmSource
from tests.kit import wheels
from tests.kit.front_doors import run_ci
from tests.kit.group_cells import group_cell
from tests.kit.machines import target_in

FAMILY = "gfx94X-dcgpu"
ROCM_VERSION = "7.99.0.dev0+sample"
LOCAL_VERSION = "devrocm7.99.0.dev0.sample"
BASE_VERSIONS = {
    "triton": "3.6.0",
    "torch": "2.10.0a0",
    "audio": "2.10.0a0",
    "vision": "0.25.0a0",
    "apex": "1.10.0",
}
TORCH_VERSION = f"{BASE_VERSIONS['torch']}+{LOCAL_VERSION}"


@dataclass(frozen=True, kw_only=True)
class LocalRun:
    """One run's outputs, below a folder that stands for the checkout. Its torch ref is the sample's."""

    root: Path

    def common(self, **changes: Any) -> Common:
        """Return the options that every verb has, with changes."""
        return replace(Common(root=self.root, torch_ref="sample"), **changes)

    def context(self, gpu_family: str = FAMILY, *, ref: str = "sample", **changes: Any) -> Context:
        """Return what a verb works on, with changes of its common options."""
        chosen_family = family(gpu_family)
        return Context(
            common=self.common(torch_ref=ref, gpu_family=gpu_family, **changes),
            ref=torch_ref(ref),
            gpu_family=chosen_family.name,
            gpu_targets=chosen_family.targets,
        )

    def target(self, version: str = "3.12.4", **changes: Any) -> Interpreter:
        """Return the interpreter of the environment that wheels are built and tested in."""
        changes.setdefault("base_executable", Path(sys.executable))
        return target_in(self.root / "env", version=version, **changes)

    @property
    def store(self) -> Store:
        """The store that the run's steps write to."""
        return self.common().open_store()

    def wheel(
        self,
        distribution: str,
        version: str,
        tag: str = "cp312-cp312-linux_x86_64",
        requires: Sequence[str] = (),
    ) -> Path:
        """Write a wheel that is not in the run yet; return its path."""
        module = f"{distribution.replace('-', '_')}.py"
        return wheels.write_wheel(
            self.root / "made",
            name=distribution,
            version=version,
            tag=tag,
            files={module: "__version__ = '0'\n"},
            requires=requires,
            metadata_fields=(),
            is_pure=False,
        )

    def sdist(self, distribution: str, version: str) -> Path:
        """Write an sdist that is not in the run yet; return its path."""
        return wheels.write_sdist(self.root / "made", name=distribution, version=version)

    def publish(self, path: Path, *, group: str = FAMILY, run_id: str = "local") -> FileRecord:
        """Put a wheel or an sdist into the run, without a record."""
        return distributions.publish(self.store, self.common(run_id=run_id).outputs, group, path)

    def rocm(
        self, version: str = ROCM_VERSION, *, group: str = FAMILY, run_id: str = "local"
    ) -> list[FileRecord]:
        """Put ROCm's packages into the run, with the record of their build."""
        names = ("rocm-sdk-core", f"rocm-sdk-libraries-{group}", "rocm-sdk-devel")
        paths = [self.wheel(name, version, "py3-none-linux_x86_64") for name in names]
        paths.append(self.sdist("rocm", version))

        published = [self.publish(path, group=group, run_id=run_id) for path in paths]
        self.record(f"build_rocm-{version}", *published, group=group, run_id=run_id)
        return published

    def record(
        self,
        stage: str,
        *files: FileRecord,
        group: str = FAMILY,
        run_id: str = "local",
        inputs: Mapping[str, Any] = MappingProxyType({}),
        details: Mapping[str, Any] = MappingProxyType({}),
        python: str = "",
        torch_ref: str = "",
        gpu_family: str = "",
    ) -> Record:
        """Write the record of a step that succeeded; return it. `python` is an ABI tag."""
        record = Record(
            stage=stage,
            run_id=run_id,
            platform="linux",
            cell=group_cell(python_tag=python, torch_ref=torch_ref, gpu_family=gpu_family),
            started=records.now(),
            seconds=1.0,
            inputs=dict(inputs),
            details=dict(details),
            files=files,
        )
        records.write(self.store, self.common(run_id=run_id).outputs, group, record)
        return record

    def built(
        self,
        project: str,
        *,
        gpu_family: str = FAMILY,
        python: str = "cp312",
        run_id: str = "local",
        version: str = "",
        ref: str = "sample",
    ) -> FileRecord:
        """Put a project's wheel and record into the run, as the step that builds it does."""
        has_gpu = gpu_family != "cpu"
        local_version = LOCAL_VERSION if has_gpu else "cpu.sample"
        version = version or f"{BASE_VERSIONS[project]}+{local_version}"
        targets = list(family(group_families(gpu_family) or gpu_family).targets)
        rocm = [ROCM_VERSION, "unsplit", {}] if has_gpu else None

        path = self.wheel(COMPONENTS[project].distribution, version, f"{python}-{python}-linux_x86_64")
        file = self.publish(path, group=gpu_family, run_id=run_id)
        self.record(
            f"build_{project}",
            file,
            group=gpu_family,
            run_id=run_id,
            inputs={"version": version, "rocm": rocm, "gpu_targets": targets},
            torch_ref=ref,
            gpu_family=gpu_family,
            python=python,
        )
        return file

    def stage(self, *, run_id: str = "local") -> SourceOptions:
        """Put the run's wheels up for testing; return the options that take them from there."""
        distribution_store = str(self.root / "distribution")
        run_options = ("--run-id", run_id, "--store", self.store.url)
        options = ("--distribution-store", distribution_store, "--release-type", "rehearsal")
        assert run_ci("stage", *run_options, *options) == 0
        return SourceOptions(staged=True, distribution_store=distribution_store)

    def lock(self, **changes: Any) -> SourceLock:
        """Return a source lock of the sample's projects, with changes."""
        projects: dict[str, LockedProject] = {}
        for number, name in enumerate(COMPONENTS, start=1):
            base_version = BASE_VERSIONS[name]
            projects[name] = LockedProject(
                project=name,
                origin=f"sample:{name}",
                ref="main",
                commit=f"{number}" * 40,
                base_version=base_version,
                versions={
                    "rocm": f"{base_version}+{LOCAL_VERSION}",
                    "cpu": f"{base_version}+cpu.sample",
                },
            )
        lock = SourceLock(torch_ref="sample", release_type="ci", rocm_version=ROCM_VERSION, projects=projects)
        return lock.model_copy(update=changes)

    def put_lock(self, lock: SourceLock | None = None, *, run_id: str = "local") -> SourceLock:
        """Put a source lock into the run; return it."""
        lock = lock or self.lock()
        key = self.common(run_id=run_id).outputs.source_lock_key(lock.torch_ref)
        self.store.put_bytes(key, lock.model_dump_json().encode())
        return lock


# A build of the sample's torch, of which every part is a value.

ROCM_FILE = Candidate(
    name="rocm.tar.gz", distribution="rocm", version="7.1.0", sha256="aa", url="/rocm/rocm.tar.gz"
)
ROCM_SOURCE = RocmSource(version="7.1.0", packages=linked_source("/rocm"), files=(ROCM_FILE,))


@dataclass(frozen=True, kw_only=True)
class ReadyTree:
    """A source tree that needs no checkout."""

    path: Path
    version: str = TORCH_VERSION
    inputs: Mapping[str, Any] = field(default_factory=lambda: {"commit": "1" * 40, "hipify": True})

    def checked_out(self) -> AbstractContextManager[Path]:
        """Return the folder at once."""
        return nullcontext(self.path)


def ready_tree(path: Path, *, version: str = TORCH_VERSION, inputs: Mapping[str, Any] | None = None) -> Tree:
    """Return a source tree that needs no checkout, where the product takes one of its own."""
    tree = ReadyTree(path=path, version=version)
    if inputs is not None:
        tree = replace(tree, inputs=inputs)
    return cast("Tree", tree)


def write_requirements(root: Path) -> None:
    """Write what builds lock of others, below a folder that stands for the checkout."""
    requirements = root / "requirements"
    requirements.mkdir()
    (requirements / "target-linux-3.12.txt").write_text("setuptools==80.0 \\\n    --hash=sha256:aa\n")
    (requirements / "target.in").write_text("numpy\n")


@dataclass(frozen=True, kw_only=True)
class SampleBuild:
    """A build that was asked for, and what it is made of. Its inputs follow from both."""

    request: BuildRequest
    tree: Tree
    rocm: RocmSource | None
    dependencies: tuple[Dependency, ...]

    @property
    def inputs(self) -> BuildInputs:
        """What its record digests."""
        return inputs_of(self.request, self.tree, self.rocm, self.dependencies)

    @property
    def work(self) -> Work:
        """The build as it begins."""
        return Work(request=self.request, tree=self.tree, rocm=self.rocm, inputs=self.inputs)

    def requested(self, **changes: Any) -> SampleBuild:
        """Return the build with changes of what was asked for."""
        return replace(self, request=replace(self.request, **changes))

    def made_of(self, **changes: Any) -> SampleBuild:
        """Return the build with changes of what it is made of."""
        return replace(self, **changes)

    def of(self, component: str) -> SampleBuild:
        """Return the build of another component."""
        return self.requested(component=COMPONENTS[component])


def request_build(
    run: LocalRun,
    component: str,
    *,
    context: Context | None = None,
    own_trees: Mapping[str, Path] = MappingProxyType({}),
    user_env: Mapping[str, str] = MappingProxyType({"PATH": "/usr/bin", "HOME": "/home/me"}),
) -> BuildRequest:
    """Return the request for a component's wheel of the run."""
    return BuildRequest(
        context=context or run.context(),
        target=run.target(),
        component=COMPONENTS[component],
        user_env=user_env,
        rocm=RocmOptions(),
        own_trees=own_trees,
        mirrors={},
    )


def sample_build(run: LocalRun) -> SampleBuild:
    """Return a build of the sample's torch on ROCm and a triton, with the files that it looks at."""
    write_requirements(run.root)
    tree = run.root / "src"
    tree.mkdir()
    (tree / "setup.py").write_text("# 10 bytes")
    triton = Dependency(project="triton", requirement="/run/triton.whl", version="3.6.0", digest="bb")
    return SampleBuild(
        request=request_build(run, "torch"),
        tree=ready_tree(tree),
        rocm=ROCM_SOURCE,
        dependencies=(triton,),
    )
