"""Installing into a target environment with uv, from the sources that its user has configured for pip and uv.

uv does not read pip's configuration, so the user's indexes and find-links are read here and passed to it.
Each environment holds just what its build or test needs, and is kept while that is the same.
"""

import ast
import json
import re
import sys
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from functools import cache
from pathlib import Path
from typing import Literal

from packaging.utils import canonicalize_name
from packaging.version import Version

from core import console, files, process, temporary
from core.env import InstalledDistribution, Interpreter, installed
from core.environment import allowed
from core.errors import CheckError, EnvironmentSetupError, ProcessError
from core.host_path import ENVIRONMENT_MARKER
from core.http import fetch, without_secret
from core.links import links
from core.wheel import parse_wheel_name
from core.wheel.distributions import is_distribution, is_ours, our_names

Whose = Literal["others", "ours", "prebuilt"]
NO_VERSION = "<0.dev0"  # PEP 440: no version is lower

_INDEX_NAME = re.compile(r"(?<!\S)[\w.-]+=(?=\w+:)")  # ``UV_INDEX=name=https://…``
_TRUE = frozenset({"1", "true", "t", "yes", "y", "on"})  # what pip takes for yes
# How pip may be told to reach servers and uv is not.
_UNUSED_SETTINGS = {
    "proxy": "set HTTPS_PROXY",
    "trusted-host": "name the server's certificate, by pip's setting cert or the variable SSL_CERT_FILE",
}
_PIN = re.compile(r"(?m)^([\w.-]+)==([^\s;\\]+)")


@dataclass(frozen=True, kw_only=True)
class Sources:
    """Where the installer finds packages; `cert` is a CA bundle for the indexes."""

    index_url: str = ""
    extra_index_urls: tuple[str, ...] = ()
    find_links: tuple[str, ...] = ()
    no_index: bool = False
    cert: str = ""

    @property
    def arguments(self) -> list[str]:
        """The sources as the arguments that uv and pip share."""
        arguments: list[str] = []
        if self.no_index:
            arguments.append("--no-index")
        else:
            if self.index_url:
                arguments += ["--index-url", self.index_url]
            for url in self.extra_index_urls:
                arguments += ["--extra-index-url", url]
        for location in self.find_links:
            arguments += ["--find-links", location]
        return arguments


@dataclass(frozen=True, kw_only=True)
class InstallerCall:
    """One call of the installer. Hashed and unhashed requirements never share one.

    Attributes:
        requirements: Requirements, or paths of wheels.
        files: Files with requirements.
        sources: Where packages come from; None for the user's own configuration.
        hashed: Whether each requirement must name the digests of its files.
        dependencies: Whether what packages require is installed, too.
        build_isolation: Whether sdists are built in environments of their own.
        gpu_family: What sdists are built for, as that of `rocm` reads it; "" for nothing.
        whose: Whether packages of our names may come of the call: with `others` none, whoever requires them;
            with `prebuilt` those that a torch brings that is installed instead of a build.
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
        versions: dict[str, str] = {}
        if self.hashed:
            for path in self.files:
                text = path.read_text(encoding="utf-8")
                pins = _PIN.findall(text)
                versions.update(pins)
        for requirement in self.requirements:
            if requirement.endswith(".whl"):
                path = Path(requirement)
                wheel = parse_wheel_name(path.name)
                versions[wheel.distribution] = str(wheel.version)

        planned: dict[str, str] = {}
        for name, version in versions.items():
            if is_ours(name):
                planned[canonicalize_name(name)] = version
        return planned

    @property
    def config_settings(self) -> tuple[str, ...]:
        """PEP 517 settings for sdists, which also keep their cached builds apart."""
        if not self.gpu_family:
            return ()
        return (f"gpu-family={self.gpu_family}",)

    @property
    def env(self) -> Mapping[str, str]:
        """Variables for sdists' builds, over the process's own."""
        if not self.gpu_family:
            return {}
        return {"ROCM_SDK_TARGET_FAMILY": self.gpu_family}

    @property
    def arguments(self) -> list[str]:
        """What is installed and how, as arguments of uv."""
        arguments: list[str] = []
        if self.hashed:
            arguments.append("--require-hashes")
        if not self.dependencies:
            arguments.append("--no-deps")
        if not self.build_isolation:
            arguments.append("--no-build-isolation")
        for setting in self.config_settings:
            arguments += ["--config-settings", setting]
        for path in self.files:
            arguments += ["-r", str(path)]
        return [*arguments, *self.requirements]


# --- The user's configuration ----------------------------------------------------------------


@cache
def configured_sources() -> Sources:
    """Return the user's sources: of pip's files and PIP_* variables, as pip itself sees them, and of uv's."""
    env = process.inherited()
    command = [sys.executable, "-m", "pip", "config", "list"]
    completed = process.capture(command, env=env)
    sources = parse_configuration(completed.stdout, env)
    for setting, advice in _UNUSED_SETTINGS.items():
        if setting in _pip_settings(completed.stdout):
            console.warn(f"{setting} of your pip configuration is not used here: {advice}.")

    existing: list[str] = []
    for link in sources.find_links:
        is_address = "://" in link
        if is_address or Path(link).exists():
            existing.append(link)
        else:
            console.warn(f"{link}, among the find-links of your pip or uv configuration, does not exist.")
    return replace(sources, find_links=tuple(existing))


