"""Installing into a target environment, with uv or pip underneath; locked requirements, whole or in part.

uv does not read pip's configuration, so the user's indexes and find-links are read here and passed to it;
both installers query the same sources. Each environment holds just what its build or test needs, and is
kept while that is the same.
"""

import ast
import json
import os
import re
import sys
import tempfile
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from functools import cache
from pathlib import Path
from typing import Literal

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from packaging.version import Version

from core import console, files, process
from core.cli.options import Common
from core.env import Interpreter, installed
from core.environment import allowed
from core.errors import CheckError, DataError, EnvironmentSetupError, ProcessError, nearest
from core.http import fetch, links, without_secret
from core.wheel import parse_wheel_name
from core.wheel.distributions import is_distribution, is_ours, our_names

Backend = Literal["uv", "pip"]
Whose = Literal["others", "ours", "prebuilt"]
NOTHING = "<0.dev0"  # no version is lower (PEP 440)

_NAME = re.compile(r"(?<!\S)[\w.-]+=(?=\w+:)")  # ``UV_INDEX=name=https://…``
_TRUE = frozenset({"1", "true", "t", "yes", "y", "on"})  # what pip takes for yes
_PIN = re.compile(r"(?m)^([\w.-]+)==([^\s;\\]+)")


@dataclass(frozen=True, kw_only=True)
class Sources:
    """Where packages come from; `cert` is a CA bundle for the indexes."""

    index_url: str = ""
    extra_index_urls: tuple[str, ...] = ()
    find_links: tuple[str, ...] = ()
    no_index: bool = False
    cert: str = ""


@dataclass(frozen=True, kw_only=True)
class Install:
    """One call of the installer. Hashed and unhashed requirements never share one.

    `sources` are None for the user's own configuration; `gpu_family` is what sdists are built for, as that of
    `rocm` reads it. `whose` says whether packages of our names may come of it: no `others`, whoever requires
    them; with a `prebuilt` torch its own.
    """

    requirements: tuple[str, ...] = ()
    files: tuple[Path, ...] = ()
    sources: Sources | None = None
    hashed: bool = False
    dependencies: bool = True
    build_isolation: bool = True
    gpu_family: str = ""
    whose: Whose = "others"

    @property
    def planned(self) -> Mapping[str, str]:
        """Our packages that the call names exactly: normalised name to version."""
        texts = (path.read_text(encoding="utf-8") for path in self.files if self.hashed)
        pins = dict(one for text in texts for one in _PIN.findall(text))
        wheels = [parse_wheel_name(Path(one).name) for one in self.requirements if one.endswith(".whl")]
        found = {**pins, **{one.distribution: str(one.version) for one in wheels}}
        return {canonicalize_name(name): version for name, version in found.items() if is_ours(name)}

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
    """Read the user's configuration: pip's files and PIP_* variables, as pip itself sees them, and uv's."""
    env = process.inherited()
    listed = process.capture([sys.executable, "-m", "pip", "config", "list"], env=env).stdout
    found = parse_configuration(listed, env)
    there = tuple(one for one in found.find_links if "://" in one or Path(one).exists())
    for folder in [one for one in found.find_links if one not in there]:
        console.warn(f"{folder}, among the find-links of your pip or uv configuration, does not exist.")
    return replace(found, find_links=there)


