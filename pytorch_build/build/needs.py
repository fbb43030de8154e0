"""What builds take of the machine, as data, and how many compilers fit into it."""

from __future__ import annotations

from functools import cache
from pathlib import Path

from pydantic import Field

from core.data import Model, load_toml
from core.errors import UsageError, nearest

_FILE = Path(__file__).with_name("needs.toml")


class Need(Model):
    """What one build takes."""

    disk: float = Field(gt=0)
    memory: float = Field(gt=0)
    job: float = Field(gt=0)
    python_headers: bool


class Tools(Model):
    """The oldest versions that work."""

    cmake: str
    ninja: str
    ninja_windows: str


class Needs(Model):
    """Content of needs.toml."""

    projects: dict[str, Need]
    sample: Need
    tools: Tools


@cache
def load_needs() -> Needs:
    """Read needs.toml."""
    return load_toml(_FILE, Needs)


def need_of(project: str, *, sample: bool) -> Need:
    """Look up what a project's build takes; the sample's builds take little."""
    needs = load_needs()
    if project not in needs.projects:
        raise UsageError(f"{project!r} is no component.", hint=nearest(project, needs.projects))
    return needs.sample if sample else needs.projects[project]


def max_jobs(need: Need, *, cores: int, memory_gib: float, wanted: str = "") -> int:
    """Say how many compilers run at a time: as asked, else as many as cores and memory allow."""
    if not wanted:
        return max(1, min(cores, int(memory_gib // need.job)))
    if not (wanted.isascii() and wanted.isdecimal() and int(wanted)):
        raise UsageError(f"MAX_JOBS={wanted} is no number of jobs.", hint="Give a number from 1 up.")
    return int(wanted)
