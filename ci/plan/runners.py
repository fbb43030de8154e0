"""The machines of CI: who builds, who has which GPU, and who may be released without a test."""

from __future__ import annotations

import functools
from pathlib import Path
from typing import TYPE_CHECKING, Self

from pydantic import Field, model_validator

from core import files
from core.data import Model, load_toml
from core.errors import nearest
from core.families import families
from core.run.outputs import Platform  # noqa: TC001 - pydantic reads it

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

RUNNERS_FILE = Path(__file__).parents[1] / "runners.toml"


class Runner(Model):
    """What one family has on one platform."""

    test_runner: str = ""
    more_test_runners: tuple[str, ...] = ()
    kernels: dict[str, str] = Field(default_factory=dict)
    several_gpus: str = ""
    bypass_tests_for_releases: bool = False


class Machines(Model):
    """What one platform has besides."""

    build: str
    sanitizer: str = ""
    fallback: str
    without_gpu: str = ""


class Runners(Model):
    """What `runners.toml` says."""

    github: tuple[str, ...] = ()
    self_hosted: dict[str, str] = Field(default_factory=dict)
    out_of_service: dict[str, str] = Field(default_factory=dict)
    machines: dict[Platform, Machines] = Field(default_factory=dict)
    families: dict[str, dict[Platform, Runner]]

    @model_validator(mode="after")
    def _known(self) -> Self:
        known = families()
        for name in self.families:
            if name not in known:
                raise ValueError(f"{name!r} is no GPU family. {nearest(name, known)}")
        served = {*self.github, *self.self_hosted}
        for where, label in self._labels() if served else ():
            if label not in served:
                raise ValueError(
                    f"{where}: nobody serves the runner label {label!r}. {nearest(label, served)}"
                )
        return self

    def _labels(self) -> Iterator[tuple[str, str]]:
        """Give every label that the data asks for, and where."""
        for platform, machines in self.machines.items():
            for field, label in machines:
                if label:
                    yield f"machines.{platform}.{field}", label
        for name, platforms in self.families.items():
            for platform, runner in platforms.items():
                more = (*runner.more_test_runners, *runner.kernels.values(), runner.several_gpus)
                for label in (runner.test_runner, *more):
                    if label:
                        yield f"families.{name}.{platform}", label
        for label in self.out_of_service:
            yield "out_of_service", label

    def of(self, gpu_family: str, platform: str) -> Runner:
        """Give what a family has on a platform; one that the data does not name has nothing."""
        for name, runner in self.families.get(gpu_family, {}).items():
            if name == platform:
                return runner
        return Runner()

    def unserved(self, label: str, owner: str) -> str:
        """Return why a job for a label would never start in this owner's repository, or ""."""
        if label in self.out_of_service:
            return f"{label} is out of service: {self.out_of_service[label]}"
        if label in self.github:
            return ""
        if label not in self.self_hosted:
            return f"nobody serves the runner label {label!r}"
        served = self.self_hosted[label]
        if owner.casefold() != served.casefold():
            return f"{label} serves repositories of {served} only"
        return ""


def stable_choice(labels: Sequence[str], key: str) -> str:
    """Choose one of several labels, the same one each time for the same key."""
    return labels[int(files.sha256_text(key)[:8], 16) % len(labels)]


@functools.cache
def runners() -> Runners:
    """Read the data file."""
    return load_toml(RUNNERS_FILE, Runners)
