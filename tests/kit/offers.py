"""Files that an index or a run offers, of which none exists."""

from core.packages.candidates import Candidate


def make_offer(name: str, version: str, *, filename: str = "", yanked: bool = False) -> Candidate:
    """Return an offer, by default of a wheel for any Python."""
    default = f"{name.replace('-', '_')}-{version}-py3-none-any.whl"
    return Candidate(name=filename or default, distribution=name, version=version, yanked=yanked)
