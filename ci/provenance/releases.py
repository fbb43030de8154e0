"""Which run a file that is handed out came from, and the decision that released it."""

import re

from ci.promote import documents
from ci.promote.documents import Decision, ReleaseRecord, StagingRecord
from core.errors import MissingInputError
from core.stores import Store

# v2/gfx94X-dcgpu/torch-2.10.0+rocm7.10.0-cp312-cp312-linux_x86_64.whl
HANDED_OUT = re.compile(
    rf"(?P<area>{documents.RELEASE}|{documents.STAGING})/(?P<group>[^/]+)/(?P<name>[^/]+)"
)


def find_staging(store: Store, key: str) -> tuple[StagingRecord, Decision | None] | None:
    """Return the record by which a file was staged, and of a released one the decision on it.

    Returns:
        None where the key is of neither, or the store keeps no such documents.

    Raises:
        MissingInputError: Nothing there names the file, or it is a candidate's that was rewritten.
    """
    match = HANDED_OUT.fullmatch(key)
    if match is None or not documents.list_keys(store, documents.MANIFESTS):
        return None

    decision: Decision | None = None
    staged_key = key
    if match["area"] == documents.RELEASE:
        decision = _find_decision(store, match["group"], key)
        staged_keys = {file.key: file.staged_key for file in decision.files}
        staged_key = staged_keys[key]
        if decision.from_version:
            raise MissingInputError(
                f"{key} was rewritten from ROCm {decision.from_version}, so that no run made it.",
                hint=f"Verify what was tested: {staged_key}, where the candidate is staged.",
            )

    for record, _digest in documents.staging_records(store, [match["group"]]):
        if staged_key in documents.keys_of(record.files):
            return record, decision
    raise MissingInputError(
        f"No staging record of {store.url} names {staged_key}.",
        hint="Name the run with --run-id and --store.",
    )


def _find_decision(
    store: Store,
    artifact_group: str,
    key: str,
) -> Decision:
    for record_key in documents.list_keys(store, documents.manifests(documents.RELEASE, artifact_group)):
        record = documents.read(store, record_key, ReleaseRecord)
        if key in documents.keys_of(record.files):
            return documents.read(store, record.decision, Decision)
    raise MissingInputError(
        f"No decision in {store.url} released {key}.",
        hint="Find out who put it there, and do not install it.",
    )
