"""Which GPU families can be tested where: the runners' labels, and who may be released without."""

from __future__ import annotations

import functools
from pathlib import Path
from typing import Self

from pydantic import model_validator

from core.data import Model, load_toml
from core.errors import nearest
from core.families import families
from core.outputs import Platform  # noqa: TC001 - pydantic reads it

RUNNERS_FILE = Path(__file__).with_name("runners.toml")


class Runner(Model):
    """What one family has on one platform.

    Attributes:
        test_runner: Label of the machines that test it; "" where there is none.
        bypass_tests_for_releases: Whether it is released untested where there is no such machine.
    """

    test_runner: str = ""
    bypass_tests_for_releases: bool = False


class Runners(Model):
    """What `runners.toml` says: families, and platforms of each."""

    families: dict[str, dict[Platform, Runner]]

    @model_validator(mode="after")
    def _known(self) -> Self:
        known = families()
        for name in self.families:
            if name not in known:
                raise ValueError(f"{name!r} is no GPU family. {nearest(name, known)}")
        return self

    def of(self, gpu_family: str, platform: str) -> Runner:
        """Give what a family has on a platform; one that the data does not name has nothing."""
        for name, runner in self.families.get(gpu_family, {}).items():
            if name == platform:
                return runner
        return Runner()


@functools.cache
def runners() -> Runners:
    """Read the data file."""
    return load_toml(RUNNERS_FILE, Runners)
