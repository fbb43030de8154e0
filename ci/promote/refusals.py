"""Refused promotions: written down, so that the pages of staging say which set was not released, and why."""

from collections.abc import Iterable, Sequence

from ci.promote import documents
from ci.promote.documents import Refusal
from ci.promote.facts import Facts, Reason
from core.stores import Store


def record_refusal(bucket: Store, facts: Facts, reasons: Sequence[Reason], *, by: str, refused: str) -> None:
    """Write down why a set was not released, and let the pages of its staging say so.

    A set that was released before stays as it is: what is refused is only to release it once more.
    """
    places = sorted({wheel.cell.place for wheel in facts.wheels})
    for family, platform in places:
        refusal = Refusal.model_validate(
            {
                "set_name": facts.set_name,
                "family": family,
                "platform": platform,
                "refused": refused,
                "by": by,
                "reasons": tuple(reason.in_words for reason in reasons),
                "staged_keys": staged_keys(facts, (family, platform)),
            }
        )
        if documents.is_unreleased(bucket, refusal):
            bucket.put_bytes(refusal.key, documents.serialized(refusal))

    update_pages(bucket, {family for family, _platform in places})


def staged_keys(facts: Facts, place: tuple[str, str]) -> Sequence[str]:
    """Return the keys of a set's wheels for a family and platform."""
    return sorted({wheel.file.key for wheel in facts.wheels if wheel.cell.place == place})


def update_pages(bucket: Store, families: Iterable[str]) -> None:
    """Let the pages of staging say what holds now: a refused set may have been released since."""
    for family in sorted(families):
        refusals = documents.refusals(bucket, family)
        for refusal in refusals:
            if not documents.is_unreleased(bucket, refusal):
                bucket.delete(refusal.key)
        if refusals:
            documents.write_pages(bucket, documents.STAGING, family, expected=())
