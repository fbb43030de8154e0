import os
import shutil
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

from core import process
from core.errors import ProcessError, UsageError
from pytorch_build import sample
from pytorch_build.sample import REPOSITORIES, TEMPLATES, ensure_repositories
from tests.kit.repos import run_git

pytestmark = pytest.mark.processes

Repositories = Mapping[str, Path]


@pytest.fixture(scope="module")
def repositories(tmp_path_factory: pytest.TempPathFactory) -> Repositories:
    """Return the sample's repositories, which no test changes."""
    return ensure_repositories(tmp_path_factory.mktemp("sample") / "repos")


def main_commits(repositories: Repositories) -> dict[str, str]:
    """Return the commit of each repository's branch ``main``."""
    return {name: run_git(path, "rev-parse", "main") for name, path in repositories.items()}


def all_refs(repository: Path) -> str:
    """Return the names and objects of a repository's branches and tags."""
    return run_git(repository, "for-each-ref", "--format=%(refname) %(objectname)")


GIT_CONFIG = """\
[user]
    name = Someone
    email = some@one
[commit]
    gpgSign = true
[tag]
    gpgSign = true
[core]
    autocrlf = true
[init]
    defaultBranch = trunk
[i18n]
    commitEncoding = latin1
"""


@pytest.fixture
def hostile_environment(tmp_path: Path) -> Iterator[None]:
    """Let the user's settings be such that they would change commits, for as long as the test runs."""
    home = tmp_path / "home"
    ignore_file = home / ".config" / "git" / "ignore"
    ignore_file.parent.mkdir(parents=True)
    ignore_file.write_text("*.py\n")
    ignore_file.with_name("attributes").write_text("* text eol=crlf\n")
    config_file = tmp_path / "gitconfig"
    config_file.write_text(GIT_CONFIG)
    variables = {
        "HOME": str(home),
        "XDG_CONFIG_HOME": str(home / ".config"),
        "GIT_CONFIG_GLOBAL": str(config_file),
        "GIT_AUTHOR_NAME": "Someone",
        "GIT_COMMITTER_DATE": "2001-01-01T00:00:00",
        "GIT_DIR": str(tmp_path / "elsewhere"),
        "GIT_DEFAULT_HASH": "sha256",
        "TZ": "Asia/Tokyo",
        "LANG": "de_DE.UTF-8",
    }

    with pytest.MonkeyPatch.context() as patch:
        for name, value in variables.items():
            patch.setenv(name, value)
        mask = os.umask(0o077)
        yield
        os.umask(mask)


@pytest.fixture
def repositories_of_hostile_user(tmp_path: Path, request: pytest.FixtureRequest) -> Repositories:
    """Return the repositories that are made under the settings of a hostile user."""
    request.getfixturevalue("hostile_environment")
    return ensure_repositories(tmp_path / "repos")


def test_makes_the_same_commits_whatever_the_users_settings_are(
    repositories: Repositories, repositories_of_hostile_user: Repositories, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Questions to git are not asked of the folder that the hostile user's variable names.
    monkeypatch.delenv("GIT_DIR")

    assert main_commits(repositories_of_hostile_user) == main_commits(repositories)
    assert all_refs(repositories_of_hostile_user["torch"]) == all_refs(repositories["torch"])


def test_starts_no_process_where_the_repositories_exist(
    repositories: Repositories, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(process, "capture", lambda *_, **__: pytest.fail("a process was started"))

    assert ensure_repositories(repositories["torch"].parent) == repositories


def test_makes_the_repositories_anew_whose_templates_changed(
    tmp_path: Path, repositories: Repositories, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "repos"
    shutil.copytree(repositories["torch"].parent, folder)
    templates = shutil.copytree(TEMPLATES, tmp_path / "templates")
    (templates / "audio" / "version.txt").write_bytes(b"9.9\n")
    monkeypatch.setattr(sample, "TEMPLATES", templates)

    changed_repositories = ensure_repositories(folder)

    commits = main_commits(repositories)
    changed_commits = main_commits(changed_repositories)
    # torch pins audio.
    assert {name for name in REPOSITORIES if commits[name] != changed_commits[name]} == {"audio", "torch"}
    assert {path.name for path in tmp_path.iterdir() if path.is_dir()} == {"repos", "templates"}


@pytest.mark.parametrize("missing_file", ["torch/HEAD", "torch/objects/??/*", "audio/config", sample.STAMP])
def test_recreates_an_incomplete_repository(
    tmp_path: Path, repositories: Repositories, missing_file: str
) -> None:
    folder = tmp_path / "repos"
    shutil.copytree(repositories["torch"].parent, folder)
    path = next(folder.glob(missing_file))
    path.unlink()

    recreated_repositories = ensure_repositories(folder)

    assert main_commits(recreated_repositories) == main_commits(repositories)
    assert run_git(recreated_repositories["torch"], "fsck", "--strict") == ""


def test_leaves_nothing_behind_where_git_fails(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    capture = process.capture

    def fail_at_vision(argv: list[str], **options: object) -> process.Completed:
        if "commit" in argv and "Sample of vision" in argv:
            raise ProcessError("git commit ended with status 128.")
        return capture(argv, **options)  # type: ignore[arg-type]

    monkeypatch.setattr(process, "capture", fail_at_vision)

    with pytest.raises(ProcessError):
        ensure_repositories(tmp_path / "repos")

    assert [path for path in tmp_path.iterdir() if path.is_dir()] == []


def test_leaves_a_folder_with_other_files_alone(tmp_path: Path) -> None:
    thesis = tmp_path / "thesis.tex"
    thesis.write_text("years of work")

    with pytest.raises(UsageError, match=r"thesis\.tex"):
        ensure_repositories(tmp_path)

    assert thesis.read_text() == "years of work"
