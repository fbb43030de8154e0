"""Every git call of this package: clean environment, fixed settings, errors that say what git said."""

import os
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeVar

from core import console, files, process
from core.errors import EnvironmentSetupError, ProcessError, SourceError, nearest
from core.shell import command_line
from pytorch_build.refs.torch_refs import SAMPLE_SCHEME

ANSWER_SECONDS = 120.0
TRANSFER_SECONDS = 4 * 3600.0

# Of the user's GIT_ variables those that say how to reach a server are passed on, and those that stand for a
# configuration file.
_INHERITED_VARIABLES = re.compile(
    r"GIT_(SSH|SSL|HTTP|PROXY|ASKPASS|CURL|TRACE|CONFIG_(?!PARAMETERS)|TERMINAL_PROMPT)"
)
# What a user's configuration could change in a tree or a commit that has to be the same everywhere.
_MANAGED_SETTINGS = (
    "commit.gpgSign=false",
    "tag.gpgSign=false",
    "i18n.commitEncoding=utf-8",
    "advice.detachedHead=false",
    f"core.hooksPath={os.devnull}",
    f"core.attributesFile={os.devnull}",
    "init.templateDir=",
    "core.autocrlf=false",
    "core.fsmonitor=false",
    "core.longpaths=true",
    "core.quotePath=false",
    "submodule.recurse=false",
    "diff.ignoreSubmodules=none",
    "init.defaultBranch=main",
    "gc.auto=0",
    "maintenance.auto=false",
    # A server that stops sending is given up on.
    "http.lowSpeedLimit=1000",
    "http.lowSpeedTime=60",
)
# How git may reach what a tree or a lock names; and what a person names, besides.
_SAFE_PROTOCOLS = ("https", "ssh")
_NAMED_PROTOCOLS = frozenset({"file", "git", "http"})
# Lines of git's that say nothing of what went wrong.
_EMPTY_LINES = re.compile(
    r"^(hint|warning):|^fatal: Could not read from remote|^Please make sure|^and the repository exists"
    r"|^fatal: Failed to recurse|^Failed to clone|^fatal: clone of|^BUG:"
)
_ERROR_LINES = ("fatal:", "ERROR:", "error:")
# What git and its helpers say of an origin that cannot be reached, and what to do then.
_REACH_HINTS = {
    r"could not read Username|not found": "Check the origin's spelling, and your access to it.",
    r"does not appear to be a git repository|does not exist": "Correct the origin.",
    r"Permission denied|Authentication failed|terminal prompts|error: 40[13]": "Check your access to it.",
    r"resolve host|timed out|no answer|refused|unreachable|to connect|RPC failed|early EOF|hung up": (
        "Check the network, or name a mirror (--git-mirror)."
    ),
}
# What git says where a server does not give a commit.
_COMMIT_REFUSED = re.compile(r"not our ref|unadvertised object|Server does not allow request")

_COMMIT = re.compile(r"[0-9a-f]{40}")
_SHORT_COMMIT = re.compile(r"[0-9a-f]{7,39}")


def is_commit(text: str) -> bool:
    """Return whether a text is a whole commit hash: 40 lower-case hex digits."""
    return _COMMIT.fullmatch(text) is not None


# --- Origins ----------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class Origins:
    """How git reaches repositories: mirrors of addresses, and folders of the sample's repositories.

    Attributes:
        repositories: The folders of the sample's repositories, by name.
        mirrors: What is reached instead of addresses that begin with a prefix, by prefix.
    """

    repositories: Mapping[str, Path] = field(default_factory=dict)
    mirrors: Mapping[str, str] = field(default_factory=dict)

    def address(self, origin: str) -> str:
        """Return the address that git is given for an origin: itself, or a sample repository's path."""
        if not origin.startswith(SAMPLE_SCHEME):
            return origin
        name = origin.removeprefix(SAMPLE_SCHEME)
        if name not in self.repositories:
            raise SourceError(f"{origin} names no repository. {nearest(name, self.repositories)}")
        return str(self.repositories[name])

    def settings(self, origin: str) -> tuple[str, ...]:
        """Return the settings (``name=value``) that git needs to reach an origin and its submodules."""
        rewrites: list[str] = []
        for prefix, mirror in self.mirrors.items():
            rewrites.append(f"url.{mirror}.insteadOf={prefix}")

        # What a person named by an origin or a mirror may be a path; what a tree names may not.
        addresses = [self.address(origin), *self.mirrors.values()]
        protocols = set(map(protocol, addresses))
        named_protocols = sorted(protocols & _NAMED_PROTOCOLS)

        allowed_protocols = (*_SAFE_PROTOCOLS, *named_protocols)
        permissions = [f"protocol.{name}.allow=always" for name in allowed_protocols]
        return (*rewrites, "protocol.allow=never", *permissions)


