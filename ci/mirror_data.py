"""What `mirror.toml` says: which names are ours, and what of others' is mirrored for them."""

from __future__ import annotations

import functools
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Annotated

from packaging.requirements import InvalidRequirement, Requirement
from packaging.utils import canonicalize_name
from pydantic import AfterValidator

from core.data import Model, load_toml

MIRROR_FILE = Path(__file__).with_name("mirror.toml")


def _requirement(text: str) -> str:
    try:
        Requirement(text)
    except InvalidRequirement as problem:
        raise ValueError(f"{text!r} is no requirement: {problem}") from problem
    return text


class Platform(Model):
    """A platform that is resolved for.

    Attributes:
        uv: uv's name of it.
        pip: Platform tags that pip takes there, the newest first.
    """

    uv: str
    pip: tuple[str, ...]


class Mirror(Model):
    """What `mirror.toml` says.

    Attributes:
        prefix: Folder of the store.
        pythons: Python versions that are resolved for.
        ours: Globs over normalised distribution names.
        platforms: Platforms by name.
        requirements: Known requirements, by the distribution that has them.
    """

    prefix: str
    pythons: tuple[str, ...]
    ours: tuple[str, ...]
    platforms: dict[str, Platform]
    requirements: dict[str, tuple[Annotated[str, AfterValidator(_requirement)], ...]]

    def is_ours(self, name: str) -> bool:
        """Say whether a distribution's name, in any spelling, is one of ours."""
        return any(fnmatchcase(canonicalize_name(name), glob) for glob in self.ours)

    @property
    def index_key(self) -> str:
        """Key of the index's first page."""
        return f"{self.prefix}/simple/index.html"


@functools.cache
def mirror() -> Mirror:
    """Read the data file."""
    return load_toml(MIRROR_FILE, Mirror)
