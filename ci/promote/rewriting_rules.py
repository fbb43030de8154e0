"""Where packages carry a version: `rewriting.toml`, checked."""

from __future__ import annotations

import functools
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Literal

from core.data import Model, load_toml

RULES_FILE = Path(__file__).with_name("rewriting.toml")
Kind = Literal["rocm", "pytorch", "constant"]


class Distributions(Model):
    """Which distributions take part, as globs of normalised names."""

    rocm: tuple[str, ...]
    pytorch: tuple[str, ...]
    constant: tuple[str, ...] = ()


class Place(Model):
    """A member that holds a version between quotes."""

    distributions: tuple[str, ...]
    members: str
    holds: Literal["own", "rocm"]
    required: bool = True
    targets: bool = False


class Mention(Model):
    """Members that may go on mentioning the old version."""

    distributions: tuple[str, ...]
    members: str
    reason: str


class Rules(Model):
    """What `rewriting.toml` says."""

    distributions: Distributions
    places: tuple[Place, ...]
    mentions: tuple[Mention, ...] = ()

    def kind_of(self, distribution: str) -> Kind | None:
        """Say how a distribution carries ROCm's version, by its normalised name; None for others."""
        if _any(distribution, self.distributions.rocm):
            return "rocm"
        if _any(distribution, self.distributions.pytorch):
            return "pytorch"
        return "constant" if _any(distribution, self.distributions.constant) else None

    def places_of(self, distribution: str) -> tuple[Place, ...]:
        """Give the places of a distribution, by its normalised name."""
        return tuple(place for place in self.places if _any(distribution, place.distributions))

    def may_mention(self, distribution: str, member: str) -> bool:
        """Whether a member may hold the old version afterwards."""
        return any(
            _any(distribution, one.distributions) and fnmatchcase(member, one.members)
            for one in self.mentions
        )


@functools.cache
def rules() -> Rules:
    """Read the data file."""
    return load_toml(RULES_FILE, Rules)


def _any(name: str, globs: tuple[str, ...]) -> bool:
    return any(fnmatchcase(name, glob) for glob in globs)
