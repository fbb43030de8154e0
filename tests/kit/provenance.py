"""A run that was never run, for tests of provenance: ROCm's packages, torch on them, a developer's triton."""

from collections.abc import Mapping, Sequence
from typing import Any, Literal

from ci.promote.documents import DocumentDigest, StoredRecord, digest_document
from ci.provenance.facts import RunRecords
from core.run import RunOutputs, records
from core.run.records import FileRecord, Record, serialize
from core.stores import Store
from pytorch_build.lock.source_lock import LockedProject, SourceLock
from tests.kit import wheels
from tests.kit.group_cells import group_cell

RUN = RunOutputs(run_id="123", platform="linux", external_repo="down-stream/")
GROUP = "gfx94X-dcgpu"
TORCH_REF = "release/2.10"
PYTHON = "cp312"
STARTED = "2026-11-20T22:00:00+00:00"

TORCH_COMMIT = "1" * 40
ROCM_COMMIT = "2" * 40
TRITON_COMMIT = "3" * 40
TOOL_COMMIT = "4" * 40
ORIGIN = "https://github.com/ROCm/pytorch"
WORKFLOW = "https://github.com/down/stream/.github/workflows/ci.yml@refs/heads/main"
BUILDER = {
    "id": WORKFLOW,
    "invocation": "https://github.com/down/stream/actions/runs/123/attempts/1",
    "source": "https://github.com/down/stream",
    "commit": TOOL_COMMIT,
}
ARTIFACT = "blas_lib_gfx94X.tar.zst"
ARTIFACT_FOLDER = ".cache/artifacts/123-linux/gfx94X-dcgpu"


def digest_of(*words: str) -> str:
    """Return a digest for these words, the same each time."""
    return wheels.sha256(" ".join(words).encode())


def file_record(
    *,
    name: str,
    distribution: str,
    version: str,
    group: str = GROUP,
    sha256: str | None = None,
    license: str = "",  # noqa: A002 - the field's name
) -> FileRecord:
    """Return what a record says of a wheel or sdist."""
    return FileRecord(
        name=name,
        key=f"{RUN.python_prefix(group)}/{name}",
        size=1000,
        sha256=sha256 or digest_of(name, group),
        distribution=distribution,
        version=version,
        metadata_sha256=digest_of(name, "METADATA") if name.endswith(".whl") else "",
        license=license,
    )


ROCM = file_record(name="rocm-7.10.0.tar.gz", distribution="rocm", version="7.10.0")
CORE = file_record(
    name="rocm_sdk_core-7.10.0-py3-none-linux_x86_64.whl",
    distribution="rocm-sdk-core",
    version="7.10.0",
    license="Apache-2.0 WITH LLVM-exception AND MIT",
)
TRITON = file_record(
    name="triton-3.6.0-cp312-cp312-linux_x86_64.whl",
    distribution="triton",
    version="3.6.0",
    license="MIT License",
)
TORCH = file_record(
    name="torch-2.10.0+rocm7.10.0-cp312-cp312-linux_x86_64.whl",
    distribution="torch",
    version="2.10.0+rocm7.10.0",
    license="BSD-3-Clause",
)
# What a person put into the run, so that no build's record names it.
UPLOADED = file_record(name="own-1-py3-none-any.whl", distribution="own", version="1")


def step_record(
    step: str,
    *files: FileRecord,
    python: str = PYTHON,
    torch_ref: str = TORCH_REF,
    started: str = STARTED,
    seconds: float = 90.2,
    inputs: Mapping[str, Any] | None = None,
    details: Mapping[str, Any] | None = None,
    input_digest: str = "",
    status: Literal["ok", "failed"] = "ok",
) -> Record:
    """Return the record of a step."""
    has_failed = status == "failed"
    return Record(
        stage=step,
        run_id=RUN.run_id,
        platform=RUN.platform,
        cell=group_cell(python_tag=python, torch_ref=torch_ref, gpu_family=GROUP),
        started=started,
        seconds=seconds,
        files=files,
        inputs=dict(inputs or {}),
        details=dict(details or {}),
        input_digest=input_digest,
        status=status,
        exit_code=8 if has_failed else 0,
        error="No wheel." if has_failed else "",
    )


def upload_record(*, started: str = STARTED) -> Record:
    """Return the record of an upload, which no build made."""
    return step_record("upload-1", UPLOADED, python="", torch_ref="", started=started)