def parse_configuration(listed: str, env: Mapping[str, str]) -> Sources:
    """Parse what `pip config list` prints; variables win over files, and ``install.`` over ``global.``.

    Indexes and find-links of uv's variables (`env`) come first.
    """
    settings: dict[str, str] = {}
    for scope in ("global.", "install.", ":env:."):
        for line in listed.splitlines():
            name, equals, value = line.partition("=")
            if equals and name.startswith(scope):
                settings[name.removeprefix(scope)] = str(ast.literal_eval(value))
    more = f"{env.get('UV_INDEX', '')} {env.get('UV_EXTRA_INDEX_URL', '')}"
    links = env.get("UV_FIND_LINKS", "").replace(",", " ").split()
    return Sources(
        index_url=env.get("UV_DEFAULT_INDEX") or env.get("UV_INDEX_URL") or settings.get("index-url", ""),
        extra_index_urls=(*_NAME.sub("", more).split(), *settings.get("extra-index-url", "").split()),
        find_links=(*links, *settings.get("find-links", "").split()),
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
        with tempfile.TemporaryDirectory() as folder:
            process.run([*argv, *_refusals(target, call, Path(folder))], env=env, quiet=True)
    except ProcessError as problem:
        wanted = ", ".join((*call.requirements, *(path.name for path in call.files)))
        raise EnvironmentSetupError(
            f"{wanted} could not be installed into {target.prefix} (Python {target.version})."
            + unanswered(sources),
            hint="See --find-links, --index-url and your pip configuration.",
        ) from problem


def unanswered(sources: Sources) -> str:
    """Name the pages that do not answer, or list nothing: installers call all of that "not found"."""
    pages = filter(None, (sources.index_url, *sources.extra_index_urls, *sources.find_links))
    answers = {page: fetch(page, cert=sources.cert) for page in pages if page.startswith("http")}
    told = {url: one.problem or _doubt(one.text or "") for url, one in answers.items()}
    return "".join(f"\n{without_secret(url)}: {why}." for url, why in told.items() if why)


def _doubt(page: str) -> str:
    """Return what is strange about a page that has neither projects (PEP 503) nor files: a login, say."""
    listed = any(url.endswith("/") or is_distribution(one.name) for url, one in links(page).items())
    return "" if listed else "it answers with a page that lists no package, so it may be no index"


def refused(*, but: Collection[str] = ()) -> list[str]:
    """Return constraints that let no package of our names be chosen, `but` for some."""
    return [f"{name}{NOTHING}" for name in sorted(our_names().difference(but))]


def _refusals(target: Interpreter, call: Install, folder: Path) -> list[str]:
    """Return what keeps strangers' packages of our names out, also out of what sdists are built with."""
    if call.whose == "ours":
        return []
    written = {}
    if call.build_isolation:
        written["--build-constraint"] = refused()
    if call.dependencies and not call.hashed:
        held = {one.name: f"{one.name}=={one.version}" for one in installed(target) if is_ours(one.name)}
        lines = [line for name, line in held.items() if name not in call.planned]
        lines += refused(but=[*held, *call.planned]) if call.whose == "others" else []
        written["--constraint"] = lines
    for option, lines in written.items():
        files.write_text(folder / f"{option}.txt", "\n".join(lines))
    return [word for option in written for word in (option, str(folder / f"{option}.txt"))]


def require_planned(target: Interpreter, planned: Mapping[str, str], *, more: bool = False) -> Sequence[str]:
    """Require that the packages of our names are the planned ones, file by file; return others that may be.

    Raises:
        CheckError: One is missing, of another version, there twice, a stranger's, or altered by another.
    """
    found = [one for one in installed(target) if is_ours(one.name)]
    counted = Counter(one.name for one in found)
    strangers = [f"{one.name} {one.version}" for one in found if one.name not in planned]
    problems = [f"{one} is not one of those that were chosen." for one in strangers if not more]
    problems += [f"{name} {planned[name]} is missing." for name in sorted(planned) if not counted[name]]
    problems += [f"{name} is there {times} times." for name, times in counted.items() if times > 1]
    for one in found:
        if one.name in planned and Version(one.version) != Version(planned[one.name]):
            problems.append(f"{one.name} is {one.version}, not {planned[one.name]}.")
        elif one.name in planned and (file := one.altered):
            problems.append(f"{file} is not the file of {one.name} {one.version}.")
    if problems:
        raise CheckError(
            f"{target.prefix} does not hold what was chosen:\n" + "\n".join(problems),
            hint="Another package brought or altered them: see which one, and make the environment anew "
            "(--force, --clean).",
        )
    return strangers


def environment_for(*, exact: bool) -> dict[str, str]:
    """Return the installer's variables: none names a source; for exact ones pip reads no file either.

    ``--no-config`` of uv does not concern its variables, nor ``--isolated`` of pip the machine's file.
    """
    # an installer runs the code of sdists
    env = allowed(process.inherited(), program="installers")
    return {**env, "PIP_CONFIG_FILE": os.devnull} if exact else env


def uv_program() -> str:
    """Return the path of the tool's own uv."""
    import uv

    return uv.find_uv_bin()


def _uv(target: Interpreter, call: Install, sources: Sources) -> list[str]:
    # uv's cache knows a folder's wheel by its name: of one that was built anew it would install the old
    refresh = call.sources is not None and sources.find_links and not call.hashed
    return [
        *(uv_program(), "pip", "install", "--no-config", "--python", str(target.executable)),
        # pip's rule: of all sources the highest version wins, so that both installers choose alike
        *("--index-strategy", "unsafe-best-match", "--no-progress"),
        *source_arguments(sources),
        *_what(call),
        *(("--refresh",) if refresh else ()),
    ]


def _pip(target: Interpreter, call: Install, sources: Sources) -> list[str]:
    # only the sources of the call: what the user configured must not be able to win
    exact = call.sources is not None
    return [
        *(sys.executable, "-m", "pip", *(["--isolated"] if exact else [])),
        *("--python", str(target.executable)),
        *("--disable-pip-version-check", "--no-input", "install", "--progress-bar", "off"),
        *source_arguments(sources),
        *(("--cert", sources.cert) if exact and sources.cert else ()),
        *_what(call),
    ]


def source_arguments(sources: Sources) -> list[str]:
    """Return sources as the arguments that uv and pip share."""
    index = ("--index-url", sources.index_url) if sources.index_url else ()
    extra = (word for url in sources.extra_index_urls for word in ("--extra-index-url", url))
    links = (word for location in sources.find_links for word in ("--find-links", location))
    return [*(("--no-index",) if sources.no_index else (*index, *extra)), *links]


def _what(call: Install) -> list[str]:
    return [
        *(("--require-hashes",) if call.hashed else ()),
        *(() if call.dependencies else ("--no-deps",)),
        *(() if call.build_isolation else ("--no-build-isolation",)),
        *(word for setting in call.config_settings for word in ("--config-settings", setting)),
        *(word for path in call.files for word in ("-r", str(path))),
        *call.requirements,
    ]


def missing_dependencies(target: Interpreter) -> Sequence[str]:
    """Return what installed packages require and the environment lacks, one sentence each."""
    checked = process.capture([uv_program(), "pip", "check", "--python", str(target.executable)], check=False)
    lines = (checked.stdout + checked.stderr).splitlines()
    return [line for line in lines if line.startswith("The package")] if checked.returncode else []


def require_complete(target: Interpreter) -> None:
    """Require all dependencies of installed packages, in the right versions."""
    missing = missing_dependencies(target)
    if missing:
        raise CheckError("The installed packages do not fit together:\n" + "\n".join(missing))


MARKER = "build-environment.json"


def digest_of_calls(target: Interpreter, calls: Sequence[Install], *, salt: object = None) -> str:
    """Return the digest of what fills an environment: interpreter, requirements, contents of files.

    Hashed requirements are the same files wherever they come from: a run that is served here has another
    port each time. Of others the sources count, too.
    """
    content = [
        {
            **asdict(call),
            "files": [files.sha256(path) for path in call.files],
            "env": dict(call.env),
            "sources": None if call.hashed or call.sources is None else asdict(call.sources),
        }
        for call in calls
    ]
    return files.digest_of(
        {"python": target.version, "base": str(target.base_executable), "calls": content, "salt": salt}
    )


def is_filled(target: Interpreter, digest: str) -> bool:
    """Return whether an environment holds what has this digest."""
    marker = target.prefix / MARKER
    if not marker.is_file():
        return False
    return bool(json.loads(marker.read_text(encoding="utf-8"))["digest"] == digest)


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
            f"{target.executable} is not a virtual environment; a bare interpreter is left alone.",
            hint="Run the stage through nox, or give --python a virtual environment's interpreter.",
        )
    # beside the environment, because emptying it would take a lock inside with it
    beside = target.prefix.parent / f".{target.prefix.name}"
    with files.locked(Path(f"{beside}.lock"), what=str(target.prefix)):
        if is_filled(target, digest) and not force:
            console.echo(f"environment {target.prefix}: unchanged")
        else:
            marker = target.prefix / MARKER
            with console.group(f"environment {target.prefix.name}"), process.logged(Path(f"{beside}.log")):
                marker.unlink(missing_ok=True)
                make(target.prefix, target.base_executable, backend)
                for call in calls:
                    install(target, call, backend=backend, cache_dir=cache_dir)
                planned = {name: version for call in calls for name, version in call.planned.items()}
                require_planned(target, planned, more=any(call.whose == "prebuilt" for call in calls))
            files.write_json(marker, {"digest": digest})
        yield


