from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from core import process
from core.errors import DataError, MissingInputError
from pytorch_build.build import site
from pytorch_build.build.site import TreeFacts

if TYPE_CHECKING:
    from pathlib import Path


def write(path: Path, text: str = "") -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8")
    return path


def test_a_tree_like_torchs(tmp_path: Path) -> None:
    build_system = '[build-system]\nrequires = ["numpy", "cmake>=3.27"]\nbuild-backend = "a.b"\n'
    write(tmp_path / "pyproject.toml", build_system)
    write(tmp_path / "requirements.txt")
    write(tmp_path / "setup.py", 'version = os.getenv("PYTORCH_BUILD_VERSION")')
    assert site.tree_facts(tmp_path) == TreeFacts(
        files=frozenset({"pyproject.toml", "requirements.txt", "setup.py"}),
        build_backend="a.b",
        build_requires=("numpy", "cmake>=3.27"),
    )


def test_a_tree_like_older_tritons(tmp_path: Path) -> None:
    write(tmp_path / "python" / "setup.py", "def get_git_commit_hash(): ...")
    write(tmp_path / "python" / "requirements.txt")
    write(tmp_path / "cmake" / "llvm-hash.txt", "0123abcd\n")
    write(tmp_path / "build_env.json", '{"TRITON_WHEEL_VERSION_SUFFIX": ""}')
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
    write(tmp_path / name, text)
    with pytest.raises(DataError, match=name):
        site.tree_facts(tmp_path)


@pytest.mark.processes
def test_what_tritons_setup_adds_to_the_version(tmp_path: Path) -> None:
    def git(*arguments: str) -> str:
        who = ["-c", "user.name=a", "-c", "user.email=a@b"]
        return process.capture(["git", *who, *arguments], cwd=tmp_path).stdout.strip()

    write(tmp_path / "setup.py", "def get_git_commit_hash(): ...")
    git("init", "--quiet", "--initial-branch=main")
    git("add", ".")
    git("commit", "--quiet", "--no-gpg-sign", "-m", "start")
    expected = "+git" + git("rev-parse", "HEAD")[:8]
    assert site.tree_facts(tmp_path).git_suffix == expected
    git("checkout", "--quiet", "--detach")
    assert site.tree_facts(tmp_path).git_suffix == expected
    git("checkout", "--quiet", "-B", "release-locked")
    assert site.tree_facts(tmp_path).git_suffix == ""
