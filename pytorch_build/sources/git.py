"""Every git call of this package: clean environment, fixed settings, errors that say what git said."""

import os
import re
import shlex
import shutil
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeVar

from core import console, files, process
from core.errors import EnvironmentSetupError, ProcessError, SourceError, nearest

SAMPLE_SCHEME = "sample:"
ANSWER_SECONDS = 120.0
TRANSFER_SECONDS = 4 * 3600.0

# Of the user's GIT_ variables those that say how to reach a server are passed on, and those that stand for a
# configuration file.
_KEPT_VARIABLES = re.compile(
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
_EMPTY_WORDS = re.compile(
    r"^(hint|warning):|^fatal: Could not read from remote|^Please make sure|^and the repository exists"
    r"|^fatal: Failed to recurse|^Failed to clone|^fatal: clone of|^BUG:"
)
# What git says where a server does not give a commit.
_NOT_GIVEN = re.compile(r"not our ref|unadvertised object|Server does not allow request")


def is_commit(text: str) -> bool:
    """Return whether a text is a whole commit hash: 40 lower-case hex digits."""
    return re.fullmatch(r"[0-9a-f]{40}", text) is not None


# Origins


@dataclass(frozen=True, kw_only=True)
class Origins:
    """How origins are reached."""

    repositories: Mapping[str, Path] = field(default_factory=dict)
    mirrors: Mapping[str, str] = field(default_factory=dict)

    def address(self, origin: str) -> str:
        """Return what git is to be told for an origin: itself, or the path of a sample repository."""
        if not origin.startswith(SAMPLE_SCHEME):
            return origin
        name = origin.removeprefix(SAMPLE_SCHEME)
        if name not in self.repositories:
            raise SourceError(f"{origin} names no repository. {nearest(name, self.repositories)}")
        return str(self.repositories[name])

    def settings(self, origin: str) -> tuple[str, ...]:
        """Return the settings (``name=value``) that git needs to reach an origin and its submodules."""
        rewrites = [f"url.{mirror}.insteadOf={prefix}" for prefix, mirror in self.mirrors.items()]
        # What a person named by an origin or a mirror may be a path; what a tree names may not.
        named_protocols = {protocol(address) for address in (self.address(origin), *self.mirrors.values())}
        allowed_protocols = (*_SAFE_PROTOCOLS, *sorted(named_protocols & _NAMED_PROTOCOLS))
        allowed = [f"protocol.{name}.allow=always" for name in allowed_protocols]
        return (*rewrites, "protocol.allow=never", *allowed)


def protocol(address: str) -> str:
    """Name the protocol by which git reaches an address: ``file``, ``ssh``, ``https``, a helper's name."""
    scheme = re.match(r"([\w.+-]+):(?::|//)", address)
    if scheme is not None:
        return scheme[1]
    # HOST:PATH, or a path, on Windows with a drive.
    return "ssh" if re.match(r"[^-/:][^/:]+:", address) else "file"


def require_safe(origin: str, where: str) -> None:
    """Refuse an origin that nobody here has named, unless git reaches it encrypted."""
    if protocol(origin) not in _SAFE_PROTOCOLS and not origin.startswith(SAMPLE_SCHEME):
        raise SourceError(
            f"{where}: {origin!r} is not an https:// or ssh:// address.",
            hint="Correct it. A path or mirror of your own is named in your refs file, or by --git-mirror.",
        )


# Repositories


@dataclass(frozen=True, kw_only=True)
class Repository:
    """git in one folder."""

    path: Path
    settings: tuple[str, ...] = ()
    managed: bool = True

    def run(
        self,
        *arguments: str | Path,
        check: bool = True,
        stdin: str | None = None,
        env: Mapping[str, str] | None = None,
        timeout: float | None = None,
    ) -> process.Completed:
        """Run one git command and capture what it prints."""
        managed_settings = _MANAGED_SETTINGS if self.managed else ()
        words: list[str] = []
        for setting in (*managed_settings, *self.settings):
            words += ["-c", setting]
        try:
            return process.capture(
                ["git", *words, *arguments],
                cwd=self.path,
                env=environment() | dict(env or {}),
                stdin=stdin,
                check=check,
                timeout=timeout,
            )
        except ProcessError as problem:
            if process.which("git") is None:
                raise EnvironmentSetupError(problem.message, hint="Install git.") from problem
            output = problem.output
            if not output and problem.returncode is None and timeout is not None:
                output = f"no answer within {timeout} s"
            # The settings say nothing to a reader, the folder and git's own line do.
            command = shlex.join(["git", *(str(word) for word in arguments)])
            raise ProcessError(
                f"{command} failed in {self.path}: {last_words(problem)}",
                hint=problem.hint,
                returncode=problem.returncode,
                output=output or problem.message,
            ) from problem

    def init(self, address: str, *words: str) -> None:
        """Make the repository where it is missing, and `address` its origin."""
        self.path.mkdir(parents=True, exist_ok=True)
        self.run("init", "--quiet", "--template=", *words)
        if self.run("remote", "set-url", "origin", address, check=False).returncode != 0:
            self.run("remote", "add", "origin", address)

    def fetch(self, origin: str, *words: str) -> bool:
        """Fetch from what errors call `origin`; False where the server refuses a commit, or lacks it."""
        try:
            self.run("fetch", "--quiet", *words, timeout=TRANSFER_SECONDS)
        except ProcessError as problem:
            if _NOT_GIVEN.search(problem.output):
                return False
            raise unreachable(origin, problem) from problem
        return True

    def out(self, *arguments: str | Path) -> str:
        """Run one git command for the text it prints, without the last line's end."""
        return self.run(*arguments).stdout.rstrip("\n")

    def answer(self, origin: str, *arguments: str) -> str:
        """Run one git command that asks what errors call `origin`, and return what it prints."""
        try:
            return self.run(*arguments, timeout=ANSWER_SECONDS).stdout
        except ProcessError as problem:
            raise unreachable(origin, problem) from problem

    def names(self, *arguments: str) -> tuple[str, ...]:
        """Run one git command that prints names ended by NUL (``-z``)."""
        return tuple(name for name in self.run(*arguments).stdout.split("\0") if name)

    def untracked(self) -> tuple[str, ...]:
        """List files that git does not track and is not told to ignore, submodules not looked at."""
        return self.names("ls-files", "-z", "--others", "--exclude-standard")

    def commit_of(self, name: str) -> str:
        """Return the commit that a name stands for, or nothing where there is no such commit."""
        answer = self.run("rev-parse", "--verify", "--quiet", f"{name}^{{commit}}", check=False)
        return answer.stdout.strip() if answer.returncode == 0 else ""


def environment() -> dict[str, str]:
    """Return git's environment: ours without what would steer git, no prompts, messages in English."""
    inherited = process.inherited(GIT_TERMINAL_PROMPT="0", LC_ALL="C", LANGUAGE=None, GCM_INTERACTIVE="never")
    env = {name: value for name, value in inherited.items() if _is_kept(name)}
    env.setdefault("GIT_SSH_COMMAND", "ssh -o BatchMode=yes -o ConnectTimeout=30")
    return env


def _is_kept(variable: str) -> bool:
    return not variable.startswith("GIT_") or _KEPT_VARIABLES.match(variable) is not None


# Errors


def last_words(problem: ProcessError) -> str:
    """Return the line of a failed git call that says most: the last that is no hint or blank."""
    text = problem.output or problem.message
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    telling_lines = [line for line in lines if not _EMPTY_WORDS.search(line)]
    fatal_lines = [line for line in telling_lines if line.startswith(("fatal:", "ERROR:", "error:"))]
    best_lines = fatal_lines or telling_lines or lines or [problem.message]
    return best_lines[-1].removeprefix("fatal: ").removeprefix("error: ")


def unreachable(origin: str, problem: ProcessError) -> SourceError:
    """Make the error for an origin that does not answer."""
    return SourceError(
        f"{origin} does not answer: {last_words(problem)}",
        hint="Check the origin's spelling, the network and your access, or name a mirror (--git-mirror).",
    )


# Reading origins

Answer = TypeVar("Answer")


@dataclass(frozen=True, kw_only=True)
class Reader:
    """Reads refs and files of origins, without cloning them."""

    cache: Path
    origins: Origins = field(default_factory=Origins)

    def commit(self, origin: str, ref: str) -> str:
        """Resolve a branch, tag or commit; an annotated tag to the commit it stands for.

        As in git, a tag comes before a branch of the same name, and a commit may have upper-case digits.
        """
        if is_commit(ref.lower()):
            return self._read(origin, ref.lower(), lambda repository: repository.commit_of(ref.lower()))

        names = [f"refs/tags/{ref}^{{}}", f"refs/tags/{ref}", f"refs/heads/{ref}"]
        if ref == "HEAD" or ref.startswith("refs/"):
            names = [f"{ref}^{{}}", ref]
        git = Repository(path=Path.cwd(), settings=self.origins.settings(origin))
        answer = git.answer(origin, "ls-remote", "--", self.origins.address(origin), *names)
        commits: dict[str, str] = {}
        for line in answer.splitlines():
            commit, tab, name = line.partition("\t")
            if tab:
                commits[name] = commit
        for name in names:
            if name in commits:
                return commits[name]

        hint = "Correct the ref, or give another origin."
        if re.fullmatch(r"[0-9a-f]{7,39}", ref.lower()):
            hint = "If it is a commit, write all 40 digits."
        raise SourceError(f"{origin} has no branch or tag {ref!r}.", hint=hint)

    def texts(self, origin: str, commit: str, paths: Iterable[str]) -> Mapping[str, str]:
        """Read files at a commit: path -> text, of those that exist there."""

        def read(repository: Repository) -> Mapping[str, str]:
            present = repository.names("ls-tree", "-z", "--name-only", commit, "--", *paths)
            return {
                path: repository.answer(origin, "cat-file", "blob", f"{commit}:{path}") for path in present
            }

        return self._read(origin, commit, read)

    def require_commit(self, origin: str, commit: str) -> None:
        """Require that an origin has a commit."""
        self._read(origin, commit, lambda repository: repository.out("cat-file", "-t", commit))

    def _read(self, origin: str, commit: str, read: Callable[[Repository], Answer]) -> Answer:
        """Read in the cache's repository of an origin. One that has lost files is made anew."""
        address = self.origins.address(origin)
        path = self.cache / files.sha256_text(address)[:16]
        repository = Repository(path=path, settings=self.origins.settings(origin))
        with files.locked(self.cache / f"{path.name}.lock", what=f"the cache of {origin}"):
            try:
                _prepare(repository, origin, address, commit)
                return read(repository)
            except (ProcessError, SourceError):
                if not _is_damaged(repository):
                    raise
                console.say(f"{path} is damaged; it is made anew.")
                shutil.rmtree(path)
                _prepare(repository, origin, address, commit)
                return read(repository)


def _prepare(repository: Repository, origin: str, address: str, commit: str) -> None:
    """Fetch a commit and its trees into a repository of the cache, unless they are there."""
    if not (repository.path / "complete").is_file():
        repository.init(address, "--bare")
        (repository.path / "complete").touch()
    # A ref of our own says that a commit is there: asking git for the commit itself would make it fetch, as
    # objects may be missing from these repositories.
    kept_ref = f"refs/kept/{commit}"
    answer = repository.run("show-ref", "--verify", "--quiet", kept_ref, check=False)
    if answer.returncode != 0:
        fetch_commit(repository, origin, commit)
        repository.run("update-ref", kept_ref, commit)


def _is_damaged(repository: Repository) -> bool:
    """Return whether a repository of the cache lacks commits or trees that its refs name."""
    check = repository.run("fsck", "--connectivity-only", "--no-dangling", "--no-progress", check=False)
    return check.returncode != 0


def fetch_commit(git: Repository, origin: str, commit: str) -> None:
    """Fetch a commit and its trees; a server that gives no single commits is asked for all refs."""
    words = ("--filter=blob:none", "--no-tags", "--no-write-fetch-head")
    if not git.fetch(origin, *words, "--depth=1", "origin", commit):
        git.fetch(origin, *words, "origin", "+refs/*:refs/fetched/*")
        if not git.commit_of(commit):
            raise SourceError(
                f"{origin} does not have the commit {commit}.",
                hint="It may be in a fork, or may have been removed; correct the ref or the pin.",
            )
    if not git.commit_of(commit):
        raise SourceError(f"{origin}: {commit} is not a commit.")
