import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from core.errors import ProcessError, SourceError
from pytorch_build.sources import git as module
from pytorch_build.sources.git import Origins, Reader, Repository, last_words, protocol
from tests.conftest import Commit, Git

NOT_THERE = """\
fatal: '/x' does not appear to be a git repository
fatal: Could not read from remote repository.

Please make sure you have the correct access rights
and the repository exists.
"""


def test_paths_are_told_from_urls_and_both_from_what_git_would_start() -> None:
    assert {protocol(one) for one in ("/a/b", "./a", "C:/a", "C:\\a", "file:///a", "-oX=y:z")} == {"file"}
    assert {protocol(one) for one in ("ssh://git@host/a", "git@example.org:a/b", "host:a")} == {"ssh"}
    assert [protocol(one) for one in ("https://a/b", "ext::sh -c x", "fd::0")] == ["https", "ext", "fd"]


def test_git_reaches_what_is_encrypted_and_what_a_person_named() -> None:
    safe = ("protocol.allow=never", "protocol.https.allow=always", "protocol.ssh.allow=always")
    for origin in ("https://example.org/a", "git@example.org:a", "fd::0", "ext::sh -c x", "ftp://a/b"):
        assert Origins().settings(origin) == safe
    for origin, kind in (("/a", "file"), ("http://a/b", "http"), ("git://a/b", "git")):
        assert Origins().settings(origin) == (*safe, f"protocol.{kind}.allow=always")
    mirrors = Origins(mirrors={"https://example.org/": "https://mirror.example.org/"})
    assert mirrors.settings("https://example.org/a") == (
        "url.https://mirror.example.org/.insteadOf=https://example.org/",
        *safe,
    )


@pytest.mark.processes
@pytest.mark.parametrize("address", ["fd::0", "ext::sh -c 'touch {0}/ran'", "file://{0}/there"])
def test_git_starts_no_helper_and_takes_no_folder_for_a_tree(
    tmp_path: Path, commit_files: Commit, address: str
) -> None:
    address = address.format(tmp_path)
    commit_files(tmp_path / "there", {"a": ""})
    modules = f'[submodule "a"]\n\tpath = a\n\turl = {address}\n'
    tree = tmp_path / "tree"
    commit_files(tree, {".gitmodules": modules})
    git = Repository(path=tree, settings=Origins().settings("https://example.org/a"))
    git.run("update-index", "--add", "--cacheinfo", f"160000,{'1' * 40},a")
    with pytest.raises(SourceError, match="not allowed"):
        module.update_submodules(git, depth=1)
    if "://" not in address:
        with pytest.raises(SourceError, match=r"transport '.*' not allowed"):
            Reader(cache=tmp_path / "cache").commit(address, "main")
    assert not (tmp_path / "ran").exists()


def test_the_environment_steers_no_git(monkeypatch: pytest.MonkeyPatch) -> None:
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
        (NOT_THERE, "'/x' does not appear to be a git repository"),
        ("remote: nothing\nfatal: unable to access 'u': Could not resolve host\n", "Could not resolve host"),
        ("hint: try\nsomething else\n", "something else"),
        ("", "the message"),
    ],
)
def test_the_telling_line_of_gits_output(output: str, said: str) -> None:
    assert last_words(ProcessError("the message", output=output)).endswith(said)


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


def test_an_origin_that_takes_too_long_is_given_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "ANSWER_SECONDS", 0.2)
    program = tmp_path / "ssh"
    program.write_text("#!/bin/sh\nexec sleep 30\n")
    program.chmod(0o755)
    monkeypatch.setenv("GIT_SSH_COMMAND", str(program))
    with pytest.raises(SourceError, match=r"does not answer: no end after 0.2 s"):
        Reader(cache=tmp_path / "cache").commit("ssh://example.invalid/a", "main")


pytestmark = pytest.mark.processes
LOCAL = ("protocol.file.allow=always",)


