"""What `mirror.toml` says: what of others' packages is mirrored for ours."""

from __future__ import annotations

import functools
from pathlib import Path
from typing import Annotated

from packaging.requirements import InvalidRequirement, Requirement
from pydantic import AfterValidator

from core.data import Model, load_toml

MIRROR_FILE = Path(__file__).parents[1] / "mirror.toml"


def _requirement(text: str) -> str:
    try:
        Requirement(text)
    except InvalidRequirement as problem:
        raise ValueError(f"{text!r} is no requirement: {problem}") from problem
    return text


class Platform(Model):
    """A platform that is resolved for."""

    uv: str
    pip: tuple[str, ...]


class Mirror(Model):
    """What `mirror.toml` says."""

    prefix: str
    pythons: tuple[str, ...]
    platforms: dict[str, Platform]
    requirements: dict[str, tuple[Annotated[str, AfterValidator(_requirement)], ...]]

    @property
    def index_key(self) -> str:
        """Key of the index's first page."""
        return f"{self.prefix}/simple/index.html"


@functools.cache
def mirror() -> Mirror:
    """Read the data file."""
    return load_toml(MIRROR_FILE, Mirror)
