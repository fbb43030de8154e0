"""A run in a folder: its options, its wheels and its records, as the stages would leave them."""

import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from types import MappingProxyType
from typing import Any

import pytest

from core.archive import Member
from core.cli.options import Common
from core.env import Interpreter
from core.families import family, group_families
from core.run import records
from core.run.records import Cell, FileRecord, Record
from core.stores import Store
from core.wheel import distributions
from core.wheel.writer import WheelSpec, metadata_text, write_sdist, write_wheel
from pytorch_build.context import Context
from pytorch_build.lock.source_lock import LockedProject, SourceLock
from pytorch_build.refs.torch_refs import DISTRIBUTIONS, PROJECTS, torch_ref
from tests.kit.machines import target_in

ROCM = "7.99.0.dev0+sample"
SUFFIX = "devrocm7.99.0.dev0.sample"
FAMILY = "gfx94X-dcgpu"
BASES = {"triton": "3.6.0", "torch": "2.10.0a0", "audio": "2.10.0a0", "vision": "0.25.0a0", "apex": "1.10.0"}


@dataclass(frozen=True, kw_only=True)
class Run:
    """One run's outputs, below a folder that stands for the checkout."""

    root: Path

    def common(self, **changes: Any) -> Common:
        return replace(Common(root=self.root, torch_ref="sample"), **changes)

    def context(self, gpu_family: str = FAMILY, *, ref: str = "sample", **changes: Any) -> Context:
        chosen = family(gpu_family)
        return Context(
            common=self.common(torch_ref=ref, gpu_family=gpu_family, **changes),
            ref=torch_ref(ref),
            gpu_family=chosen.name,
            gpu_targets=chosen.targets,
        )

    def target(self, version: str = "3.12.4", **changes: Any) -> Interpreter:
        changes.setdefault("base_executable", Path(sys.executable))
        return target_in(self.root / "env", version=version, **changes)

    @property
    def store(self) -> Store:
        return self.common().open_store()

    def wheel(
        self,
        distribution: str,
        version: str,
        tag: str = "cp312-cp312-linux_x86_64",
        requires: Sequence[str] = (),
    ) -> Path:
        spec = WheelSpec(
            distribution=distribution,
            version=version,
            tag=tag,
            metadata=metadata_text(
                (("Name", distribution), ("Version", version), *(("Requires-Dist", one) for one in requires))
            ),
        )
        member = Member(name=f"{distribution.replace('-', '_')}.py", source=b"__version__ = '0'\n")
        return write_wheel(self.root / "made", spec, [member]).path

    def sdist(self, distribution: str, version: str) -> Path:
        text = metadata_text((("Name", distribution), ("Version", version)))
        member = Member(name="setup.py", source=b"")
        return write_sdist(self.root / "made", distribution, version, [member], metadata=text).path

    def publish(self, path: Path, *, group: str = FAMILY, run_id: str = "local") -> FileRecord:
        return distributions.publish(self.store, self.common(run_id=run_id).outputs, group, path)

    def rocm(self, version: str = ROCM, *, group: str = FAMILY, run_id: str = "local") -> list[FileRecord]:
        wheels = ("rocm-sdk-core", f"rocm-sdk-libraries-{group}", "rocm-sdk-devel")
        paths = [self.wheel(name, version, "py3-none-linux_x86_64") for name in wheels]
        put = [
            self.publish(path, group=group, run_id=run_id) for path in (*paths, self.sdist("rocm", version))
        ]
        self.record(f"build_rocm-{version}", *put, group=group, run_id=run_id)
        return put

    def record(
        self,
        stage: str,
        *files: FileRecord,
        group: str = FAMILY,
        run_id: str = "local",
        inputs: Mapping[str, Any] = MappingProxyType({}),
        details: Mapping[str, Any] = MappingProxyType({}),
        **cell: str,
    ) -> Record:
        record = Record(
            stage=stage,
            run_id=run_id,
            platform="linux",
            cell=Cell(**cell),
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
        """Put a project's wheel and record into the run, as its build stage does."""
        gpu = gpu_family != "cpu"
        version = version or f"{BASES[project]}+{SUFFIX if gpu else 'cpu.sample'}"
        path = self.wheel(DISTRIBUTIONS[project], version, f"{python}-{python}-linux_x86_64")
        targets = list(family(group_families(gpu_family) or gpu_family).targets)
        rocm = [ROCM, "unsplit", {}] if gpu else None
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

    def lock(self, **changes: Any) -> SourceLock:
        projects = {
            name: LockedProject(
                project=name,
                origin=f"sample:{name}",
                ref="main",
                commit=f"{PROJECTS.index(name) + 1}" * 40,
                base_version=BASES[name],
                versions={"rocm": f"{BASES[name]}+{SUFFIX}", "cpu": f"{BASES[name]}+cpu.sample"},
            )
            for name in PROJECTS
        }
        made = SourceLock(torch_ref="sample", release_type="ci", rocm_version=ROCM, projects=projects)
        return made.model_copy(update=changes)

    def put_lock(self, lock: SourceLock | None = None, *, run_id: str = "local") -> SourceLock:
        chosen = lock or self.lock()
        key = self.common(run_id=run_id).outputs.source_lock_key(chosen.torch_ref)
        self.store.put_bytes(key, chosen.model_dump_json().encode())
        return chosen


@pytest.fixture
def run(tmp_path: Path) -> Run:
    return Run(root=tmp_path)
