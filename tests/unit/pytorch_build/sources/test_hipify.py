from pathlib import Path

import pytest

from pytorch_build.sources import hipify
from pytorch_build.sources.git import Repository
from tests.kit.repos import commit_files, run_git, write_files

pytestmark = pytest.mark.processes

DATE = "2026-01-01T00:00:00Z"


@pytest.fixture
def hipified(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[Repository, str]:
    """Return a repository after hipify, and the commit of what it made, for a user who ignores its files."""
    excludes_file = tmp_path / "ignored"
    excludes_file.write_text("*.hip\n.idea\n")
    configuration = tmp_path / ".gitconfig"
    configuration.write_text(f"[core]\n\texcludesFile = {excludes_file}\n")
    monkeypatch.setenv("GIT_CONFIG_GLOBAL", str(configuration))
    tree = tmp_path / "tree"
    commit_files(tree, {"a.cu": "cuda\n", ".gitignore": "build/\n"})
    write_files(tree, {".idea": "an editor's"})
    repository = Repository(path=tree)

    untracked_paths = hipify.all_untracked_files(repository)
    untracked_before = {tree: set(untracked_paths)}
    write_files(tree, {"a.hip": "hip\n", "build/x": "ignored by the project"})
    commit = hipify.commit_hipified(repository, DATE, untracked_before)
    assert commit is not None
    assert hipify.commit_hipified(repository, DATE, untracked_before) is None
    return repository, commit


def test_commits_what_hipify_made_though_the_user_ignores_it(hipified: tuple[Repository, str]) -> None:
    repository, commit = hipified

    names = run_git(repository.path, "show", "--name-only", "--format=", commit)

    assert names.splitlines() == ["a.hip"]


def test_commits_what_hipify_made_under_a_fixed_name_and_date(hipified: tuple[Repository, str]) -> None:
    repository, commit = hipified

    description = run_git(repository.path, "show", "--no-patch", "--format=%an %aI %s", commit)

    assert description == "pytorch-build 2026-01-01T00:00:00+00:00 DO NOT SUBMIT: HIPIFY"
