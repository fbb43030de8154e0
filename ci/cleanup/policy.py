"""The retention policy: `ci/retention.toml`."""

from __future__ import annotations

import functools
import re
from pathlib import Path
from typing import Self

from pydantic import Field, field_validator, model_validator

from core.data import Model, load_toml
from core.errors import UsageError, nearest

RETENTION_FILE = Path(__file__).parent.parent / "retention.toml"


class Policy(Model):
    """How long what a release type leaves is kept."""

    days: int | None = Field(default=None, ge=1)
    newest: int = Field(default=1, ge=1)
    forever: bool = False
    expire_days: int | None = Field(default=None, ge=1)

    @model_validator(mode="after")
    def _one_of_both(self) -> Self:
        if self.forever == (self.days is not None):
            raise ValueError("give either days or forever = true.")
        if self.expire_days is not None and (self.days is None or self.expire_days < self.days):
            raise ValueError("expire_days must not be before days.")
        return self


class Retention(Model):
    """What `retention.toml` says."""

    run_ids: str
    at_most_percent: int = Field(ge=1, le=100)
    abort_uploads_days: int = Field(ge=1)
    policies: dict[str, Policy]

    @field_validator("run_ids")
    @classmethod
    def _is_an_expression(cls, value: str) -> str:
        try:
            re.compile(value)
        except re.error as problem:
            raise ValueError(f"{value!r} is no regular expression: {problem}.") from problem
        return value

    def policy(self, name: str) -> Policy:
        """Look a policy up."""
        if name not in self.policies:
            raise UsageError(f"There is no retention policy {name!r}. {nearest(name, self.policies)}")
        return self.policies[name]


@functools.cache
def retention() -> Retention:
    """Read the data file."""
    return load_toml(RETENTION_FILE, Retention)
