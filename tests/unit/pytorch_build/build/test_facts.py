from pathlib import Path

import pytest

from core.errors import DataError, MissingInputError
from pytorch_build.build.facts import TreeFacts, read_tree_facts
from tests.kit.repos import commit_files, run_git, write_files

ADDS_COMMIT = "def get_git_commit_hash(): ..."


def test_reads_a_tree_like_torchs(tmp_path: Path) -> None:
    build_system = '[build-system]\nrequires = ["numpy", "cmake>=3.27"]\nbuild-backend = "a.b"\n'
    setup = 'version = os.getenv("PYTORCH_BUILD_VERSION")'
    write_files(tmp_path, {"pyproject.toml": build_system, "requirements.txt": "", "setup.py": setup})

    assert read_tree_facts(tmp_path) == TreeFacts(
        files=frozenset({"pyproject.toml", "requirements.txt", "setup.py"}),
        build_backend="a.b",
        build_requires=("numpy", "cmake>=3.27"),
    )


def test_reads_a_tree_like_older_tritons(tmp_path: Path) -> None:
    texts = {
        "python/setup.py": ADDS_COMMIT,
        "python/requirements.txt": "",
        "cmake/llvm-hash.txt": "0123abcd\n",
        "build_env.json": '{"TRITON_WHEEL_VERSION_SUFFIX": ""}',
    }
    write_files(tmp_path, texts)

    facts = read_tree_facts(tmp_path)

    assert facts == TreeFacts(
        files=frozenset({"python/setup.py", "python/requirements.txt"}),
        build_env={"TRITON_WHEEL_VERSION_SUFFIX": ""},
        llvm_hash="0123abcd",
        reads_build_version=False,
        # It is no git repository, so that there is no commit to add.
        git_suffix="",
    )


def test_rejects_a_tree_that_does_not_exist(tmp_path: Path) -> None:
    with pytest.raises(MissingInputError, match="absent"):
        read_tree_facts(tmp_path / "absent")


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
def test_names_a_broken_file(tmp_path: Path, name: str, text: str) -> None:
    (tmp_path / name).write_text(text)

    with pytest.raises(DataError, match=name):
        read_tree_facts(tmp_path)


@pytest.mark.processes
@pytest.mark.parametrize(
    ("checkout", "has_suffix"),
    [
        (["-B", "main"], True),
        (["--detach"], True),
        # triton's setup adds nothing on a release's branch.
        (["-B", "release-locked"], False),
    ],
    ids=["branch", "no branch", "release branch"],
)
def test_expects_the_commit_that_tritons_setup_adds(
    tmp_path: Path, checkout: list[str], *, has_suffix: bool
) -> None:
    commit = commit_files(tmp_path, {"setup.py": ADDS_COMMIT})
    run_git(tmp_path, "checkout", "--quiet", *checkout)

    expected = f"+git{commit[:8]}" if has_suffix else ""
    assert read_tree_facts(tmp_path).git_suffix == expected
