"""A release candidate's set as the release's: every file rewritten, checked again, and mapped."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ci.promote import layout
from ci.promote.execution import Local
from ci.promote.rewriting import new_version, plan_set, rewrite_set
from core import console, files, parallel
from core.errors import MissingInputError, StoreError
from core.wheel.distributions import SIDECAR
from core.wheel.wheels import read_metadata
from pytorch_build.check.view import Expectation

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from ci.promote.documents import PromotedFile
    from ci.promote.facts import Facts
    from ci.promote.keeping import Kept
    from ci.promote.rewriting import Renamed, RocmChange
    from core.stores import Store

    Promised = Mapping[str, Mapping[str, Expectation]]  # family -> distribution -> what it must be

_DOWNLOADS = 4  # files of gigabytes: more at a time are no faster


@dataclass(frozen=True, kw_only=True)
class Final:
    """The files of a release that were made of a candidate's."""

    files: tuple[PromotedFile, ...]
    origin: Local


def renamed(candidates: Sequence[PromotedFile], change: RocmChange) -> tuple[PromotedFile, ...]:
    """Say by names alone what becomes of each file; sizes and digests are still the candidates'."""
    plans = {family: _plans(found, change) for family, found in _by_family(candidates).items()}
    return tuple(_target(one, plans[one.family][one.name]) for one in candidates)


def promised(facts: Facts, change: RocmChange) -> Promised:
    """Say what the source locks promise of a candidate's wheels, family by family.

    Of a distribution that locks of several torch refs promise in several versions, nothing is said.
    """
    found: dict[str, dict[str, set[str]]] = {}
    for cell, versions in facts.promised.items():
        of_family = found.setdefault(cell.family, {})
        for distribution, version in versions.items():
            of_family.setdefault(distribution, set()).add(version)
    return {
        family: _expectations(
            {name: min(several) for name, several in versions.items() if len(several) == 1}, change
        )
        for family, versions in found.items()
    }


def _expectations(versions: Mapping[str, str], change: RocmChange) -> Mapping[str, Expectation]:
    torch = (f"torch=={versions['torch']}",) if "torch" in versions else ()
    triton = (f"triton=={versions['triton']}",) if "triton" in versions else ()
    own = (f"rocm[libraries]=={change.old}", *triton)
    requires = {"torch": own, "torchaudio": torch, "torchvision": torch}
    # device code is the tested wheel's, to the byte
    return {
        name: Expectation(distribution=name, version=version, requires=requires.get(name, ()))
        for name, version in versions.items()
    }


def rewritten(
    bucket: Store,
    candidates: Sequence[PromotedFile],
    change: RocmChange,
    scratch: Path,
    expected: Promised | None = None,
    kept: Kept | None = None,
) -> Final:
    """Fetch a candidate's files and write them again as the release's."""
    made: list[PromotedFile] = []
    paths: dict[str, Path] = {}
    sidecars: dict[str, bytes] = {}
    for family, found in _by_family(candidates).items():
        wanted = (expected or {}).get(family, {})
        absent = sorted(wanted.keys() - {one.distribution for one in found})
        if absent:
            said = f"The set of {family} has no wheel of {', '.join(absent)}, which its source lock promises."
            raise MissingInputError(said, hint="Stage it, or build it first.")
        with console.group(f"rewrite {family}: {change.old} -> {change.new}"):
            fetched = _fetched(bucket, found, scratch / family / change.old)
            results = rewrite_set(fetched, scratch / family / change.new, change, expected=wanted, kept=kept)
        by_name = {one.name: one for one in found}
        for result in results:
            target = _target(by_name[result.plan.source], result.plan)
            path = result.file.path
            metadata = read_metadata(path) if path.suffix == ".whl" else None
            if metadata is not None:
                sidecars[f"{target.key}{SIDECAR}"] = metadata.raw
            paths[target.key] = path
            changes = {
                "size": result.file.size,
                "sha256": result.file.sha256,
                "requires_python": metadata.requires_python if metadata else target.requires_python,
                "metadata_sha256": hashlib.sha256(metadata.raw).hexdigest() if metadata else "",
            }
            made.append(target.model_copy(update=changes))
    return Final(
        files=tuple(sorted(made, key=lambda one: one.key)),
        origin=Local(paths=paths, sidecars=sidecars),
    )


def new_set_name(distribution: str, version: str, change: RocmChange | None) -> str:
    """Name the set in the release."""
    new = new_version(distribution, version, change) if change else version
    return f"{distribution}-{new or version}"


def _by_family(candidates: Sequence[PromotedFile]) -> Mapping[str, Sequence[PromotedFile]]:
    families = sorted({one.family for one in candidates})
    return {family: [one for one in candidates if one.family == family] for family in families}


def _plans(candidates: Sequence[PromotedFile], change: RocmChange) -> Mapping[str, Renamed]:
    return {plan.source: plan for plan in plan_set([one.name for one in candidates], change)}


def _target(one: PromotedFile, plan: Renamed) -> PromotedFile:
    key = f"{layout.folder(layout.RELEASE, one.family)}/{plan.target}"
    return one.model_copy(update={"name": plan.target, "key": key, "version": plan.new})


def _fetched(bucket: Store, candidates: Sequence[PromotedFile], folder: Path) -> Sequence[Path]:
    def fetch(one: PromotedFile) -> Path:
        path = bucket.fetch(one.staged_key, folder)
        if files.sha256(path) != one.staged_sha256:
            raise StoreError(
                f"{one.staged_key} in {bucket.url} was replaced after the decision.",
                hint="Find out who replaced it, then test and promote again.",
            )
        return path

    return parallel.each(fetch, candidates, jobs=_DOWNLOADS)
