"""Every git call of this package: clean environment, fixed settings, errors that say what git said."""

import os
import re
import shlex
import shutil
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

from core import console, files, process
from core.errors import ProcessError, SourceError, nearest

SAMPLE_SCHEME = "sample:"
ANSWER_SECONDS = 120.0
TRANSFER_SECONDS = 4 * 3600.0

# Of the user's GIT_ variables only those that say how to reach a server are passed on.
_KEPT = re.compile(r"GIT_(SSH|SSL|HTTP|PROXY|ASKPASS|CURL|TRACE)")
# What a user's configuration could change in a tree or a commit that has to be the same everywhere.
_MANAGED = (
    *("commit.gpgSign=false", "tag.gpgSign=false", "i18n.commitEncoding=utf-8", "advice.detachedHead=false"),
    *(f"core.hooksPath={os.devnull}", f"core.attributesFile={os.devnull}", "init.templateDir="),
    *("core.autocrlf=false", "core.fsmonitor=false", "core.longpaths=true", "core.quotePath=false"),
    *("submodule.recurse=false", "diff.ignoreSubmodules=none", "init.defaultBranch=main"),
    *("gc.auto=0", "maintenance.auto=false"),
    # a server that stops sending is given up on
    *("http.lowSpeedLimit=1000", "http.lowSpeedTime=60"),
)
# how git may reach what a tree or a lock names; and a person, besides
_SAFE, _NAMED = ("https", "ssh"), {"file", "git", "http"}
_WORDLESS = re.compile(
    r"^(hint|warning):|^fatal: Could not read from remote|^Please make sure|^and the repository exists"
    r"|^fatal: Failed to recurse|^Failed to clone|^fatal: clone of|^BUG:"
)


def is_commit(text: str) -> bool:
    """Return whether a text is a whole commit hash: 40 lower-case hex digits."""
    return re.fullmatch(r"[0-9a-f]{40}", text) is not None


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
        # what a person named by an origin or a mirror may be a path; what a tree names may not
        named = {protocol(place) for place in (self.address(origin), *self.mirrors.values())}
        allowed = [f"protocol.{one}.allow=always" for one in (*_SAFE, *sorted(named & _NAMED))]
        return (*rewrites, "protocol.allow=never", *allowed)


def protocol(address: str) -> str:
    """Name the protocol by which git reaches an address: ``file``, ``ssh``, ``https``, a helper's name."""
    if found := re.match(r"([\w.+-]+):(?::|//)", address):
        return found[1]
    # HOST:PATH, or a path, on Windows with a drive
    return "ssh" if re.match(r"[^-/:][^/:]+:", address) else "file"


