from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import pytest

from core.errors import SourceError
from pytorch_build.build.build import BuildChoices
from pytorch_build.sdk import RocmOptions
from pytorch_build.sources import checkout as sources
from pytorch_build.sources import edits, trees
from pytorch_build.sources.git import Origins
from pytorch_build.sources.trees import base_version_of, developers_tree, managed_tree

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping
    from pathlib import Path

    Commit = Callable[[Path, Mapping[str, str]], str]

CHOICES = BuildChoices(rocm=RocmOptions(), own_trees={}, mirrors={}, depth=0)


@pytest.fixture
def _no_sample(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(trees, "origins", lambda *_: Origins())


@pytest.mark.usefixtures("_no_sample")
def test_a_managed_tree_is_what_the_lock_says(run: Any) -> None:
    tree = managed_tree(run.context(), CHOICES, run.lock(), "torch")
    assert tree.path == run.root / "src" / "sample" / "torch"
    assert tree.version == "2.10.0a0+devrocm7.99.0.dev0.sample"
    assert tree.inputs == {"origin": "sample:torch", "commit": "2" * 40, "hipify": True}
    assert tree.options.depth == 0
    cpu = managed_tree(run.context("cpu"), CHOICES, run.lock(), "audio")
    assert cpu.version == "2.10.0a0+cpu.sample"
    forced = managed_tree(run.context(force=True), CHOICES, run.lock(), "torch")
    assert forced.options.force


@pytest.mark.usefixtures("_no_sample")
def test_a_managed_tree_is_checked_out_then_built_in(run: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    done: list[str] = []

    @contextmanager
    def building(path: Path) -> Iterator[None]:
        done.append(f"build in {path.name}")
        yield
        done.append("built")

    monkeypatch.setattr(sources, "checkout", lambda locked, *_: done.append(f"check out {locked.project}"))
    monkeypatch.setattr(sources, "building", building)
    tree = managed_tree(run.context(), CHOICES, run.lock(), "torch")
    with tree.checked_out() as path:
        done.append(str(path == tree.path))
        assert (path.parent / ".torch.build.lock").exists()
    assert done == ["check out torch", "build in torch", "True", "built"]


@pytest.fixture
def own(tmp_path: Path, commit_files: Commit) -> tuple[Path, str]:
    tree = tmp_path / "mine"
    return tree, commit_files(tree, {"setup.py": "", "version.txt": "2.11.0a0\n"})


def developers(run: Any, tree: Path, *, gpu_family: str = "gfx94X-dcgpu", **options: Any) -> Any:
    return developers_tree(
        run.context(gpu_family, **options),
        tree,
        "torch",
        rocm_version="" if gpu_family == "cpu" else "7.1.0",
        base_version=base_version_of(tree),
    )


@pytest.mark.processes
def test_a_developers_tree_is_known_by_its_commit_and_edits(run: Any, own: tuple[Path, str]) -> None:
    tree, commit = own
    clean = developers(run, tree, gpu_family="cpu")
    assert clean.inputs == {"tree": str(tree), "commit": commit, "diff": "", "hipify": False}
    (tree / "setup.py").write_text("# mine\n")
    edited = developers(run, tree)
    assert len(edited.inputs["diff"]) == 64
    assert edited.inputs["hipify"]
    (tree / "new.py").write_text("")
    assert developers(run, tree).inputs["diff"] != edited.inputs["diff"]


@pytest.mark.processes
def test_its_version_is_its_own_with_the_runs_suffix(run: Any, own: tuple[Path, str]) -> None:
    tree, commit = own
    assert developers(run, tree).version == "2.11.0a0+rocm7.1.0"
    assert developers(run, tree, gpu_family="cpu").version == "2.11.0a0+cpu.sample"
    dev = developers(run, tree, gpu_family="cpu", release_type="dev").version
    assert f"git{commit[:8]}" in dev


@pytest.mark.processes
def test_it_is_built_from_a_copy(run: Any, own: tuple[Path, str]) -> None:
    tree, _ = own
    (tree / "setup.py").write_text("# mine\n")
    with developers(run, tree, gpu_family="cpu").checked_out() as path:
        assert path != tree
        assert path.is_relative_to(run.root / "src" / ".own")
        assert (path / "setup.py").read_text() == "# mine\n"
        (path / "setup.py").write_text("# built\n")
    assert (tree / "setup.py").read_text() == "# mine\n"


@pytest.mark.processes
def test_two_trees_have_two_copies(run: Any, own: tuple[Path, str], commit_files: Commit) -> None:
    other = own[0].parent / "other"
    commit_files(other, {"setup.py": "", "version.txt": "1\n"})
    assert developers(run, other).own.path != developers(run, own[0]).own.path


@pytest.mark.processes
def test_a_tree_that_changes_under_its_build_is_refused(run: Any, own: tuple[Path, str]) -> None:
    made = developers(run, own[0])
    (own[0] / "setup.py").write_text("# changed meanwhile\n")
    with pytest.raises(SourceError, match="was changed while its build began"), made.checked_out():
        pytest.fail("nothing is to be built")


@pytest.mark.processes
@pytest.mark.parametrize("gpu_family", ["gfx94X-dcgpu", "cpu"])
def test_only_builds_for_gpus_are_hipified_and_only_in_the_copy(
    run: Any, own: tuple[Path, str], monkeypatch: pytest.MonkeyPatch, gpu_family: str
) -> None:
    hipified: list[Path] = []
    monkeypatch.setattr(edits, "can_hipify", lambda _path: True)
    monkeypatch.setattr(edits, "hipify", lambda path, _python: hipified.append(path))
    with developers(run, own[0], gpu_family=gpu_family).checked_out() as path:
        pass
    assert hipified == ([path] if gpu_family != "cpu" else [])


def test_a_base_version_is_the_trees_own(tmp_path: Path) -> None:
    assert base_version_of(tmp_path) == ""
    (tmp_path / "version.txt").write_text("2.10.0a0\n")
    assert base_version_of(tmp_path) == "2.10.0a0"
    (tmp_path / "version.txt").write_text("two\n")
    with pytest.raises(SourceError):
        base_version_of(tmp_path)


def test_a_tree_that_is_not_there_is_said_so_at_once(tmp_path: Path) -> None:
    with pytest.raises(SourceError, match="nowhere does not exist"):
        base_version_of(tmp_path / "nowhere")
