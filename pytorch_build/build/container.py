"""The command line that runs a session in a container, and what is mounted into it. Pure but for `run`."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from pydantic import field_validator

from core import files, process
from core.data import Dated, Model, load_toml
from core.env.engines import RUNNERS

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from core.env.engines import Engine

DATA = Path(__file__).with_name("container.toml")
CACHE = ".cache/container"
# The container's own environment for the tool; the lock's digest tells whether it is current.
_SCRIPT = """\
tool="$1"; tool_python="$2"; shift 2
mark="$tool/lock"
if ! cmp -s requirements.txt "$mark"; then
    "$tool_python" -m venv --clear "$tool"
    "$tool/bin/python" -m pip install --quiet --require-hashes -r requirements.txt
    cp requirements.txt "$mark"
fi
exec "$tool/bin/python" -m nox "$@"
"""


class Environment(Model):
    """Variables that hold inside."""

    passed: tuple[str, ...]


class Container(Dated):
    """The data: which image, and what of the machine it sees."""

    image: str
    tool_python: str
    python_bin: str
    caches: dict[str, str]
    environment: Environment

    @field_validator("image")
    @classmethod
    def _pinned(cls, value: str) -> str:
        digest = value.partition("@sha256:")[2]
        if len(digest) != len("0" * 64):
            raise ValueError(f"{value!r} names no digest (NAME@sha256:…), so it could change")
        return value


@dataclass(frozen=True, kw_only=True)
class Job:
    """What is to run."""

    session: str
    python: str
    words: tuple[str, ...]
    root: Path
    user: tuple[int, int]
    present: frozenset[str]


def load_container(path: Path = DATA) -> Container:
    """Read the data.

    Raises:
        DataError: It breaks the schema, or the image is not pinned.
    """
    return load_toml(path, Container)


def command(engine: Engine, data: Container, job: Job, mounts: Sequence[Path]) -> tuple[str, ...]:
    """Write the command: the checkout and the mounts lie where they lie on the machine."""
    cache = job.root / CACHE
    tag = f"cp{job.python.replace('.', '')}"
    words = [engine, "run", "--rm", "--init", "--workdir", str(job.root)]
    # podman without root maps the person to root unless it is told to keep the number
    words += ["--userns", "keep-id"] if engine == "podman" else []
    words += ["--user", f"{job.user[0]}:{job.user[1]}"]
    for place in (job.root, *mounts):
        words += ["--mount", f"type=bind,source={place},target={place}"]
    for variable, folder in sorted(data.caches.items()):
        words += ["--env", f"{variable}={cache / folder}"]
    for variable in sorted(job.present.intersection(data.environment.passed)):
        words += ["--env", variable]
    script = f'export PATH="{data.python_bin.replace("{tag}", tag)}:$PATH"\n{_SCRIPT}'
    inner = ["bash", "-ec", script, "container", str(cache / "tool"), data.tool_python]
    nox = ["--session", job.session, "--force-pythons", job.python, "--envdir", str(cache / "nox")]
    return (*words, data.image, *inner, *nox, "--", *job.words)


def inner_words(words: Sequence[str], *, project: str) -> tuple[str, ...]:
    """Give a session's posargs out of its front door's arguments.

    What chooses the container and the machine's own Python goes.
    """
    kept: list[str] = []
    skip = False
    dropped_project = False
    for word, following in zip(words, [*words[1:], ""], strict=True):
        if skip:
            skip = False
        elif word == "--python" or (word == "--container" and following in {"any", *RUNNERS}):
            skip = True
        elif word == project and not dropped_project:
            dropped_project = True
        elif not word.startswith(("--container", "--python=")):
            kept.append(word)
    return tuple(kept)


def mounts_of(words: Sequence[str], root: Path) -> tuple[Path, ...]:
    """Find what the posargs name of the machine outside of the checkout."""
    named = {Path(word.rpartition("=")[2]) for word in words if "://" not in word}
    there = sorted(path for path in named if path.is_absolute() and path.exists())
    found: list[Path] = []
    for path in there:
        if not any(path.is_relative_to(place) for place in (root, *found)):
            found.append(path)
    return tuple(found)


def run(engine: Engine, job: Job, *, env: Mapping[str, str]) -> None:
    """Run a session in the container."""
    data = load_container()
    for folder in data.caches.values():
        files.made(job.root / CACHE / folder)
    process.run(command(engine, data, job, mounts_of(job.words, job.root)), cwd=job.root, env=env)


def this_user() -> tuple[int, int]:
    """Give the numbers of the person and the group that run this; 0 and 0 where there are none."""
    if not hasattr(os, "getuid"):
        return 0, 0
    return os.getuid(), os.getgid()
