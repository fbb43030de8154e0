"""Installing into a target environment, with uv or pip underneath.

uv does not read pip's configuration, so a person's indexes and find-links are read here
and given to it; with either installer the same sources are asked.
"""

from __future__ import annotations

import ast
import json
import os
import re
import sys
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from functools import cache
from typing import TYPE_CHECKING, Literal

from core import console, files, process
from core.errors import CheckError, EnvironmentSetupError, ProcessError

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence
    from pathlib import Path

    from core.env import Interpreter


Backend = Literal["uv", "pip"]

_TRUE = frozenset({"1", "true", "t", "yes", "y", "on"})  # what pip takes for yes
_RIGHTS = re.compile(r"AWS_|ACTIONS_|(GH|GITHUB)_TOKEN$")
_UV_SOURCES = frozenset(
    {
        "UV_DEFAULT_INDEX",
        "UV_INDEX",
        "UV_INDEX_URL",
        "UV_EXTRA_INDEX_URL",
        "UV_FIND_LINKS",
        "UV_NO_INDEX",
    }
)


@dataclass(frozen=True, kw_only=True)
class Sources:
    """Where packages come from.

    Attributes:
        index_url: The index; "" for the installer's default.
        extra_index_urls: Further indexes of the same rank.
        find_links: Folders and flat pages.
        no_index: Ask no index at all.
        cert: A CA bundle for the indexes.
    """

    index_url: str = ""
    extra_index_urls: tuple[str, ...] = ()
    find_links: tuple[str, ...] = ()
    no_index: bool = False
    cert: str = ""


@dataclass(frozen=True, kw_only=True)
class Install:
    """One call of the installer. Hashed and unhashed requirements never share one.

    Attributes:
        requirements: PEP 508 requirements, or paths of wheels.
        files: Requirements files.
        sources: Where packages come from; None for the person's own configuration.
        hashed: Every requirement carries hashes, and they are required.
        dependencies: Install what the requirements require, too.
        build_isolation: Build sdists in an environment of their own.
        pre: Allow pre-releases that no requirement names.
        gpu_family: What sdists are told of the GPU that they are built for: that of `rocm` requires its
            packages; "" where no sdist asks.
    """

    requirements: tuple[str, ...] = ()
    files: tuple[Path, ...] = ()
    sources: Sources | None = None
    hashed: bool = False
    dependencies: bool = True
    build_isolation: bool = True
    pre: bool = False
    gpu_family: str = ""

    @property
    def config_settings(self) -> tuple[str, ...]:
        """PEP 517 settings for sdists, which also keep their cached builds apart."""
        return (f"gpu-family={self.gpu_family}",) if self.gpu_family else ()

    @property
    def env(self) -> Mapping[str, str]:
        """Variables for sdists' builds, over the process's own."""
        return {"ROCM_SDK_TARGET_FAMILY": self.gpu_family} if self.gpu_family else {}


@cache
def configured() -> Sources:
    """Read the person's pip configuration: files and PIP_* variables, as pip itself sees them."""
    listed = process.capture([sys.executable, "-m", "pip", "config", "list"]).stdout
    return parse_configuration(listed)


def parse_configuration(listed: str) -> Sources:
    """Parse what `pip config list` prints; variables win over files, and ``install.`` over ``global.``."""
    settings: dict[str, str] = {}
    for scope in ("global.", "install.", ":env:."):
        for line in listed.splitlines():
            name, equals, value = line.partition("=")
            if equals and name.startswith(scope):
                settings[name.removeprefix(scope)] = str(ast.literal_eval(value))
    return Sources(
        index_url=settings.get("index-url", ""),
        extra_index_urls=tuple(settings.get("extra-index-url", "").split()),
        find_links=tuple(settings.get("find-links", "").split()),
        no_index=settings.get("no-index", "").lower() in _TRUE,
        cert=settings.get("cert", ""),
    )


def install(
    target: Interpreter, call: Install, *, backend: Backend = "uv", cache_dir: Path | None = None
) -> None:
    """Install into a target environment."""
    sources = call.sources or configured()
    argv = _uv(target, call, sources) if backend == "uv" else _pip(target, call, sources)
    # pip's cache of built wheels knows nothing of settings or of the family chosen
    if backend == "pip" and call.config_settings:
        argv.append("--no-cache-dir")
    elif cache_dir is not None:
        argv += ["--cache-dir", str(cache_dir)]
    env = {**environment_for(exact=call.sources is not None), **call.env}
    if sources.cert and backend == "uv":
        env.setdefault("SSL_CERT_FILE", sources.cert)
    try:
        process.run(argv, env=env)
    except ProcessError as problem:
        wanted = ", ".join((*call.requirements, *(path.name for path in call.files)))
        raise EnvironmentSetupError(
            f"{wanted} could not be installed into {target.prefix} (Python {target.version}).",
            hint="Its own words stand above. See --find-links, --index-url and your pip configuration.",
        ) from problem


def environment_for(*, exact: bool) -> dict[str, str]:
    """Give the installer's variables; for exact sources without any that could add another one.

    ``--no-config`` of uv does not concern its variables, nor ``--isolated`` of pip the machine's file.
    """
    # an installer runs the code of sdists, and needs none of this process's rights
    env = {name: value for name, value in process.inherited().items() if not _RIGHTS.match(name)}
    if not exact:
        return env
    kept = {name: value for name, value in env.items() if name not in _UV_SOURCES}
    return {**kept, "PIP_CONFIG_FILE": os.devnull}


def uv_program() -> str:
    """Give the path of the tool's own uv."""
    import uv

    return uv.find_uv_bin()


