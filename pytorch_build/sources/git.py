"""Every git call of this package: clean environment, fixed settings, errors that say what git said."""

from __future__ import annotations

import os
import re
import shlex
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from core import process
from core.errors import ProcessError, SourceError, nearest

if TYPE_CHECKING:
    from collections.abc import Mapping

    from core.process import Completed

SAMPLE_SCHEME = "sample:"
ANSWER_SECONDS = 120.0
TRANSFER_SECONDS = 4 * 3600.0

# Of the user's GIT_ variables only those that say how to reach a server are passed on.
_KEPT = re.compile(r"GIT_(SSH|SSL|HTTP|PROXY|ASKPASS|CURL|TRACE)")
# What a user's configuration could change in a tree or a commit that has to be the same everywhere.
_MANAGED = (
    "commit.gpgSign=false",
    "tag.gpgSign=false",
    f"core.hooksPath={os.devnull}",
    f"core.attributesFile={os.devnull}",
    "core.autocrlf=false",
    "core.fsmonitor=false",
    "core.longpaths=true",
    "core.quotePath=false",
    "advice.detachedHead=false",
    "submodule.recurse=false",
    "diff.ignoreSubmodules=none",
    "gc.auto=0",
    "maintenance.auto=false",
    "init.defaultBranch=main",
    "init.templateDir=",
    "i18n.commitEncoding=utf-8",
    # a server that stops sending is given up on
    "http.lowSpeedLimit=1000",
    "http.lowSpeedTime=60",
)
_REFUSED_WANT = re.compile(r"not our ref|unadvertised object|Server does not allow request")
_WORDLESS = re.compile(
    r"^(hint|warning):|^fatal: Could not read from remote|^Please make sure|^and the repository exists"
    r"|^fatal: Failed to recurse|^Failed to clone|^fatal: clone of|^BUG:"
)


@dataclass(frozen=True, kw_only=True)
class Origins:
    """How origins are reached."""

    repositories: Mapping[str, Path] = field(default_factory=dict)
    mirrors: Mapping[str, str] = field(default_factory=dict)

    def address(self, origin: str) -> str:
        """Give what git is to be told for an origin: itself, or the path of a sample repository."""
        if not origin.startswith(SAMPLE_SCHEME):
            return origin
        name = origin.removeprefix(SAMPLE_SCHEME)
        if name not in self.repositories:
            raise SourceError(f"{origin} names no repository. {nearest(name, self.repositories)}")
        return str(self.repositories[name])

    def settings(self, origin: str) -> tuple[str, ...]:
        """Give the settings (``name=value``) that git needs to reach an origin and its submodules."""
        rewrites = [f"url.{mirror}.insteadOf={prefix}" for prefix, mirror in self.mirrors.items()]
        # git refuses submodules from paths by default; an origin that is a path was given by a person
        local = any(is_path(place) for place in (self.address(origin), *self.mirrors.values()))
        return (*rewrites, *(["protocol.file.allow=always"] if local else []))


def is_path(address: str) -> bool:
    """Say whether git would take an address for a folder of this machine."""
    if address.startswith("file://") or re.match(r"[A-Za-z]:[\\/]", address):
        return True
    return "://" not in address and ":" not in address.partition("/")[0]


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
    ) -> Completed:
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

    def out(self, *arguments: str | Path) -> str:
        """Run one git command for the text it prints, without the last line's end."""
        return self.run(*arguments).stdout.rstrip("\n")

    def names(self, *arguments: str) -> tuple[str, ...]:
        """Run one git command that prints names ended by NUL (``-z``)."""
        return tuple(name for name in self.run(*arguments).stdout.split("\0") if name)

    def untracked(self) -> tuple[str, ...]:
        """List files that git does not track and is not told to ignore, submodules not looked at."""
        return self.names("ls-files", "-z", "--others", "--exclude-standard")

    def commit_of(self, name: str) -> str:
        """Give the commit that a name stands for, or nothing where there is no such commit."""
        found = self.run("rev-parse", "--verify", "--quiet", f"{name}^{{commit}}", check=False)
        return found.stdout.strip() if found.returncode == 0 else ""


def environment() -> dict[str, str]:
    """Give git's environment: ours without what would steer git, no prompts, messages in English."""
    ours = process.inherited(GIT_TERMINAL_PROMPT="0", LC_ALL="C", LANGUAGE=None, GCM_INTERACTIVE="never")
    kept = {
        name: value
        for name, value in ours.items()
        if not name.startswith("GIT_") or name == "GIT_TERMINAL_PROMPT" or _KEPT.match(name)
    }
    kept.setdefault("GIT_SSH_COMMAND", "ssh -o BatchMode=yes -o ConnectTimeout=30")
    return kept


def last_words(problem: ProcessError) -> str:
    """Give the line of a failed git call that says most: the last that is no hint or blank."""
    said = problem.output or problem.message
    lines = [line.strip() for line in said.splitlines() if line.strip()]
    telling = [line for line in lines if not _WORDLESS.search(line)]
    fatal = [line for line in telling if line.startswith(("fatal:", "ERROR:", "error:"))]
    chosen = (fatal or telling or lines or [problem.message])[-1]
    return chosen.removeprefix("fatal: ").removeprefix("error: ")


def ls_remote(origin: str, names: tuple[str, ...], origins: Origins) -> Mapping[str, str]:
    """Ask an origin for refs by their full names."""
    git = Repository(path=Path.cwd(), settings=origins.settings(origin))
    try:
        said = git.run("ls-remote", "--", origins.address(origin), *names, timeout=ANSWER_SECONDS).stdout
    except ProcessError as problem:
        raise unreachable(origin, problem) from problem
    rows = (line.split("\t", 1) for line in said.splitlines() if "\t" in line)
    return {name: commit for commit, name in rows if name in names}


def unreachable(origin: str, problem: ProcessError) -> SourceError:
    """Make the error for an origin that does not answer."""
    return SourceError(
        f"{origin} does not answer: {last_words(problem)}",
        hint="Check the origin's spelling, the network and your access, or name a mirror (--git-mirror).",
    )


def refuses_commits(problem: ProcessError) -> bool:
    """Say whether a server refused a fetch because it was for a commit, or for one it lacks."""
    return _REFUSED_WANT.search(problem.output) is not None
