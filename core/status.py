"""Whether a step of the pipeline has work to do, as a value."""

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class UpToDate:
    """The results of a step were made from what its inputs are now."""


@dataclass(frozen=True, kw_only=True)
class Pending:
    """A step has work to do."""

    reasons: tuple[str, ...]


Status = UpToDate | Pending