def require_safe(origin: str, where: str) -> None:
    """Refuse an origin that nobody here has named, unless git reaches it encrypted."""
    if protocol(origin) not in _SAFE and not origin.startswith(SAMPLE_SCHEME):
        raise SourceError(
            f"{where}: {origin!r} is not an https:// or ssh:// address.",
            hint="Correct it. A path or mirror of your own is named in your refs file, or by --git-mirror.",
        )


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
        settings = (*(_MANAGED if self.managed else ()), *self.settings)
        words = [word for setting in settings for word in ("-c", setting)]
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
            # the settings say nothing to a reader, the folder and git's own line do
            command = shlex.join(["git", *(str(word) for word in arguments)])
            raise ProcessError(
                f"{command} failed in {self.path}: {last_words(problem)}",
                hint=problem.hint,
                returncode=problem.returncode,
                output=problem.output or f"no end after {timeout} s",
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
            if re.search(r"not our ref|unadvertised object|Server does not allow request", problem.output):
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
        found = self.run("rev-parse", "--verify", "--quiet", f"{name}^{{commit}}", check=False)
        return found.stdout.strip() if found.returncode == 0 else ""


def environment() -> dict[str, str]:
    """Return git's environment: ours without what would steer git, no prompts, messages in English."""
    ours = process.inherited(GIT_TERMINAL_PROMPT="0", LC_ALL="C", LANGUAGE=None, GCM_INTERACTIVE="never")
    kept = {
        name: value
        for name, value in ours.items()
        if not name.startswith("GIT_") or name == "GIT_TERMINAL_PROMPT" or _KEPT.match(name)
    }
    kept.setdefault("GIT_SSH_COMMAND", "ssh -o BatchMode=yes -o ConnectTimeout=30")
    return kept


def last_words(problem: ProcessError) -> str:
    """Return the line of a failed git call that says most: the last that is no hint or blank."""
    said = problem.output or problem.message
    lines = [line.strip() for line in said.splitlines() if line.strip()]
    telling = [line for line in lines if not _WORDLESS.search(line)]
    fatal = [line for line in telling if line.startswith(("fatal:", "ERROR:", "error:"))]
    chosen = (fatal or telling or lines or [problem.message])[-1]
    return chosen.removeprefix("fatal: ").removeprefix("error: ")


def unreachable(origin: str, problem: ProcessError) -> SourceError:
    """Make the error for an origin that does not answer."""
    return SourceError(
        f"{origin} does not answer: {last_words(problem)}",
        hint="Check the origin's spelling, the network and your access, or name a mirror (--git-mirror).",
    )


@dataclass(frozen=True, kw_only=True)
class Reader:
    """Reads refs and files of origins, without cloning them."""

    cache: Path
    origins: Origins = field(default_factory=Origins)

    def commit(self, origin: str, ref: str) -> str:
        """Resolve a branch, tag or commit; an annotated tag to the commit it stands for.

        As in git, a tag comes before a branch of the same name.
        """
        if is_commit(ref):
            return self.fetched(origin, ref).commit_of(ref)
        names = [f"refs/tags/{ref}^{{}}", f"refs/tags/{ref}", f"refs/heads/{ref}"]
        if ref == "HEAD" or ref.startswith("refs/"):
            names = [f"{ref}^{{}}", ref]
        git = Repository(path=Path.cwd(), settings=self.origins.settings(origin))
        said = git.answer(origin, "ls-remote", "--", self.origins.address(origin), *names)
        rows = (line.split("\t", 1) for line in said.splitlines() if "\t" in line)
        found = {name: commit for commit, name in rows}
        for name in names:
            if name in found:
                return found[name]
        hint = "Correct the ref, or give another origin."
        if re.fullmatch(r"[0-9a-f]{7,39}", ref):
            hint = "If it is a commit, write all 40 digits."
        raise SourceError(f"{origin} has no branch or tag {ref!r}.", hint=hint)

    def fetched(self, origin: str, commit: str) -> Repository:
        """Fetch a commit's tree into the cache, unless it is there."""
        address = self.origins.address(origin)
        path = self.cache / files.sha256_text(address)[:16]
        git = Repository(path=path, settings=self.origins.settings(origin))
        with files.locked(self.cache / f"{path.name}.lock", what=f"the cache of {origin}"):
            if not (path / "complete").is_file():
                git.init(address, "--bare")
                (path / "complete").touch()
            # a ref of our own says that a commit is there: asking git for the commit itself
            # would make it fetch, as objects may be missing from these repositories
            kept = f"refs/kept/{commit}"
            if git.run("show-ref", "--verify", "--quiet", kept, check=False).returncode != 0:
                fetch_commit(git, origin, commit)
                git.run("update-ref", kept, commit)
        return git

    def texts(self, origin: str, commit: str, paths: Iterable[str]) -> Mapping[str, str]:
        """Read files at a commit: path -> text, of those that exist there."""
        git = self.fetched(origin, commit)
        listed = git.names("ls-tree", "-z", "--name-only", commit, "--", *paths)
        return {path: git.answer(origin, "cat-file", "blob", f"{commit}:{path}") for path in listed}


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


def submodules(git: Repository) -> Iterator[Repository]:
    """Return a tree's checked-out submodules at every depth, inner ones before their parents."""
    for inner in direct_submodules(git):
        yield from submodules(inner)
        yield inner


def direct_submodules(git: Repository) -> Iterator[Repository]:
    """Return a tree's own checked-out submodules, not theirs."""
    for _, folder in listed(git):
        if (folder / ".git").exists():
            yield replace(git, path=folder)


def listed(git: Repository) -> list[tuple[str, Path]]:
    """Read ``.gitmodules``: each submodule's name and folder."""
    if not (git.path / ".gitmodules").is_file():
        return []
    said = git.run("config", "--file", ".gitmodules", "--null", "--get-regexp", r"\.path$", check=False)
    rows = (row.split("\n", 1) for row in said.stdout.split("\0") if "\n" in row)
    found = [(key.removeprefix("submodule.").removesuffix(".path"), git.path / path) for key, path in rows]
    for _, folder in found:
        if not folder.resolve().is_relative_to(git.path.resolve()):
            raise SourceError(f"{git.path}: .gitmodules names a folder outside the tree, {folder}.")
    return found


def update_submodules(git: Repository, *, depth: int) -> None:
    """Check out every submodule at the commit that its parent names."""
    if not listed(git):
        return
    words = ("submodule", "update", "--init", "--recursive", "--force", "--jobs=8")
    console.echo(f"Fetching the submodules of {git.path}")
    shallow = [f"--depth={depth}"] if depth else []
    try:
        _synced(git)
        git.run(*words, *shallow, timeout=TRANSFER_SECONDS)
    except ProcessError:
        # a clone that broke off is cloned again, and a server that gives no single
        # commits is asked for the whole history
        _remove_broken(git)
        try:
            _synced(git)
            git.run(*words, timeout=TRANSFER_SECONDS)
        except ProcessError as problem:
            raise SourceError(
                f"The submodules of {git.path} could not be fetched: {last_words(problem)}",
                hint="Check the network and your access, or name a mirror (--git-mirror); then run again.",
            ) from problem


def _synced(git: Repository) -> None:
    """Take origins over from ``.gitmodules``: they may be others than at the last checkout."""
    if (git.path / ".git" / "modules").is_dir():
        git.run("submodule", "--quiet", "sync", "--recursive")


def remove_left(before: Iterable[Path], git: Repository) -> None:
    """Remove folders of submodules that the tree no longer has; git itself leaves them behind.

    Their repositories stay in the tree's own, so that a stash in one is not lost.
    """
    now = {one.path for one in submodules(git)}
    for folder in before:
        if folder not in now and (folder / ".git").is_file():
            shutil.rmtree(folder)


def _remove_broken(git: Repository) -> None:
    modules = git.path / git.out("rev-parse", "--git-dir") / "modules"
    for name, folder in listed(git):
        inner = replace(git, path=folder)
        marker = folder / ".git"
        broken = marker.exists() and not inner.commit_of("HEAD")
        unborn = not marker.exists() and (modules / name).exists()
        if broken or unborn:
            git.run("submodule", "deinit", "--force", "--", folder, check=False)
            shutil.rmtree(modules / name, ignore_errors=True)
        elif marker.exists():
            _remove_broken(inner)
