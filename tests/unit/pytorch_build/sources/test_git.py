import os
import shutil
from pathlib import Path

import pytest

from core.errors import EnvironmentSetupError, ProcessError, SourceError
from pytorch_build.sources import git
from pytorch_build.sources.git import (
    OriginReader,
    Origins,
    Repository,
    git_reason,
    protocol,
    unreachable_error,
)
from tests.kit.repos import commit_files, run_git

NO_REPOSITORY = """\
fatal: '/x' does not appear to be a git repository
fatal: Could not read from remote repository.

Please make sure you have the correct access rights
and the repository exists.
"""
OTHER_OWNER = """\
fatal: detected dubious ownership in repository at '/x'
To add an exception for this directory, call:

\tgit config --global --add safe.directory /x
"""
SAFE_SETTINGS = ("protocol.allow=never", "protocol.https.allow=always", "protocol.ssh.allow=always")


# Addresses, and what git may do to reach them


@pytest.mark.parametrize(
    ("address", "expected"),
    [
        ("/a/b", "file"),
        ("./a", "file"),
        ("C:/a", "file"),
        ("C:\\a", "file"),
        ("file:///a", "file"),
        # ssh would take it for an option.
        ("-oX=y:z", "file"),
        ("ssh://git@host/a", "ssh"),
        ("git@example.org:a/b", "ssh"),
        ("host:a", "ssh"),
        ("https://a/b", "https"),
        ("ext::sh -c x", "ext"),
        ("fd::0", "fd"),
    ],
)
def test_knows_by_which_protocol_an_address_is_reached(address: str, expected: str) -> None:
    assert protocol(address) == expected


@pytest.mark.parametrize(
    "origin", ["https://example.org/a", "git@example.org:a", "fd::0", "ext::sh -c x", "ftp://a/b"]
)
def test_allows_git_encrypted_protocols_alone(origin: str) -> None:
    assert Origins().settings(origin) == SAFE_SETTINGS


@pytest.mark.parametrize(
    ("origin", "protocol_name"), [("/a", "file"), ("http://a/b", "http"), ("git://a/b", "git")]
)
def test_allows_git_the_protocol_of_an_origin_that_the_user_named(origin: str, protocol_name: str) -> None:
    assert Origins().settings(origin) == (*SAFE_SETTINGS, f"protocol.{protocol_name}.allow=always")


def test_leads_git_to_a_mirror() -> None:
    origins = Origins(mirrors={"https://example.org/": "https://mirror.example.org/"})

    mirror = "url.https://mirror.example.org/.insteadOf=https://example.org/"
    assert origins.settings("https://example.org/a") == (mirror, *SAFE_SETTINGS)


# Addresses that name a helper program.
UNSAFE_ADDRESSES = ["fd::0", "ext::sh -c 'touch {folder}/ran'"]


@pytest.mark.processes
@pytest.mark.parametrize("address", UNSAFE_ADDRESSES)
def test_starts_no_helper_program_for_an_origin(tmp_path: Path, address: str) -> None:
    address = address.format(folder=tmp_path)

    with pytest.raises(SourceError, match="not allowed"):
        OriginReader(cache=tmp_path / "cache").resolve_commit(address, "main")

    assert not (tmp_path / "ran").exists()


# git's environment


def test_hides_variables_that_steer_git(monkeypatch: pytest.MonkeyPatch) -> None:
    steering = ("GIT_DIR", "GIT_INDEX_FILE", "GIT_CONFIG_PARAMETERS", "GIT_AUTHOR_NAME")
    for name in steering:
        monkeypatch.setenv(name, "x")

    assert not set(steering) & git.git_environment().keys()


def test_keeps_a_users_way_to_reach_servers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GIT_SSH_COMMAND", "ssh -i key")

    assert git.git_environment()["GIT_SSH_COMMAND"] == "ssh -i key"


