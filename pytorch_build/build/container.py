"""The command line that runs a session in a container, and what is mounted into it."""

from __future__ import annotations

import argparse
import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from pydantic import field_validator

from core import files, process
from core.cli.options import environment
from core.data import Dated, data_file

if TYPE_CHECKING:
    from core.env.engines import Engine

DATA = Path(__file__).with_name("container.toml")
CACHE = ".cache/container"
_DIGEST_LETTERS = 64


class Container(Dated):
    """Content of container.toml: the image that sessions run in, and which variables and caches it gets."""

    image: str
    tool_python: str
    python_bin: str
    caches: dict[str, str]
    passed: tuple[str, ...]
    script: str

    @field_validator("image")
    @classmethod
    def _has_digest(cls, image: str) -> str:
        """Return an image's name; one without a digest is an error."""
        _name, _separator, digest = image.partition("@sha256:")
        if len(digest) != _DIGEST_LETTERS:
            raise ValueError(f"{image!r} names no digest (NAME@sha256:…), so it could change")
        return image


load_container = data_file(DATA, Container)


def _user_and_group() -> tuple[int, int]:
    """Return the numbers of this process's user and group; Windows has none."""
    if hasattr(os, "getuid"):
        return os.getuid(), os.getgid()
    return 0, 0


@dataclass(frozen=True, kw_only=True)
class ContainerSession:
    """A session that is to run in a container.

    Attributes:
        name: The session's name.
        python: The version of the Python that it runs with.
        arguments: Its arguments.
        root: The checkout.
        user: The numbers of the user and the group that it runs as.
        present: The names of the machine's variables.
    """

    name: str
    python: str
    arguments: tuple[str, ...]
    root: Path
    user: tuple[int, int] = field(default_factory=_user_and_group)
    machine_variables: frozenset[str] = field(default_factory=lambda: frozenset(environment()))

    def keeps_user(self, engine: Engine) -> bool:
        """Return whether the engine must be told to keep the user: podman without root maps it to root."""
        user_number, _group_number = self.user
        return engine == "podman" and user_number != 0


def session_command(engine: Engine, session: ContainerSession) -> tuple[str, ...]:
    """Return the podman or docker command that runs a session in a container, the checkout mounted."""
    container = load_container()
    cache = session.root / CACHE
    cache_variables = {variable: str(cache / folder) for variable, folder in sorted(container.caches.items())}
    command = engine_command(
        engine, session, cache_variables, session.machine_variables.intersection(container.passed)
    )

    tag = f"cp{session.python.replace('.', '')}"
    script = f'export PATH="{container.python_bin.replace("{tag}", tag)}:$PATH"\n{container.script}'
    command += [
        container.image,
        "bash",
        "-ec",
        script,
        "container",
        str(cache / "tool"),
        container.tool_python,
    ]
    command += ["--session", session.name, "--force-pythons", session.python]
    command += ["--envdir", str(cache / "nox"), "--", *session.arguments]
    return tuple(command)


def engine_command(
    engine: Engine,
    session: ContainerSession,
    variables: Mapping[str, str],
    passed_variables: Iterable[str],
    *options: str,
) -> list[str]:
    """Return the first part of a container's command, before the image: user, mounts and variables.

    Args:
        engine: The program.
        session: What runs inside.
        variables: The variables that are set inside.
        passed_variables: Names of the machine's variables that hold inside, too; values are not shown.
        options: More options of the engine.
    """
    user_number, group_number = session.user
    command: list[str] = [engine, "run", "--rm", "--init", "--workdir", str(session.root), *options]
    if session.keeps_user(engine):
        command += ["--userns", "keep-id"]
    command += ["--user", f"{user_number}:{group_number}"]

    for path in (session.root, *_paths_to_mount(session.arguments, session.root)):
        command += ["--mount", f"type=bind,source={path},target={path}"]
    for name, value in variables.items():
        command += ["--env", f"{name}={value}"]
    for name in sorted(passed_variables):
        command += ["--env", name]
    return command


def parser_of_options_outside() -> argparse.ArgumentParser:
    """Return a parser of the options that only the session outside of the container reads."""
    parser = argparse.ArgumentParser(
        add_help=False,
        allow_abbrev=False,
    )
    parser.add_argument("--python")
    return parser


def arguments_inside(arguments: Sequence[str], outside_parser: argparse.ArgumentParser) -> tuple[str, ...]:
    """Return a session's arguments without the options that only the session outside reads."""
    end = arguments.index("--") if "--" in arguments else len(arguments)
    _options_outside, other_arguments = outside_parser.parse_known_args(arguments[:end])
    return (*other_arguments, *arguments[end:])


def _paths_to_mount(arguments: Sequence[str], root: Path) -> tuple[Path, ...]:
    """Return the existing paths outside of the checkout that arguments name, each once."""
    named_paths: set[Path] = set()
    for argument in arguments:
        if "://" not in argument:
            _option, _equals, value = argument.rpartition("=")
            named_paths.add(Path(os.path.normpath(root / value)))

    mounted_paths = [root]
    for path in sorted(named_paths):
        is_mounted = any(path.is_relative_to(mounted_path) for mounted_path in mounted_paths)
        if not is_mounted and path.exists():
            mounted_paths.append(path)
    return tuple(mounted_paths[1:])


def run_session(engine: Engine, session: ContainerSession, *, env: Mapping[str, str]) -> None:
    """Run a session in the container."""
    for folder in load_container().caches.values():
        files.ensure_folder(session.root / CACHE / folder)
    process.run(
        session_command(engine, session),
        cwd=session.root,
        env=env,
    )