def parse_configuration(listing: str, env: Mapping[str, str]) -> Sources:
    """Return the sources that `pip config list` prints, with those of uv's variables (`env`) first.

    Of pip's settings variables win over files, and ``install.`` over ``global.``.
    """
    settings = _pip_settings(listing)

    uv_indexes: list[str] = []
    for name in ("UV_INDEX", "UV_EXTRA_INDEX_URL"):
        named_addresses = env.get(name, "")
        addresses = _INDEX_NAME.sub("", named_addresses)
        uv_indexes += addresses.split()
    pip_indexes = settings.get("extra-index-url", "")

    # uv separates links by commas, and pip by spaces.
    uv_links = env.get("UV_FIND_LINKS", "")
    separated_uv_links = uv_links.replace(",", " ")
    pip_links = settings.get("find-links", "")

    uv_default_index = env.get("UV_DEFAULT_INDEX") or env.get("UV_INDEX_URL")
    pip_default_index = settings.get("index-url", "")
    no_index = settings.get("no-index", "")
    return Sources(
        index_url=uv_default_index or pip_default_index,
        extra_index_urls=(*uv_indexes, *pip_indexes.split()),
        find_links=(*separated_uv_links.split(), *pip_links.split()),
        no_index=no_index.lower() in _TRUE,
        cert=settings.get("cert", ""),
    )


def _pip_settings(listing: str) -> Mapping[str, str]:
    """Return the settings of pip that `pip config list` prints and that are not empty."""
    settings: dict[str, str] = {}
    for scope in ("global.", "install.", ":env:."):
        for line in listing.splitlines():
            name, equals, literal = line.partition("=")
            if not equals or not name.startswith(scope):
                continue
            setting = name.removeprefix(scope)
            value = ast.literal_eval(literal)
            settings[setting] = str(value)
    return {setting: value for setting, value in settings.items() if value}


# --- Calls of uv -----------------------------------------------------------------------------


def uv_program() -> str:
    """Return the path of the tool's own uv."""
    import uv

    return uv.find_uv_bin()


def installer_variables(sources: Sources) -> dict[str, str]:
    """Return the variables that the installer gets: none of them names a source.

    ``--no-config`` of uv concerns its files, and not its variables.
    """
    # An installer runs the code of sdists.
    variables = allowed(process.inherited(), program="installers")
    if sources.cert:
        variables.setdefault("SSL_CERT_FILE", sources.cert)
    return variables


def install(
    target: Interpreter,
    call: InstallerCall,
    *,
    cache_dir: Path | None = None,
) -> None:
    """Install into a target environment."""
    sources = call.sources or configured_sources()
    command = [uv_program(), "pip", "install", "--no-config", "--no-progress"]
    command += ["--python", str(target.executable)]
    # pip's rule: of all indexes the highest version wins.
    command += ["--index-strategy", "unsafe-best-match"]
    command += sources.arguments
    may_hold_rebuilt_wheels = call.sources is not None and bool(sources.find_links)
    if may_hold_rebuilt_wheels and not call.hashed:
        # uv's cache knows a folder's wheel by its name: of one that was built anew it would install the old.
        command.append("--refresh")
    command += call.arguments
    if cache_dir is not None:
        command += ["--cache-dir", str(cache_dir)]
    try:
        with temporary.folder("install") as folder:
            command += _write_constraints(target, call, folder)
            variables = installer_variables(sources)
            variables.update(call.env)
            process.run(
                command,
                env=variables,
                quiet=True,
            )
    except ProcessError as problem:
        names = list(call.requirements)
        names += [path.name for path in call.files]
        listing = ", ".join(names)
        message = f"{listing} could not be installed into {target.prefix} (Python {target.version})."
        message += describe_unusable_pages(sources)
        raise EnvironmentSetupError(
            message,
            hint="See --find-links, --index-url and your pip configuration.",
        ) from problem