def protocol(address: str) -> str:
    """Return the protocol by which git reaches an address, such as ``file``, ``ssh`` or ``https``."""
    scheme = re.match(r"([\w.+-]+):(?::|//)", address)
    if scheme is not None:
        return scheme[1]
    # HOST:PATH, or a path, on Windows with a drive.
    has_host = re.match(r"[^-/:][^/:]+:", address) is not None
    return "ssh" if has_host else "file"


def require_safe_origin(origin: str, where: str) -> None:
    """Fail for an origin that a tree or a lock names, unless it is an https or ssh address.

    `where` says where it stands, for the error.
    """
    if origin.startswith(SAMPLE_SCHEME) or protocol(origin) in _SAFE_PROTOCOLS:
        return
    raise SourceError(
        f"{where}: {origin!r} is not an https:// or ssh:// address.",
        hint="Correct it. A path or mirror of your own is named in your refs file, or by --git-mirror.",
    )


# --- Repositories -----------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class Repository:
    """A git repository in a folder, and the settings of all git commands there.

    Attributes:
        path: The folder, which is the repository's top.
        settings: Settings (``name=value``) of every command.
        managed: Whether the user's configuration may not change what is done.
        is_bare: Whether it has no tree: git must not have to find out (safe.bareRepository=explicit).
    """

    path: Path
    settings: tuple[str, ...] = ()
    managed: bool = True
    is_bare: bool = False

    def run(
        self,
        *arguments: str | Path,
        check: bool = True,
        stdin: str | None = None,
        env: Mapping[str, str] | None = None,
        timeout: float | None = None,
    ) -> process.Completed:
        """Run one git command in the repository, and return its status and what it printed."""
        settings = self.settings
        if self.managed:
            settings = (*_MANAGED_SETTINGS, *settings)
        options: list[str] = []
        for setting in settings:
            options += ["-c", setting]
        if self.is_bare:
            options.append("--git-dir=.")

        # A damaged repository must not lead git to the one that it lies in: managed ones lie in a checkout.
        ceiling = {"GIT_CEILING_DIRECTORIES": str(self.path.absolute().parent)}
        try:
            return process.capture(
                ["git", *options, *arguments],
                cwd=self.path,
                env={**git_environment(), **ceiling, **(env or {})},
                stdin=stdin,
                check=check,
                timeout=timeout,
            )
        except ProcessError as problem:
            raise self._command_error(problem, arguments, timeout) from problem

    def _command_error(
        self,
        problem: ProcessError,
        arguments: Iterable[str | Path],
        timeout: float | None,
    ) -> EnvironmentSetupError | ProcessError:
        """Return the error for a failed git command, with the line that says most."""
        if process.which("git") is None:
            return EnvironmentSetupError(problem.message, hint="Install git.")

        output = problem.output
        did_end = problem.returncode is not None
        if not output and not did_end and timeout is not None:
            output = f"no answer within {timeout} s"
        # The settings say nothing to a reader, the folder and git's own line do.
        command = command_line(["git", *map(str, arguments)])
        reason = git_reason(problem)
        return ProcessError(
            f"{command} failed in {self.path}: {reason}",
            hint=problem.hint,
            returncode=problem.returncode,
            output=output or problem.message,
        )

    def init(self, address: str, *options: str) -> None:
        """Make the repository where it is missing, and set the address of its remote ``origin``."""
        self.path.mkdir(
            parents=True,
            exist_ok=True,
        )
        self.run("init", "--quiet", "--template=", *options)
        set_url = self.run("remote", "set-url", "origin", address, check=False)
        if set_url.returncode != 0:
            self.run("remote", "add", "origin", address)

    def fetch(self, origin: str, *arguments: str) -> bool:
        """Fetch from a remote, which errors call `origin`; False where it lacks or refuses a commit."""
        try:
            self.run("fetch", "--quiet", *arguments, timeout=TRANSFER_SECONDS)
        except ProcessError as problem:
            if _COMMIT_REFUSED.search(problem.output):
                return False
            raise unreachable_error(origin, problem) from problem
        return True

    def read_output(self, *arguments: str | Path) -> str:
        """Run one git command, and return what it prints, without the last line's end."""
        return self.run(*arguments).stdout.rstrip("\n")

    def query_origin(self, origin: str, *arguments: str) -> str:
        """Run one git command that asks a remote, and return what it prints. `origin` is for errors."""
        try:
            return self.run(*arguments, timeout=ANSWER_SECONDS).stdout
        except ProcessError as problem:
            raise unreachable_error(origin, problem) from problem

    def read_fields(self, *arguments: str) -> tuple[str, ...]:
        """Return what one git command prints, split where NUL ends a field (``-z``)."""
        output = self.run(*arguments).stdout
        return tuple(field_text for field_text in output.split("\0") if field_text)

    def untracked_files(self) -> tuple[str, ...]:
        """Return the paths of files that git neither tracks nor ignores; submodules are left out."""
        return self.read_fields("ls-files", "-z", "--others", "--exclude-standard")

    def commit_of(self, name: str) -> str | None:
        """Return the hash of the commit that a revision names; None where there is no such commit."""
        query = self.run("rev-parse", "--verify", "--quiet", f"{name}^{{commit}}", check=False)
        if query.returncode != 0:
            return None
        return query.stdout.strip()


