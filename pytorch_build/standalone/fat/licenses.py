"""Licences of what a stand-alone wheel holds of ROCm: those of ROCm's wheels, with their files (PEP 639)."""

from __future__ import annotations

import contextlib
from dataclasses import dataclass
from typing import TYPE_CHECKING

from packaging.licenses import InvalidLicenseExpression, canonicalize_license_expression

from core.archive import zip_reader
from core.wheel import parse_wheel_name, read_metadata
from core.wheel.record import require_listing
from rocm_packaging.packages.licenses import joined

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping
    from pathlib import Path


@dataclass(frozen=True, kw_only=True)
class Held:
    """The licences of some wheels."""

    expression: str
    files: Mapping[Path, Mapping[str, str]]

    @property
    def paths(self) -> list[str]:
        """Where all of them go, sorted."""
        return sorted(path for names in self.files.values() for path in names.values())


def licenses_of(wheels: Iterable[Path]) -> Held:
    """Gather the licences of wheels."""
    expressions: list[str] = []
    files: dict[Path, Mapping[str, str]] = {}
    for wheel in sorted(wheels):
        with zip_reader.opened(wheel) as archive:
            listing = require_listing(wheel, archive)
        prefix, name = f"{listing.folder}/licenses/", parse_wheel_name(wheel.name).distribution
        names = (info.filename for info, _ in listing.files if info.filename.startswith(prefix))
        files[wheel] = {one: f"{name}/{one.removeprefix(prefix)}" for one in names}
        with contextlib.suppress(InvalidLicenseExpression):  # older metadata names licences in words
            expressions.append(canonicalize_license_expression(read_metadata(wheel).license))
    return Held(expression=joined(expressions) if expressions else "", files=files)
