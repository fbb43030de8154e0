"""The command line that runs a session in a container, and what is mounted into it. Pure but for `run`."""

from __future__ import annotations

import argparse
import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pydantic import field_validator

from core import files, process
from core.cli.options import environment
from core.data import Dated, data_file

if TYPE_CHECKING:
    from core.env.engines import Engine

DATA = Path(__file__).with_name("container.toml")
CACHE = ".cache/container"


class Container(Dated):
    """The data: which image, and what of the machine it sees."""

    image: str
    tool_python: str
    python_bin: str
    caches: dict[str, str]
    passed: tuple[str, ...]
    script: str

    @field_validator("image")
    @classmethod
    def _pinned(cls, value: str) -> str:
        digest = value.partition("@sha256:")[2]
        if len(digest) != len("0" * 64):
            raise ValueError(f"{value!r} names no digest (NAME@sha256:…), so it could change")
        return value


load_container = data_file(DATA, Container)


@dataclass(frozen=True, kw_only=True)
class Job:
    """What is to run, for the user's and the group's number, with the machine's variables."""

    session: str
    python: str
    words: tuple[str, ...]
    root: Path
    user: tuple[int, int] = (os.getuid(), os.getgid()) if hasattr(os, "getuid") else (0, 0)
    present: frozenset[str] = field(default_factory=lambda: frozenset(environment()))

    def kept_by(self, engine: Engine) -> bool:
        """Whether the user's number must be kept: podman without root maps it to root otherwise."""
        return engine == "podman" and self.user[0] != 0


def command(engine: Engine, job: Job) -> tuple[str, ...]:
    """Return the command: the checkout and the mounts lie where they lie on the machine."""
    data, cache = load_container(), job.root / CACHE
    tag = f"cp{job.python.replace('.', '')}"
    own = {variable: f"{cache / folder}" for variable, folder in sorted(data.caches.items())}
    words = engine_words(engine, job, own, job.present.intersection(data.passed))
    script = f'export PATH="{data.python_bin.replace("{tag}", tag)}:$PATH"\n{data.script}'
    inner = ["bash", "-ec", script, "container", str(cache / "tool"), data.tool_python]
    nox = ["--session", job.session, "--force-pythons", job.python, "--envdir", str(cache / "nox")]
    return (*words, data.image, *inner, *nox, "--", *job.words)


def engine_words(
    engine: Engine, job: Job, own: Mapping[str, str], passed: Iterable[str], *options: str
) -> list[str]:
    """Return the command up to the image: with variables of its own, and those of the machine by name."""
    words = [engine, "run", "--rm", "--init", "--workdir", str(job.root), *options]
    words += ["--userns", "keep-id"] if job.kept_by(engine) else []
    words += ["--user", f"{job.user[0]}:{job.user[1]}"]
    for place in (job.root, *_mounts(job.words, job.root)):
        words += ["--mount", f"type=bind,source={place},target={place}"]
    for variable in (*(f"{name}={value}" for name, value in own.items()), *sorted(passed)):
        words += ["--env", variable]
    return words


def inner_words(words: Sequence[str], **outer: dict[str, Any]) -> tuple[str, ...]:
    """Return a session's posargs: a front door's words without `outer` arguments and the machine's Python."""
    parser = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    for name, settings in {"--python": {}, **outer}.items():
        parser.add_argument(name, **settings)
    end = words.index("--") if "--" in words else len(words)
    return (*parser.parse_known_args(words[:end])[1], *words[end:])


def _mounts(words: Sequence[str], root: Path) -> tuple[Path, ...]:
    """Find what the posargs name of the machine outside of the checkout."""
    named = {Path(os.path.normpath(root / word.rpartition("=")[2])) for word in words if "://" not in word}
    found: list[Path] = []
    for path in sorted(named):
        if not any(path.is_relative_to(place) for place in (root, *found)) and path.exists():
            found.append(path)
    return tuple(found)


def run(engine: Engine, job: Job, *, env: Mapping[str, str]) -> None:
    """Run a session in the container."""
    for folder in load_container().caches.values():
        files.made(job.root / CACHE / folder)
    process.run(command(engine, job), cwd=job.root, env=env)