def git_environment() -> dict[str, str]:
    """Return git's environment: ours without what would steer git, no prompts, messages in English."""
    inherited = process.inherited(
        GIT_TERMINAL_PROMPT="0",
        GCM_INTERACTIVE="never",
        LC_ALL="C",
        LANGUAGE=None,
    )
    env = {
        name: value
        for name, value in inherited.items()
        if not name.startswith("GIT_") or _INHERITED_VARIABLES.match(name)
    }
    # New repositories are for upstream's objects, also where git's default is SHA-256, as git 3's is.
    env["GIT_DEFAULT_HASH"] = "sha1"
    env.setdefault("GIT_SSH_COMMAND", "ssh -o BatchMode=yes -o ConnectTimeout=30")
    return env


# --- Errors -----------------------------------------------------------------------------------


def git_reason(problem: ProcessError) -> str:
    """Return the line of a failed git command's output that best says why it failed."""
    text = problem.output or problem.message
    reason = problem.message
    rank = 0
    for line in map(str.strip, text.splitlines()):
        line_rank = _rank_line(line)
        if line_rank > 0 and line_rank >= rank:
            reason = line
            rank = line_rank
    return reason.removeprefix("fatal: ").removeprefix("error: ")


def _rank_line(line: str) -> int:
    """Return how much a line of git's output says of a failure, from 0 for nothing to 3."""
    if not line:
        return 0
    if _EMPTY_LINES.search(line):
        return 1
    if not line.startswith(_ERROR_LINES):
        return 2
    return 3


def unreachable_error(origin: str, problem: ProcessError) -> SourceError:
    """Return the error for an origin that does not answer git."""
    return SourceError(f"{origin} does not answer: {git_reason(problem)}", hint=reach_hint(problem))


def reach_hint(problem: ProcessError) -> str:
    """Return what to do about an origin that git cannot reach; "" where its output does not tell."""
    for pattern, hint in _REACH_HINTS.items():
        if re.search(pattern, problem.output):
            return hint
    return ""


# --- Reading origins --------------------------------------------------------------------------

Content = TypeVar("Content")