def make(folder: Path, python: Path, backend: Backend) -> None:
    """Make an environment of an interpreter, in the place of what is there; pip's has pip."""
    if backend == "uv":
        argv = [uv_program(), "venv", "--no-config", "--quiet", "--clear"]
    else:
        argv = [sys.executable, "-m", "virtualenv", "--quiet", "--clear"]
    try:
        process.run([*argv, "--python", python, folder], quiet=True)
    except ProcessError as problem:
        raise EnvironmentSetupError(f"Could not create the environment {folder}.") from problem


# what builds need, and what upstream's own tests need besides torch
BUILDS, TORCH_TESTS = "target", "torch-tests"
_PINNED = re.compile(r"(?m)^(?P<name>[A-Za-z0-9][A-Za-z0-9._-]*)(\[[^]]*\])?==.*(\n +.*)*")
# what a requirement is there for, as pip-compile and uv note it: it says what a part needs to be whole
_PARENT = re.compile(r"(?m)^ +#(?: via|  ) +([^\s-]\S*)$")


@dataclass(frozen=True, kw_only=True)
class Locked:
    """One requirement of a lock."""

    name: str
    text: str
    via: tuple[str, ...]


def target_lock(common: Common, target: Interpreter, lock: str = BUILDS) -> Path | None:
    """Find a lock of requirements for a platform and Python; None for a Python without one.

    A free-threaded Python has the lock of the other one: same versions, with the files of both hashed.
    """
    name = f"{lock}-{common.outputs.platform}-{target.series.removesuffix('t')}.txt"
    path = common.root / "requirements" / name
    return path if path.is_file() else None


