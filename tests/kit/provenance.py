"""Runs that were never run, for tests of provenance: ROCm's packages, torch on them, a developer's triton."""

from typing import Any

from ci.promote.documents import Document, document
from ci.promote.runs import Recorded
from ci.provenance.facts import RunRecords
from core.run import RunOutputs
from core.run.records import Cell, FileRecord, Record, serialize
from pytorch_build.lock.source_lock import LockedProject, SourceLock
from tests.kit.page_runs import digest

OUTPUTS = RunOutputs(run_id="123", platform="linux", external_repo="down-stream/")
GROUP, REF = "gfx94X-dcgpu", "release/2.10"
TORCH_COMMIT, ROCM_COMMIT, TRITON_COMMIT, TOOL_COMMIT = "1" * 40, "2" * 40, "3" * 40, "4" * 40
ORIGIN = "https://github.com/ROCm/pytorch"
WORKFLOW = "https://github.com/down/stream/.github/workflows/ci.yml@refs/heads/main"
BUILDER = {
    "id": WORKFLOW,
    "invocation": "https://github.com/down/stream/actions/runs/123/attempts/1",
    "source": "https://github.com/down/stream",
    "commit": TOOL_COMMIT,
}


def file(
    name: str, distribution: str, version: str, *, group: str = GROUP, sha256: str = "", says: str = ""
) -> FileRecord:
    return FileRecord(
        name=name,
        key=f"{OUTPUTS.python_prefix(group)}/{name}",
        size=1000,
        sha256=sha256 or digest(name, group),
        distribution=distribution,
        version=version,
        metadata_sha256=digest(name, "METADATA") if name.endswith(".whl") else "",
        license=says,
    )


ROCM = file("rocm-7.10.0.tar.gz", "rocm", "7.10.0")
CORE = file(
    "rocm_sdk_core-7.10.0-py3-none-linux_x86_64.whl",
    "rocm-sdk-core",
    "7.10.0",
    says="Apache-2.0 WITH LLVM-exception AND MIT",
)
TRITON = file("triton-3.6.0-cp312-cp312-linux_x86_64.whl", "triton", "3.6.0", says="MIT License")
TORCH = file(
    "torch-2.10.0+rocm7.10.0-cp312-cp312-linux_x86_64.whl", "torch", "2.10.0+rocm7.10.0", says="BSD-3-Clause"
)


def record(stage: str, *files: FileRecord, python: str = "cp312", ref: str = REF, **facts: Any) -> Record:
    cell = Cell(python=python, torch_ref=ref, gpu_family=GROUP)
    values = {"run_id": "123", "platform": "linux", "started": "2026-11-20T22:00:00+00:00", "seconds": 90.2}
    return Record(stage=stage, cell=cell, files=files, **{**values, **facts})


def recorded(one: Record, group: str = GROUP) -> Recorded:
    return Recorded(record=one, document=document(OUTPUTS.record_key(group, one.name), serialize(one)))


def rocm_records() -> tuple[Record, ...]:
    fetched = record(
        "fetch_artifacts",
        python="",
        ref="",
        inputs={"artifacts": {"blas_lib_gfx94X.tar.zst": digest("blas")}},
        details={"folder": ".cache/artifacts/123-linux/gfx94X-dcgpu"},
    )
    built = record(
        "build_rocm",
        ROCM,
        CORE,
        python="",
        ref="",
        inputs={"packaging": digest("packaging")},
        details={
            "artifact_dir": "/repo/.cache/artifacts/123-linux/gfx94X-dcgpu",
            "commit": ROCM_COMMIT,
            "builder": BUILDER,
        },
    )
    return fetched, built


def torch_record(**inputs: Any) -> Record:
    values = {
        "source": {"origin": ORIGIN, "commit": TORCH_COMMIT, "hipify": True},
        "version": TORCH.version,
        "python": "3.12.4",
        "rocm": ["7.10.0", "split", {ROCM.name: ROCM.sha256, CORE.name: CORE.sha256}],
        "rocm_extras": [],
        "gpu_targets": ["gfx942"],
        "dependencies": {"triton": {"digest": TRITON.sha256}},
        "flags": {"USE_MAGMA": "0"},
        "lock": digest("target lock"),
        "code": digest("code"),
    }
    return record(
        "build_torch",
        TORCH,
        inputs={**values, **inputs},
        input_digest=digest("inputs"),
        details={"builder": BUILDER, "memory": {"peak": 3}},
    )


def triton_record() -> Record:
    """Return a developer's build on a machine of their own."""
    tree = {"tree": "/home/dev/my triton", "commit": TRITON_COMMIT, "diff": digest("edits"), "hipify": False}
    return record("build_triton", TRITON, inputs={"source": tree, "python": "3.12.4", "rocm": None})


def lock(commit: str = TORCH_COMMIT) -> SourceLock:
    project = LockedProject(
        project="torch", origin=ORIGIN, ref="release/2.10", commit=commit, base_version="2.10.0"
    )
    return SourceLock(torch_ref=REF, release_type="nightly", projects={"torch": project})


def lock_file(commit: str = TORCH_COMMIT) -> tuple[SourceLock, Document]:
    content = lock(commit).model_dump_json().encode()
    return lock(commit), document(OUTPUTS.source_lock_key(REF), content)


def run(*more: Record, torch: Record | None = None, locked: str = TORCH_COMMIT) -> RunRecords:
    found = (*rocm_records(), triton_record(), torch or torch_record(), *more)
    return RunRecords(
        prefix=OUTPUTS.prefix,
        groups={GROUP: tuple(recorded(one) for one in found)},
        locks={REF: lock_file(locked)},
    )
