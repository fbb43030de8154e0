"""From a verdict to the decision that is carried out and kept."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from ci.promote import layout
from ci.promote.documents import Decision, PromotedFile
from core import files

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ci.promote.facts import Facts
    from ci.promote.policy import Verdict

_IDENTITY_DIGITS = 16


def promoted_files(facts: Facts) -> tuple[PromotedFile, ...]:
    """Say what becomes of staged files that are released as they are: the same names and bytes."""
    found = {}
    for wheel in facts.wheels:
        one, family = wheel.file, wheel.cell.family
        found[one.key] = PromotedFile(
            family=family,
            name=one.name,
            key=f"{layout.folder(layout.RELEASE, family)}/{one.name}",
            size=one.size,
            sha256=one.sha256,
            distribution=one.distribution,
            version=one.version,
            requires_python=one.requires_python,
            metadata_sha256=one.metadata_sha256,
            staged_key=one.key,
            staged_sha256=one.sha256,
        )
    return tuple(found[key] for key in sorted(found))


def identity_of(promoted: Sequence[PromotedFile]) -> str:
    """Digest what is promoted: target keys and the bytes that were tested; not who, when or why."""
    pairs = sorted((one.key, one.staged_sha256) for one in promoted)
    return files.digest_of(pairs)[:_IDENTITY_DIGITS]


@dataclass(frozen=True, kw_only=True)
class Circumstances:
    """Who promotes what to where, and when."""

    set_name: str
    release_type: str
    by: str
    decided: str
    from_version: str = ""
    to_version: str = ""
    gpu_targets: tuple[str, ...] = ()
    left_out: tuple[str, ...] = ()


def decision_of(
    facts: Facts, verdict: Verdict, promoted: Sequence[PromotedFile], told: Circumstances
) -> Decision:
    """Write the decision down."""
    return Decision(
        set_name=told.set_name,
        identity=identity_of(promoted),
        status="promoting",
        release_type=told.release_type,
        from_version=told.from_version,
        to_version=told.to_version,
        gpu_targets=told.gpu_targets,
        left_out=told.left_out,
        decided=told.decided,
        by=told.by,
        staging=facts.staging,
        rulings=verdict.rulings,
        override=verdict.override,
        files=tuple(promoted),
    )