@pytest.fixture
def tree(tmp_path: Path, commit_files: Commit, git: Git) -> Repository:
    """A clone without its submodules: outer, and inner within it, both behind their branches."""
    commit_files(tmp_path / "inner", {"i": "1"})
    commit_files(tmp_path / "outer", {"o": "1"})
    git(tmp_path / "outer", "submodule", "--quiet", "add", "../inner", "lib/inner")
    commit_files(tmp_path / "outer", {})
    commit_files(tmp_path / "top", {"t": "1"})
    git(tmp_path / "top", "submodule", "--quiet", "add", "../outer", "outer")
    commit_files(tmp_path / "top", {})
    commit_files(tmp_path / "inner", {"i": "2"})
    commit_files(tmp_path / "outer", {"o": "2"})
    git(tmp_path, "clone", "--quiet", "top", "tree")
    return Repository(path=tmp_path / "tree", settings=LOCAL)


def test_submodules_are_listed_inner_ones_first(tree: Repository) -> None:
    assert list(module.submodules(tree)) == []
    module.update_submodules(Repository(path=tree.path.parent / "inner"), depth=1)  # has none
    module.update_submodules(tree, depth=1)
    outer = tree.path / "outer"
    assert [one.path for one in module.submodules(tree)] == [outer / "lib/inner", outer]
    assert [one.path for one in module.direct_submodules(tree)] == [outer]
    assert (outer / "lib/inner/i").read_text() == "1"


def test_a_nested_clone_that_broke_off_is_made_again(tree: Repository) -> None:
    module.update_submodules(tree, depth=1)
    nested = tree.path / "outer/lib/inner"
    modules = tree.path / ".git/modules/outer/modules/lib/inner"
    shutil.rmtree(modules)
    modules.mkdir()
    module.update_submodules(tree, depth=1)
    assert (nested / "i").read_text() == "1"
    assert len(list(module.submodules(tree))) == 2


def test_a_folder_outside_the_tree_is_refused(tmp_path: Path, commit_files: Commit) -> None:
    commit_files(tmp_path / "tree", {".gitmodules": '[submodule "x"]\n\tpath = ../other\n\turl = ../x\n'})
    with pytest.raises(SourceError, match="outside the tree"):
        module.listed(Repository(path=tmp_path / "tree"))


@pytest.fixture
def old_server(monkeypatch: pytest.MonkeyPatch) -> None:
    """Speak the protocol in which a server refuses commits that no ref names."""
    monkeypatch.setattr(module, "_MANAGED", (*module._MANAGED, "protocol.version=0"))


def test_files_are_read_at_a_commit(tmp_path: Path, commit_files: Commit) -> None:
    first = commit_files(tmp_path / "up", {"version.txt": "1\n", "a/b.txt": "b\n"})
    commit_files(tmp_path / "up", {"version.txt": "2\n"})
    reader = Reader(cache=tmp_path / "cache")
    texts = {"a/b.txt": "b\n", "version.txt": "1\n"}
    assert reader.texts(str(tmp_path / "up"), first, (*texts, "absent.txt")) == texts
    # an interrupted cache is made again
    (cached,) = [path for path in (tmp_path / "cache").iterdir() if path.is_dir()]
    (cached / "complete").unlink()
    (cached / "HEAD").unlink()
    assert reader.commit(str(tmp_path / "up"), first) == first


@pytest.mark.usefixtures("old_server")
def test_a_server_that_gives_no_single_commits_is_asked_for_all(tmp_path: Path, commit_files: Commit) -> None:
    first = commit_files(tmp_path / "up", {"version.txt": "1\n"})
    commit_files(tmp_path / "up", {"version.txt": "2\n"})
    reader = Reader(cache=tmp_path / "cache")
    assert reader.commit(str(tmp_path / "up"), first) == first
    assert reader.texts(str(tmp_path / "up"), first, ("version.txt",)) == {"version.txt": "1\n"}
    with pytest.raises(SourceError, match="does not have the commit 1111"):
        reader.commit(str(tmp_path / "up"), "1" * 40)