def describe_unusable_pages(sources: Sources) -> str:
    """Return a line for each page that does not answer or lists nothing: uv calls all of that "not found"."""
    lines: list[str] = []
    for url in (sources.index_url, *sources.extra_index_urls, *sources.find_links):
        if not url.startswith("http"):
            continue
        response = fetch(url, cert=sources.cert)
        problem = response.problem
        if not problem:
            page = response.text or ""
            if not _lists_packages(page):
                # A login, say.
                problem = "it answers with a page that lists no package, so it may be no index"
        if problem:
            shown_url = without_secret(url)
            lines.append(f"\n{shown_url}: {problem}.")
    return "".join(lines)


def _lists_packages(page: str) -> bool:
    """Return whether a page has projects (PEP 503) or files."""
    links_of_page = links(page)
    for url, link in links_of_page.items():
        is_project = url.endswith("/")
        if is_project or is_distribution(link.name):
            return True
    return False


# --- Our names -------------------------------------------------------------------------------


def constraints_against_our_names(*, but: Collection[str] = ()) -> list[str]:
    """Return constraints that let no package of our names be chosen, `but` for some."""
    names = our_names().difference(but)
    return [f"{name}{NO_VERSION}" for name in sorted(names)]


def _write_constraints(
    target: Interpreter,
    call: InstallerCall,
    folder: Path,
) -> list[str]:
    """Return arguments that keep strangers' packages of our names out, also of what sdists are built with."""
    if call.whose == "ours":
        return []

    constraints: dict[str, list[str]] = {}
    if call.build_isolation:
        constraints["--build-constraint"] = constraints_against_our_names()
    if call.dependencies and not call.hashed:
        constraints["--constraint"] = _constraints_on_ours(target, call)

    arguments: list[str] = []
    for option, lines in constraints.items():
        path = folder / f"{option}.txt"
        files.write_text(path, "\n".join(lines))
        arguments += [option, str(path)]
    return arguments


def _constraints_on_ours(target: Interpreter, call: InstallerCall) -> list[str]:
    """Return constraints by which our packages stay as they are installed, and no others come."""
    distributions = _our_distributions(target)
    versions = {distribution.name: distribution.version for distribution in distributions}

    lines: list[str] = []
    for name, version in versions.items():
        if name not in call.planned:
            lines.append(f"{name}=={version}")
    if call.whose == "others":
        lines += constraints_against_our_names(but=[*versions, *call.planned])
    return lines


def _our_distributions(target: Interpreter) -> Sequence[InstalledDistribution]:
    """Return what an environment has of our names."""
    return [distribution for distribution in installed(target) if is_ours(distribution.name)]


def require_planned(target: Interpreter, planned: Mapping[str, str]) -> None:
    """Require that an environment has the planned packages of our names, each once and file by file.

    Raises:
        CheckError: One is missing, of another version, there twice, or altered by another package.
    """
    distributions = _our_distributions(target)
    problems: list[str] = []
    for name in sorted(planned):
        copies = [distribution for distribution in distributions if distribution.name == name]
        problems += _problems_of(name, planned[name], copies)
    _require_no_problems(target, problems)


def _problems_of(
    name: str,
    version: str,
    copies: Sequence[InstalledDistribution],
) -> Iterator[str]:
    """Yield what is wrong with a planned package; an environment may have several copies of it, or none."""
    if not copies:
        yield f"{name} {version} is missing."
    if len(copies) > 1:
        yield f"{name} is there {len(copies)} times."

    for copy in copies:
        if Version(copy.version) != Version(version):
            yield f"{name} is {copy.version}, not {version}."
            continue
        altered_file = copy.altered_file()
        if altered_file is not None:
            yield f"{altered_file} is not the file of {name} {version}."


def unplanned_packages(target: Interpreter, planned: Mapping[str, str]) -> Sequence[str]:
    """Return the packages of our names that an environment has besides the planned ones, with versions."""
    return [
        f"{distribution.name} {distribution.version}"
        for distribution in _our_distributions(target)
        if distribution.name not in planned
    ]


def require_none_unplanned(target: Interpreter, planned: Mapping[str, str]) -> None:
    """Require that an environment has no package of our names but the planned ones.

    Raises:
        CheckError: There is one, which a package of others requires.
    """
    strangers = unplanned_packages(target, planned)
    problems = [f"{stranger} is not one of those that were chosen." for stranger in strangers]
    _require_no_problems(target, problems)


