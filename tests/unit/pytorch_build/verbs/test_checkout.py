from collections.abc import Callable
from pathlib import Path

import pytest

from core.errors import SourceError
from tests.kit.front_doors import FrontDoorResult
from tests.kit.repos import commit_files, run_git

pytestmark = pytest.mark.processes

Front = Callable[..., FrontDoorResult]

CPU = ("--torch-ref", "mine", "--gpu-family", "cpu")


def upstream_commit(tree: Path) -> str:
    """Return the commit of upstream's that a tree was checked out at."""
    return run_git(tree, "rev-parse", "THEROCK_UPSTREAM_DIFFBASE")


def test_checks_every_component_out(front: Front, refs: dict[str, str], tmp_path: Path) -> None:
    result = front("checkout", *CPU)

    assert result.exit_code == 0, result.report
    for name, commit in refs.items():
        assert upstream_commit(tmp_path / "src" / "mine" / name) == commit


@pytest.mark.usefixtures("refs")
def test_leaves_a_tree_of_the_same_commit(front: Front) -> None:
    front("checkout", *CPU)

    result = front("checkout", *CPU)

    assert result.exit_code == 0, result.report
    assert result.report.count("unchanged") == 2


@pytest.mark.usefixtures("refs")
def test_refuses_to_overwrite_edits_and_names_the_way_to_keep_them(front: Front, tmp_path: Path) -> None:
    front("checkout", *CPU)
    tree = tmp_path / "src" / "mine" / "audio"
    (tree / "setup.py").write_text("# an edit\n")

    result = front("checkout", *CPU, "--components", "audio")

    assert result.exit_code == SourceError.exit_code
    assert str(tree) in result.report
    assert "setup.py" in result.report
    assert "--stash" in result.report
    assert (tree / "setup.py").read_text() == "# an edit\n"


@pytest.mark.usefixtures("refs")
def test_keeps_edits_of_a_tree_in_a_stash_and_names_it(front: Front, tmp_path: Path) -> None:
    front("checkout", *CPU)
    tree = tmp_path / "src" / "mine" / "audio"
    (tree / "setup.py").write_text("# an edit\n")

    result = front("checkout", *CPU, "--components", "audio", "--stash")

    assert result.exit_code == 0, result.report
    (stash,) = run_git(tree, "stash", "list", "--format=%gs").splitlines()
    assert stash.partition(": ")[2] in result.report
    assert "an edit" in run_git(tree, "stash", "show", "--patch")


def test_checks_one_project_out_from_an_address(front: Front, refs: dict[str, str], tmp_path: Path) -> None:
    fork = tmp_path / "fork"
    run_git(tmp_path, "clone", "--quiet", tmp_path / "upstream" / "audio", fork)
    run_git(fork, "checkout", "--quiet", "-b", "topic")
    topic_commit = commit_files(fork, {"new.py": ""})

    result = front(
        "checkout",
        *CPU,
        *("--components", "audio"),
        *("--checkout-dir", tmp_path / "here"),
        *("--gitrepo-origin", fork),
        *("--repo-hashtag", "topic"),
        *("--no-submodules", "--no-hipify"),
    )

    assert result.exit_code == 0, result.report
    assert upstream_commit(tmp_path / "here") == topic_commit
    assert topic_commit != refs["audio"]
    # The run's lock is another matter.
    assert not (tmp_path / "out").exists()


@pytest.mark.usefixtures("refs")
@pytest.mark.parametrize(
    ("options", "exit_code", "name"),
    [
        pytest.param(("--components", "torch"), 2, "torch of mine", id="prebuilt project"),
        pytest.param(("--components", "audio", "--repo-hashtag", "gone"), 6, "'gone'", id="unknown branch"),
    ],
)
def test_names_what_cannot_be_checked_out(
    front: Front, options: tuple[str, ...], exit_code: int, name: str
) -> None:
    result = front("checkout", *CPU, *options)

    assert result.exit_code == exit_code
    assert name in result.report