@pytest.mark.parametrize(
    "variables",
    [
        {"GIT_CONFIG_COUNT": "1", "GIT_CONFIG_KEY_0": "user.name", "GIT_CONFIG_VALUE_0": "me"},
        {"GIT_CONFIG_GLOBAL": "{folder}/config"},
    ],
    ids=["variables", "another file"],
)
@pytest.mark.processes
def test_counts_configuration_that_variables_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, variables: dict[str, str]
) -> None:
    (tmp_path / "config").write_text("[user]\n\tname = me\n")
    for name, value in variables.items():
        monkeypatch.setenv(name, value.format(folder=tmp_path))

    assert Repository(path=tmp_path).read_output("config", "user.name") == "me"


@pytest.mark.processes
def test_says_that_git_is_missing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))

    with pytest.raises(EnvironmentSetupError, match="git is not installed"):
        OriginReader(cache=tmp_path / "cache").resolve_commit("https://example.invalid/a", "main")


def test_lets_git_ask_nobody_and_speak_english() -> None:
    env = git.git_environment()

    assert env["GIT_TERMINAL_PROMPT"] == "0"
    assert env["LC_ALL"] == "C"


@pytest.mark.processes
@pytest.mark.parametrize(("managed", "setting"), [(True, "false"), (False, "true")])
@pytest.mark.parametrize("name", ["core.autocrlf", "commit.gpgSign"])
def test_takes_a_users_settings_in_trees_of_their_own_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, setting: str, *, managed: bool
) -> None:
    (tmp_path / ".gitconfig").write_text("[core]\n\tautocrlf = true\n[commit]\n\tgpgSign = true\n")
    monkeypatch.setenv("GIT_CONFIG_GLOBAL", str(tmp_path / ".gitconfig"))
    tree = tmp_path / "tree"
    tree.mkdir()
    run_git(tree, "init", "--quiet")

    assert Repository(path=tree, managed=managed).read_output("config", name) == setting


# Errors


@pytest.mark.parametrize(
    ("output", "line"),
    [
        pytest.param(NO_REPOSITORY, "'/x' does not appear to be a git repository", id="two fatal lines"),
        pytest.param(
            "remote: nothing\nfatal: unable to access 'u': Could not resolve host\n",
            "unable to access 'u': Could not resolve host",
            id="fatal line",
        ),
        pytest.param(OTHER_OWNER, "detected dubious ownership in repository at '/x'", id="remedy"),
        pytest.param("hint: try\nsomething else\n", "something else", id="hint"),
        pytest.param("", "the message", id="no output"),
    ],
)
def test_quotes_the_line_of_gits_output_that_says_most(output: str, line: str) -> None:
    assert git_reason(ProcessError("the message", output=output)) == line


@pytest.mark.parametrize(
    ("output", "advice"),
    [
        (NO_REPOSITORY, "Correct the origin"),
        ("fatal: unable to access 'https://a/b/': Could not resolve host: a\n", "network"),
        ("ssh: connect to host a port 22: Connection timed out\n", "network"),
        ("git@a: Permission denied (publickey).\n", "access"),
        ("fatal: could not read Username for 'https://a': terminal prompts disabled\n", "spelling"),
    ],
    ids=["no repository", "name", "time", "rights", "login"],
)
def test_advises_what_gits_words_tell_of_an_origin(output: str, advice: str) -> None:
    problem = unreachable_error("https://a/b", ProcessError("git failed", output=output))

    assert advice in problem.hint


def test_advises_nothing_where_gits_words_do_not_tell() -> None:
    problem = unreachable_error("https://a/b", ProcessError("git failed", output="fatal: bad object HEAD\n"))

    assert problem.hint == ""


