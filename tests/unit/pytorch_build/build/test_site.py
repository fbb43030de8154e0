from pathlib import Path

import pytest

from core.errors import DataError, MissingInputError
from pytorch_build.build import site
from tests.conftest import Commit, Git, Write


def test_a_tree_like_torchs(tmp_path: Path, write_files: Write) -> None:
    build_system = '[build-system]\nrequires = ["numpy", "cmake>=3.27"]\nbuild-backend = "a.b"\n'
    setup = 'version = os.getenv("PYTORCH_BUILD_VERSION")'
    write_files(tmp_path, {"pyproject.toml": build_system, "requirements.txt": "", "setup.py": setup})
    assert site.tree_facts(tmp_path) == site.TreeFacts(
        files=frozenset({"pyproject.toml", "requirements.txt", "setup.py"}),
        build_backend="a.b",
        build_requires=("numpy", "cmake>=3.27"),
    )


def test_a_tree_like_older_tritons(tmp_path: Path, write_files: Write) -> None:
    texts = {"python/setup.py": "def get_git_commit_hash(): ...", "python/requirements.txt": ""}
    write_files(tmp_path, {**texts, "cmake/llvm-hash.txt": "0123abcd\n"})
    (tmp_path / "build_env.json").write_text('{"TRITON_WHEEL_VERSION_SUFFIX": ""}')
    found = site.tree_facts(tmp_path)
    assert found.files == {"python/setup.py", "python/requirements.txt"}
    assert found.build_env == {"TRITON_WHEEL_VERSION_SUFFIX": ""}
    assert found.llvm_hash == "0123abcd"
    assert found.git_suffix == "", "it is no git repository"
    assert not found.reads_build_version
    with pytest.raises(MissingInputError, match="no source tree"):
        site.tree_facts(tmp_path / "absent")


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("pyproject.toml", "[build-system"),
        ("pyproject.toml", '[build-system]\nrequires = "numpy"'),
        ("pyproject.toml", "[build-system]\nrequires = [1]"),
        ("build_env.json", "{"),
        ("build_env.json", "[]"),
        ("build_env.json", '{"X": 1}'),
    ],
)
def test_broken_files_are_named(tmp_path: Path, name: str, text: str) -> None:
    (tmp_path / name).write_text(text)
    with pytest.raises(DataError, match=name):
        site.tree_facts(tmp_path)


@pytest.mark.processes
def test_what_tritons_setup_adds_to_the_version(tmp_path: Path, git: Git, commit_files: Commit) -> None:
    commit = commit_files(tmp_path, {"setup.py": "def get_git_commit_hash(): ..."})
    assert site.tree_facts(tmp_path).git_suffix == f"+git{commit[:8]}"
    git(tmp_path, "checkout", "--quiet", "--detach")
    assert site.tree_facts(tmp_path).git_suffix == f"+git{commit[:8]}"
    git(tmp_path, "checkout", "--quiet", "-B", "release-locked")
    assert site.tree_facts(tmp_path).git_suffix == ""