def _require_no_problems(target: Interpreter, problems: Sequence[str]) -> None:
    if problems:
        listing = "\n".join(problems)
        raise CheckError(
            f"{target.prefix} does not hold what was chosen:\n{listing}",
            hint="Another package brought or altered them: see which one, and make the environment anew "
            "(--force, --clean).",
        )


def missing_dependencies(target: Interpreter) -> Sequence[str]:
    """Return what installed packages require and the environment lacks, one sentence each."""
    command = [uv_program(), "pip", "check", "--python", str(target.executable)]
    check = process.capture(command, check=False)
    if check.returncode == 0:
        return []

    output = check.stdout + check.stderr
    lines = output.splitlines()
    return [line for line in lines if line.startswith("The package")]


def require_complete(target: Interpreter) -> None:
    """Require all dependencies of installed packages, in the right versions."""
    missing = missing_dependencies(target)
    if missing:
        listing = "\n".join(missing)
        raise CheckError(f"The installed packages do not fit together:\n{listing}")


# --- Environments ----------------------------------------------------------------------------


def digest_of_calls(
    target: Interpreter,
    calls: Sequence[InstallerCall],
    *,
    salt: object = None,
) -> str:
    """Return the digest of what fills an environment: interpreter, requirements, contents of files.

    Hashed requirements are the same files wherever they come from: a run that is served here has another
    port each time. Of others the sources count, too.
    """
    content = {
        "python": target.version,
        "base": str(target.base_executable),
        "calls": list(map(_content_of, calls)),
        "salt": salt,
    }
    return files.digest_of(content)


def _content_of(call: InstallerCall) -> Mapping[str, object]:
    """Return what decides what a call installs."""
    content: dict[str, object] = asdict(call)
    content["env"] = dict(call.env)
    content["files"] = [files.sha256(path) for path in call.files]
    if call.hashed:
        content["sources"] = None
    return content


def is_filled(target: Interpreter, digest: str) -> bool:
    """Return whether an environment holds what has this digest."""
    marker = target.prefix / ENVIRONMENT_MARKER
    if not marker.is_file():
        return False
    text = marker.read_text(encoding="utf-8")
    facts = json.loads(text)
    return bool(facts["digest"] == digest)


@contextmanager
def prepared(
    target: Interpreter,
    calls: Sequence[InstallerCall],
    *,
    digest: str,
    cache_dir: Path | None = None,
    force: bool = False,
) -> Iterator[None]:
    """Make an environment hold what `calls` install and nothing else, and hold its lock while it is used."""
    if not target.virtual:
        raise EnvironmentSetupError(
            f"{target.executable} is not a virtual environment; a bare interpreter is left alone.",
            hint="Run the stage through nox, or give --python a virtual environment's interpreter.",
        )
    # Beside the environment, because emptying it would take a lock inside with it.
    environment = target.prefix
    lock = environment.with_name(f".{environment.name}.lock")
    log = environment.with_name(f".{environment.name}.log")
    with files.locked(lock, what=str(environment)):
        if is_filled(target, digest) and not force:
            console.echo(f"environment {environment}: unchanged")
        else:
            marker = environment / ENVIRONMENT_MARKER
            title = f"environment {environment.name}"
            with console.group(title), process.logged(log):
                # Without its marker an environment that is half filled is made anew.
                marker.unlink(missing_ok=True)
                create_environment(environment, target.base_executable)
                _fill(target, calls, cache_dir)
            files.write_json(marker, {"digest": digest})
        yield


def _fill(
    target: Interpreter,
    calls: Sequence[InstallerCall],
    cache_dir: Path | None,
) -> None:
    """Install into an empty environment, and require that our packages are the planned ones."""
    planned: dict[str, str] = {}
    for call in calls:
        install(target, call, cache_dir=cache_dir)
        planned.update(call.planned)
    require_planned(target, planned)
    is_prebuilt = any(call.whose == "prebuilt" for call in calls)
    if not is_prebuilt:
        require_none_unplanned(target, planned)


def create_environment(
    folder: Path,
    python: Path,
    *,
    with_pip: bool = False,
) -> None:
    """Make an environment of an interpreter, in the place of what is there."""
    command = [uv_program(), "venv", "--no-config", "--quiet", "--clear"]
    if with_pip:
        # It has a wheel of pip with it, where uv would ask an index.
        command = [sys.executable, "-m", "virtualenv", "--quiet", "--clear"]
    try:
        process.run([*command, "--python", python, folder], quiet=True)
    except ProcessError as problem:
        raise EnvironmentSetupError(f"Could not create the environment {folder}.") from problem