@dataclass(frozen=True, kw_only=True)
class OriginReader:
    """Reads commits and files of remote repositories, without cloning them.

    Attributes:
        cache: The folder that keeps what was read, a bare repository an origin.
        origins: How they are reached.
    """

    cache: Path
    origins: Origins = field(default_factory=Origins)

    def resolve_commit(self, origin: str, ref: str) -> str:
        """Return the commit that a branch, tag or commit hash names in an origin.

        As in git, a tag comes before a branch of the same name, and a commit may have upper-case digits.
        """
        commit = ref.lower()
        if is_commit(commit):
            # It may be the object of an annotated tag, too.
            query = ("rev-parse", "--verify", f"{commit}^{{commit}}")
            return self._read_from_cache(origin, commit, lambda repository: repository.read_output(*query))

        names = [f"refs/tags/{ref}^{{}}", f"refs/tags/{ref}", f"refs/heads/{ref}"]
        if ref == "HEAD" or ref.startswith("refs/"):
            names = [f"{ref}^{{}}", ref]
        commits = self._query_refs(origin, names)
        for name in names:
            if name in commits:
                return commits[name]

        hint = "Correct the ref, or give another origin."
        if _SHORT_COMMIT.fullmatch(commit):
            hint = "If it is a commit, write all 40 digits."
        raise SourceError(f"{origin} has no branch or tag {ref!r}.", hint=hint)

    def _query_refs(self, origin: str, names: Iterable[str]) -> Mapping[str, str]:
        """Return the objects that refs name in an origin, by ref; those that do not exist are left out."""
        settings = self.origins.settings(origin)
        address = self.origins.address(origin)
        git = Repository(
            path=Path.cwd(),
            settings=settings,
        )
        rows = git.query_origin(origin, "ls-remote", "--", address, *names)

        commits: dict[str, str] = {}
        for line in rows.splitlines():
            commit, tab, name = line.partition("\t")
            if tab:
                commits[name] = commit
        return commits

    def read_texts(
        self,
        origin: str,
        commit: str,
        paths: Iterable[str],
    ) -> Mapping[str, str]:
        """Return the texts of files at a commit, by path; those that do not exist are left out."""

        def read_from(repository: Repository) -> Mapping[str, str]:
            """Return the texts of those paths that the commit has."""
            listing = ("ls-tree", "-z", "--name-only", commit, "--")
            existing_paths = repository.read_fields(*listing, *paths)
            texts: dict[str, str] = {}
            for path in existing_paths:
                blob = f"{commit}:{path}"
                texts[path] = repository.query_origin(origin, "cat-file", "blob", blob)
            return texts

        return self._read_from_cache(origin, commit, read_from)

    def require_commit(self, origin: str, commit: str) -> None:
        """Fail unless an origin has a commit."""
        self._read_from_cache(
            origin, commit, lambda repository: repository.read_output("cat-file", "-t", commit)
        )

    def _read_from_cache(
        self,
        origin: str,
        commit: str,
        read: Callable[[Repository], Content],
    ) -> Content:
        """Return what a function reads of the cached repository of an origin, after fetching a commit."""
        address = self.origins.address(origin)
        name = files.sha256_text(address)[:16]
        path = self.cache / name
        settings = self.origins.settings(origin)
        repository = Repository(
            path=path,
            settings=settings,
            is_bare=True,
        )

        lock = self.cache / f"{name}.lock"
        with files.locked(lock, what=f"the cache of {origin}"):
            try:
                _prepare_cache(repository, origin, address, commit)
                return read(repository)
            except (ProcessError, SourceError):
                if not is_damaged(repository):
                    raise
                console.say(f"{path} is damaged; it is made anew.")
                files.remove_folder(path)
                _prepare_cache(repository, origin, address, commit)
                return read(repository)


def _prepare_cache(repository: Repository, origin: str, address: str, commit: str) -> None:
    """Fetch a commit and its trees into an origin's cached repository, unless they are there."""
    complete_file = repository.path / "complete"
    if not complete_file.is_file():
        repository.init(address, "--bare")
        complete_file.touch()
    # A ref of our own says that a commit is there: asking git for the commit itself would make it fetch, as
    # objects may be missing from these repositories.
    commit_ref = f"refs/kept/{commit}"
    query = repository.run("show-ref", "--verify", "--quiet", commit_ref, check=False)
    if query.returncode != 0:
        fetch_commit(repository, origin, commit)
        repository.run("update-ref", commit_ref, commit)


def is_damaged(repository: Repository) -> bool:
    """Return whether a repository lacks commits or trees that its refs lead to."""
    fsck = repository.run(
        "fsck",
        "--connectivity-only",
        "--no-dangling",
        "--no-progress",
        check=False,
    )
    return fsck.returncode != 0


def fetch_commit(git: Repository, origin: str, commit: str) -> None:
    """Fetch a commit and its trees, with all refs where the server gives no single commits."""
    options = ("--filter=blob:none", "--no-tags", "--no-write-fetch-head")
    was_served = git.fetch(origin, *options, "--depth=1", "origin", commit)
    if not was_served:
        git.fetch(origin, *options, "origin", "+refs/*:refs/fetched/*")
    if git.commit_of(commit) is not None:
        return

    if was_served:
        raise SourceError(f"{origin}: {commit} is not a commit.")
    raise SourceError(
        f"{origin} does not have the commit {commit}.",
        hint="It may be in a fork, or may have been removed; correct the ref or the pin.",
    )
