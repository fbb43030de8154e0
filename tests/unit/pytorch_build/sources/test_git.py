from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from core import process
from core.errors import ProcessError, SourceError
from pytorch_build.sources import git as module
from pytorch_build.sources.git import Origins, Repository, is_path, last_words

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path


NOT_THERE = """\
fatal: '/x' does not appear to be a git repository
fatal: Could not read from remote repository.

Please make sure you have the correct access rights
and the repository exists.
"""


@pytest.mark.parametrize(
    ("address", "path"),
    [
        ("/a/b", True),
        ("./a", True),
        ("C:/a", True),
        ("C:\\a", True),
        ("file:///a", True),
        ("https://example.org/a", False),
        ("git@example.org:a/b", False),
        ("host:a", False),
    ],
)
def test_paths_are_told_from_urls(address: str, path: bool) -> None:  # noqa: FBT001
    assert is_path(address) is path


def test_only_origins_that_are_paths_allow_submodules_from_paths() -> None:
    assert Origins().settings("https://example.org/a") == ()
    assert Origins().settings("/a") == ("protocol.file.allow=always",)
    mirrors = Origins(mirrors={"https://example.org/": "https://mirror.example.org/"})
    assert mirrors.settings("https://example.org/a") == (
        "url.https://mirror.example.org/.insteadOf=https://example.org/",
    )


def test_the_environment_steers_no_git(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in process.inherited() if name.startswith("GIT_")]:
        monkeypatch.delenv(name)
    for name in ("GIT_DIR", "GIT_INDEX_FILE", "GIT_CONFIG_PARAMETERS", "GIT_AUTHOR_NAME"):
        monkeypatch.setenv(name, "x")
    monkeypatch.setenv("GIT_SSH_COMMAND", "ssh -i key")
    env = module.environment()
    assert {name for name in env if name.startswith("GIT_")} == {"GIT_TERMINAL_PROMPT", "GIT_SSH_COMMAND"}
    assert env["GIT_SSH_COMMAND"] == "ssh -i key"
    assert (env["GIT_TERMINAL_PROMPT"], env["LC_ALL"]) == ("0", "C")


@pytest.mark.parametrize(
    ("output", "said"),
    [
        (
            NOT_THERE,
            "'/x' does not appear to be a git repository",
        ),
        ("remote: nothing\nfatal: unable to access 'u': Could not resolve host\n", "Could not resolve host"),
        ("hint: try\nsomething else\n", "something else"),
        ("", "the message"),
    ],
)
def test_the_telling_line_of_gits_output(output: str, said: str) -> None:
    assert last_words(ProcessError("the message", output=output)).endswith(said)


@pytest.mark.processes
def test_users_settings_do_not_reach_managed_trees(
    tmp_path: Path, git: Callable[..., str], monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / ".gitconfig").write_text("[core]\n\tautocrlf = true\n[commit]\n\tgpgSign = true\n")
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    tree = tmp_path / "tree"
    tree.mkdir()
    git(tree, "init", "--quiet")
    for managed, said in ((True, ["false", "false"]), (False, ["true", "true"])):
        ours = Repository(path=tree, managed=managed)
        assert [ours.out("config", name) for name in ("core.autocrlf", "commit.gpgSign")] == said


@pytest.mark.processes
def test_a_commit_that_is_not_there_is_no_error(tmp_path: Path, git: Callable[..., str]) -> None:
    git(tmp_path, "init", "--quiet")
    assert Repository(path=tmp_path).commit_of("main") == ""


@pytest.mark.processes
def test_an_origin_that_takes_too_long_is_given_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "ANSWER_SECONDS", 0.2)
    program = tmp_path / "ssh"
    program.write_text("#!/bin/sh\nexec sleep 30\n")
    program.chmod(0o755)
    monkeypatch.setenv("GIT_SSH_COMMAND", str(program))
    with pytest.raises(SourceError, match=r"does not answer: no end after 0.2 s"):
        module.ls_remote("ssh://example.invalid/a", ("refs/heads/main",), Origins())