@pytest.mark.processes
def test_gives_up_an_origin_that_takes_too_long(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(git, "ANSWER_SECONDS", 0.2)
    program = tmp_path / "ssh"
    program.write_text("#!/bin/sh\nexec sleep 30\n")
    program.chmod(0o755)
    monkeypatch.setenv("GIT_SSH_COMMAND", str(program))

    with pytest.raises(SourceError, match=r"0\.2 s") as caught:
        OriginReader(cache=tmp_path / "cache").resolve_commit("ssh://example.invalid/a", "main")

    assert "ssh://example.invalid/a" in caught.value.message


# Reading files of an origin


@pytest.fixture
def upstream(tmp_path: Path) -> tuple[str, str]:
    """Return an origin and its first commit, which is behind its branch."""
    folder = tmp_path / "upstream"
    commit = commit_files(folder, {"version.txt": "1\n", "a/b.txt": "b\n"})
    commit_files(folder, {"version.txt": "2\n"})
    return str(folder), commit


@pytest.mark.processes
def test_reads_files_at_a_commit(upstream: tuple[str, str], tmp_path: Path) -> None:
    origin, commit = upstream

    texts = OriginReader(cache=tmp_path / "cache").read_texts(
        origin, commit, ("a/b.txt", "version.txt", "absent.txt")
    )

    assert texts == {"a/b.txt": "b\n", "version.txt": "1\n"}


@pytest.mark.processes
def test_recreates_an_incomplete_cache(upstream: tuple[str, str], tmp_path: Path) -> None:
    origin, commit = upstream
    reader = OriginReader(cache=tmp_path / "cache")
    reader.resolve_commit(origin, commit)
    (repository,) = (path for path in (tmp_path / "cache").iterdir() if path.is_dir())
    (repository / "complete").unlink()
    (repository / "HEAD").unlink()

    assert reader.resolve_commit(origin, commit) == commit


@pytest.mark.processes
@pytest.mark.parametrize("lost_name", ["objects", "HEAD", "refs", "config"])
def test_recreates_a_cache_that_has_lost_files(
    upstream: tuple[str, str], tmp_path: Path, lost_name: str
) -> None:
    origin, commit = upstream
    # The cache lies in the folder of another repository, where git would go on without saying so.
    checkout = tmp_path / "checkout"
    commit_files(checkout, {".gitignore": ".cache\n"})
    references = run_git(checkout, "show-ref")
    reader = OriginReader(cache=checkout / ".cache")
    reader.resolve_commit(origin, commit)
    (lock,) = reader.cache.glob("*.lock")
    lost_path = lock.with_suffix("") / lost_name
    if lost_path.is_dir():
        shutil.rmtree(lost_path)
    else:
        lost_path.unlink()

    assert reader.read_texts(origin, commit, ("version.txt",)) == {"version.txt": "1\n"}

    # Nothing has changed there.
    assert run_git(checkout, "show-ref") == references
    assert "remote." not in run_git(checkout, "config", "--list", "--local")


@pytest.mark.processes
def test_takes_a_commit_in_upper_case(upstream: tuple[str, str], tmp_path: Path) -> None:
    origin, commit = upstream

    assert OriginReader(cache=tmp_path / "cache").resolve_commit(origin, commit.upper()) == commit


@pytest.fixture
def _oldest_protocol(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let git speak the protocol in which a server refuses commits that no branch names."""
    (tmp_path / ".gitconfig").write_text("[protocol]\n\tversion = 0\n")
    monkeypatch.setenv("GIT_CONFIG_GLOBAL", os.fspath(tmp_path / ".gitconfig"))


@pytest.mark.processes
@pytest.mark.usefixtures("_oldest_protocol")
def test_asks_a_server_for_all_commits_that_gives_no_single_one(
    upstream: tuple[str, str], tmp_path: Path
) -> None:
    origin, commit = upstream
    reader = OriginReader(cache=tmp_path / "cache")

    assert reader.resolve_commit(origin, commit) == commit
    assert reader.read_texts(origin, commit, ("version.txt",)) == {"version.txt": "1\n"}


@pytest.mark.processes
@pytest.mark.usefixtures("_oldest_protocol")
def test_names_a_commit_that_no_server_has(upstream: tuple[str, str], tmp_path: Path) -> None:
    origin, _commit = upstream

    with pytest.raises(SourceError, match="1" * 40):
        OriginReader(cache=tmp_path / "cache").resolve_commit(origin, "1" * 40)
