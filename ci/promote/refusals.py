"""Refused promotions: written down, so that the pages of staging say which set was not released, and why."""

from collections.abc import Iterable, Sequence

from ci.promote import documents
from ci.promote.documents import Refusal
from ci.promote.facts import Facts, Reason
from core.cell import GroupCell
from core.stores import Store


def record_refusal(bucket: Store, facts: Facts, reasons: Sequence[Reason], *, by: str, refused: str) -> None:
    """Write down why a set was not released, and let the pages of its staging say so.

    A set that was released before stays as it is: what is refused is only to release it once more.
    """
    places = sorted({wheel.cell.place for wheel in facts.wheels})
    for place in places:
        refusal = Refusal.model_validate(
            {
                "set_name": facts.set_name,
                "family": place.artifact_group,
                "platform": place.platform,
                "refused": refused,
                "by": by,
                "reasons": tuple(reason.in_words for reason in reasons),
                "staged_keys": staged_keys(facts, place),
            }
        )
        if documents.is_unreleased(bucket, refusal):
            bucket.put_bytes(refusal.key, documents.serialized(refusal))

    update_pages(bucket, {place.artifact_group or "" for place in places})


def staged_keys(facts: Facts, place: GroupCell) -> Sequence[str]:
    """Return the keys of a set's wheels for an artifact group and platform."""
    return sorted({wheel.file.key for wheel in facts.wheels if wheel.cell.place == place})


def update_pages(bucket: Store, artifact_groups: Iterable[str]) -> None:
    """Let the pages of staging say what holds now: a refused set may have been released since."""
    for artifact_group in sorted(artifact_groups):
        refusals = documents.refusals(bucket, artifact_group)
        for refusal in refusals:
            if not documents.is_unreleased(bucket, refusal):
                bucket.delete(refusal.key)
        if refusals:
            documents.write_pages(bucket, documents.STAGING, artifact_group, expected=())