def locked_call(
    common: Common,
    target: Interpreter,
    *,
    only: Collection[str] = (),
    replaced: Collection[str] = (),
    lock: str = BUILDS,
) -> Install:
    """Plan the installation of locked requirements; of unlocked ones for a Python that has no lock.

    `only` names those to take, with what they require (default: all); `replaced` are requirements that take
    the place of locked ones of the same name.
    """
    path = target_lock(common, target, lock)
    if path is None:
        console.warn(f"There is no lock for Python {target.series}; what {lock}.in lists is not pinned.")
        if only:
            return Install(requirements=tuple(only))
        return Install(files=(common.root / "requirements" / f"{lock}.in",))
    if not only and not replaced:
        return Install(files=(path,), hashed=True)
    text = path.read_text(encoding="utf-8")
    text = without(subset(text, only) if only else text, [Requirement(one).name for one in replaced])
    return Install(files=(kept(common.cache / "locks", lock, text),), hashed=True)


def parse_lock(text: str) -> Sequence[Locked]:
    """Read a lock's requirements, in their order."""
    return [
        Locked(
            name=canonicalize_name(found["name"]),
            text=found[0],
            via=tuple(canonicalize_name(one.partition("[")[0]) for one in _PARENT.findall(found[0])),
        )
        for found in _PINNED.finditer(text)
    ]


def subset(text: str, roots: Collection[str]) -> str:
    """Keep the named distributions and all that is there for their sake."""
    locked = parse_lock(text)
    wanted = {str(canonicalize_name(root)) for root in roots}
    names = {str(one.name) for one in locked}
    for root in sorted(wanted - names):
        raise DataError(f"The lock has no {root!r}. {nearest(root, names)}", hint="Run nox -s lock.")
    while more := {one.name for one in locked if wanted.intersection(one.via)} - wanted:
        wanted |= more
    return _joined(one for one in locked if one.name in wanted)


def without(text: str, names: Collection[str]) -> str:
    """Leave the named distributions out, for a caller that needs other versions of them."""
    unwanted = {canonicalize_name(name) for name in names}
    return _joined(one for one in parse_lock(text) if one.name not in unwanted)


def kept(folder: Path, name: str, text: str) -> Path:
    """Write a requirements file whose name ends with its digest: no other text is ever found in it."""
    path = folder / f"{name}-{files.sha256_text(text)[:16]}.txt"
    files.write_text(path, text)
    return path


def _joined(locked: Iterable[Locked]) -> str:
    return "".join(f"{one.text}\n" for one in locked)