def _uv(target: Interpreter, call: Install, sources: Sources) -> list[str]:
    argv = [uv_program(), "pip", "install", "--no-config", "--python", str(target.executable)]
    # pip's rule: of all sources the highest version wins, so that both installers choose alike
    argv += ["--index-strategy", "unsafe-best-match", "--no-progress"]
    argv += [*source_arguments(sources), *_what(call)]
    if not call.build_isolation:
        argv.append("--no-build-isolation")
    if call.pre:
        argv += ["--prerelease", "allow"]
    if call.sources is not None and sources.find_links and not call.hashed:
        # uv's cache knows a folder's wheel by its name: of one that was built anew it would install the old
        argv.append("--refresh")
    return argv


def _pip(target: Interpreter, call: Install, sources: Sources) -> list[str]:
    argv = [sys.executable, "-m", "pip", "--python", str(target.executable)]
    argv += ["--disable-pip-version-check", "--no-input", "install", "--progress-bar", "off"]
    if call.sources is not None:
        # only the sources of the call: what the person configured must not be able to win
        argv.insert(3, "--isolated")
        argv += _pip_sources(sources)
    argv += _what(call)
    if not call.build_isolation:
        argv.append("--no-build-isolation")
    if call.pre:
        argv.append("--pre")
    return argv


def source_arguments(sources: Sources) -> list[str]:
    """Write sources as the arguments that uv and pip share."""
    argv: list[str] = []
    if sources.no_index:
        argv.append("--no-index")
    elif sources.index_url:
        argv += ["--index-url", sources.index_url]
    for url in () if sources.no_index else sources.extra_index_urls:
        argv += ["--extra-index-url", url]
    for location in sources.find_links:
        argv += ["--find-links", location]
    return argv


def _pip_sources(sources: Sources) -> list[str]:
    return [*source_arguments(sources), *(["--cert", sources.cert] if sources.cert else [])]


def _what(call: Install) -> list[str]:
    argv: list[str] = []
    if call.hashed:
        argv.append("--require-hashes")
    if not call.dependencies:
        argv.append("--no-deps")
    for setting in call.config_settings:
        argv += ["--config-settings", setting]
    for path in call.files:
        argv += ["-r", str(path)]
    return [*argv, *call.requirements]


def missing_dependencies(target: Interpreter) -> Sequence[str]:
    """List what installed packages require and the environment lacks, one sentence each."""
    checked = process.capture([uv_program(), "pip", "check", "--python", str(target.executable)], check=False)
    lines = (checked.stdout + checked.stderr).splitlines()
    return [line for line in lines if line.startswith("The package")] if checked.returncode else []


def require_complete(target: Interpreter) -> None:
    """See that everything that installed packages require is there, in the version they ask for."""
    missing = missing_dependencies(target)
    if missing:
        raise CheckError("The installed packages do not fit together:\n" + "\n".join(missing))


def pinned(path: Path, sources: Sources | None, *, gpu_family: str = "") -> Install:
    """Plan the installation of files that a requirements file pins by digest, and of nothing else."""
    return Install(
        files=(path,),
        sources=sources,
        hashed=True,
        dependencies=False,
        # what sdists are built with is installed before, and a run's page need not have it
        build_isolation=False,
        gpu_family=gpu_family,
    )


MARKER = "build-environment.json"


def digest_of_calls(target: Interpreter, calls: Sequence[Install], *, salt: object = None) -> str:
    """Hash what an environment is made from: interpreter, requirements, files' contents, sources."""
    content = [
        {**asdict(call), "files": [files.sha256(path) for path in call.files], "env": dict(call.env)}
        for call in calls
    ]
    return files.digest_of(
        {"python": target.version, "base": str(target.base_executable), "calls": content, "salt": salt}
    )


@contextmanager
def prepared(
    target: Interpreter,
    calls: Sequence[Install],
    *,
    digest: str,
    backend: Backend = "uv",
    cache_dir: Path | None = None,
    force: bool = False,
) -> Iterator[None]:
    """Make an environment hold what `calls` install and nothing else, and hold its lock while it is used."""
    if not target.virtual:
        raise EnvironmentSetupError(
            f"{target.executable} is no virtual environment; a bare interpreter is left alone.",
            hint="Run the stage through nox, or give --python a virtual environment's interpreter.",
        )
    # beside the environment, because emptying it would take a lock inside with it
    with files.locked(target.prefix.parent / f".{target.prefix.name}.lock", what=str(target.prefix)):
        marker = target.prefix / MARKER
        if (
            not force
            and marker.is_file()
            and json.loads(marker.read_text(encoding="utf-8"))["digest"] == digest
        ):
            console.detail(f"environment {target.prefix}: unchanged")
        else:
            with console.group(f"environment {target.prefix.name}"):
                marker.unlink(missing_ok=True)
                _empty(target, backend)
                for call in calls:
                    install(target, call, backend=backend, cache_dir=cache_dir)
            files.write_json(marker, {"digest": digest})
        yield


def _empty(target: Interpreter, backend: Backend) -> None:
    """Make the environment anew, from the interpreter it was made from."""
    if backend == "uv":
        argv = [uv_program(), "venv", "--no-config", "--quiet", "--clear"]
    else:
        import sys

        argv = [sys.executable, "-m", "virtualenv", "--quiet", "--clear"]
    try:
        process.run([*argv, "--python", target.base_executable, target.prefix])
    except ProcessError as problem:
        raise EnvironmentSetupError(f"The environment {target.prefix} could not be made anew.") from problem