def apex_record(*, seconds: float = 90.2, status: Literal["ok", "failed"] = "ok") -> Record:
    """Return the record of one build more."""
    file = file_record(name="apex-1.whl", distribution="apex", version="1")
    return step_record("build_apex", file, seconds=seconds, status=status)


def fetch_record() -> Record:
    """Return the record of the artifacts that were fetched for ROCm's packages."""
    return step_record(
        "fetch_artifacts",
        python="",
        torch_ref="",
        inputs={"artifacts": {ARTIFACT: digest_of("blas")}},
        details={"folder": ARTIFACT_FOLDER},
    )


def rocm_record(*, artifact_folder: str = f"/repo/{ARTIFACT_FOLDER}") -> Record:
    """Return the record of ROCm's packages, built in a job of a workflow."""
    return step_record(
        "build_rocm",
        ROCM,
        CORE,
        python="",
        torch_ref="",
        inputs={"packaging": digest_of("packaging")},
        details={"artifact_dir": artifact_folder, "commit": ROCM_COMMIT, "builder": BUILDER},
    )


def torch_record(inputs: Mapping[str, Any] | None = None) -> Record:
    """Return the record of torch's build, with these inputs instead of its own."""
    usual_inputs = {
        "source": {"origin": ORIGIN, "commit": TORCH_COMMIT, "hipify": True},
        "version": TORCH.version,
        "python": "3.12.4",
        "rocm": ["7.10.0", "split", {ROCM.name: ROCM.sha256, CORE.name: CORE.sha256}],
        "rocm_extras": [],
        "gpu_targets": ["gfx942"],
        "dependencies": {"triton": {"digest": TRITON.sha256}},
        "flags": {"USE_MAGMA": "0"},
        "lock": digest_of("target lock"),
        "code": digest_of("code"),
    }
    return step_record(
        "build_torch",
        TORCH,
        inputs={**usual_inputs, **(inputs or {})},
        input_digest=digest_of("inputs"),
        details={"builder": BUILDER, "memory": {"peak": 3}},
    )


def triton_record() -> Record:
    """Return the record of a developer's build, from an edited tree on their own machine."""
    tree = {
        "tree": "/home/dev/my triton",
        "commit": TRITON_COMMIT,
        "diff": digest_of("edits"),
        "hipify": False,
    }
    return step_record("build_triton", TRITON, inputs={"source": tree, "python": "3.12.4", "rocm": None})


def source_lock(commit: str = TORCH_COMMIT) -> SourceLock:
    """Return the source lock of the torch ref."""
    project = LockedProject(
        project="torch", origin=ORIGIN, ref="release/2.10", commit=commit, base_version="2.10.0"
    )
    return SourceLock(torch_ref=TORCH_REF, release_type="nightly", projects={"torch": project})


def recorded(record: Record, group: str = GROUP) -> StoredRecord:
    """Return a record as it was read, with its document."""
    key = RUN.record_key(group, record.name)
    return StoredRecord(record=record, document=digest_document(key, serialize(record)))


def locked(commit: str = TORCH_COMMIT) -> tuple[SourceLock, DocumentDigest]:
    """Return the source lock as it was read, with its document."""
    lock = source_lock(commit)
    return lock, digest_document(RUN.source_lock_key(TORCH_REF), lock.model_dump_json().encode())


def run_records(*extra_records: Record, torch: Record | None = None) -> RunRecords:
    """Return everything that the run's manifests say, with these records besides, or another torch."""
    every_record = [fetch_record(), rocm_record(), triton_record(), torch or torch_record(), *extra_records]
    return RunRecords(
        prefix=RUN.prefix,
        groups={GROUP: tuple(recorded(record) for record in every_record)},
        locks={TORCH_REF: locked()},
    )


def write_run(store: Store, run: RunOutputs = RUN, extra_records: Sequence[Record] = ()) -> None:
    """Write the run's records and its source lock into a store."""
    every_record = [fetch_record(), rocm_record(), triton_record(), torch_record(), *extra_records]
    for record in every_record:
        write_record(store, record, run=run)
    store.put_bytes(run.source_lock_key(TORCH_REF), source_lock().model_dump_json().encode())


def write_record(store: Store, record: Record, *, run: RunOutputs = RUN, group: str = GROUP) -> None:
    """Write a record into a store."""
    records.write(store, run, group, record)
