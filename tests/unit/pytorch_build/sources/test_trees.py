import os
import re
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from packaging.version import Version

from core.causes import Cause
from core.errors import BuildError, ProcessError, SourceError
from pytorch_build.build.build import BuildChoices
from pytorch_build.lock import versions
from pytorch_build.sdk import RocmOptions
from pytorch_build.sources import checkout as sources
from pytorch_build.sources import edits, trees
from pytorch_build.sources.git import Origins
from tests.conftest import Commit, Git, Write

pytestmark = pytest.mark.processes
CHOICES = BuildChoices(rocm=RocmOptions(), own_trees={}, mirrors={}, depth=0)


@pytest.fixture
def _no_sample(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(trees, "origins", lambda *_: Origins())


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
    tree = trees.managed_tree(run.context(), CHOICES, run.lock(), "torch")
    with tree.checked_out() as path:
        done.append(str(path == tree.path))
        assert (path.parent / ".torch.build.lock").exists()
    assert done == ["check out torch", "build in torch", "True", "built"]


@pytest.fixture
def own(tmp_path: Path, commit_files: Commit) -> tuple[Path, str]:
    tree = tmp_path / "mine"
    return tree, commit_files(tree, {"setup.py": "", "version.txt": "2.11.0a0\n", "a.cpp": ""})


def developers(run: Any, tree: Path, *, gpu_family: str = "gfx94X-dcgpu", **options: Any) -> Any:
    return trees.developers_tree(
        run.context(gpu_family, **options),
        tree,
        "torch",
        rocm_version="" if gpu_family == "cpu" else "7.1.0",
        lock=lambda: pytest.fail("the tree names a version"),
    )


def test_a_developers_tree_is_known_by_its_commit_and_edits(run: Any, own: tuple[Path, str]) -> None:
    tree, commit = own
    clean = developers(run, tree, gpu_family="cpu")
    assert clean.inputs == {"tree": str(tree), "commit": commit, "diff": "", "edited": 0, "hipify": False}
    # its version is its own, with the run's suffix
    assert clean.version == "2.11.0a0+cpu.sample"
    assert developers(run, tree).version == "2.11.0a0+rocm7.1.0"
    assert f"git{commit[:8]}" in developers(run, tree, gpu_family="cpu", release_type="dev").version
    (tree / "setup.py").write_text("# mine\n")
    edited = developers(run, tree)
    assert len(edited.inputs["diff"]) == 64
    assert edited.inputs["hipify"]
    # for installers it is newer than the tree without edits, and other edits are another version
    assert Version(edited.version) > Version("2.11.0a0+rocm7.1.0")
    assert re.fullmatch(r"2\.11\.0a0\+rocm7\.1\.0\.dirty\.[0-9a-f]{1,8}", edited.version)
    assert versions.without_edits(f"x {edited.version};") == "x 2.11.0a0+rocm7.1.0;"
    (tree / "new.py").write_text("")
    other = developers(run, tree)
    assert other.inputs["diff"] != edited.inputs["diff"]
    assert other.version != edited.version


def test_an_error_names_the_developers_file_and_not_its_copy(run: Any, own: tuple[Path, str]) -> None:
    (tree, _), problem = own, ProcessError("ninja ended with status 1.")

    def fail(path: Path) -> None:
        around = (f"c++ -I{path}/. {path}/a.cpp", f"{path}/a.cpp:1:2: error: x", f"{path}/build/gone.hip:1:")
        problem.cause = Cause(tool="compiler", message="error: x", around=around)
        raise BuildError("no wheel") from problem

    with pytest.raises(BuildError), developers(run, tree, gpu_family="cpu").checked_out() as path:
        fail(path)
    assert problem.cause
    # what a build made is nowhere else
    named = (f"c++ -I{tree} {tree}/a.cpp", f"{tree}/a.cpp:1:2: error: x", f"{path}/build/gone.hip:1:")
    assert problem.cause.around == named


def test_it_is_built_from_a_copy_of_its_own(run: Any, own: tuple[Path, str], commit_files: Commit) -> None:
    tree, _ = own
    (tree / "setup.py").write_text("# mine\n")
    with developers(run, tree, gpu_family="cpu").checked_out() as path:
        assert path != tree
        assert path.is_relative_to(run.root / "src" / ".own")
        assert (path / "setup.py").read_text() == "# mine\n"
        (path / "setup.py").write_text("# built\n")
    assert (tree / "setup.py").read_text() == "# mine\n"
    other = tree.parent / "other"
    commit_files(other, {"setup.py": "", "version.txt": "1\n"})
    assert developers(run, other).own.path != developers(run, tree).own.path


def test_a_tree_that_changes_under_its_build_is_refused(run: Any, own: tuple[Path, str]) -> None:
    made = developers(run, own[0])
    (own[0] / "setup.py").write_text("# changed meanwhile\n")
    with pytest.raises(SourceError, match="changed while its build began"), made.checked_out():
        pytest.fail("nothing is to be built")


@pytest.mark.parametrize("gpu_family", ["gfx94X-dcgpu", "cpu"])
def test_only_builds_for_gpus_are_hipified_and_only_in_the_copy(
    run: Any, own: tuple[Path, str], monkeypatch: pytest.MonkeyPatch, gpu_family: str
) -> None:
    hipified: list[Path] = []
    monkeypatch.setattr(edits, "can_hipify", lambda _path: True)
    monkeypatch.setattr(edits, "hipify", hipified.append)
    with developers(run, own[0], gpu_family=gpu_family).checked_out() as path:
        pass
    assert hipified == ([path] if gpu_family != "cpu" else [])


def test_a_base_version_is_the_trees_own(tmp_path: Path) -> None:
    assert trees.base_version_of(tmp_path, "apex") == ""
    (tmp_path / "version.txt").write_text("2.10.0a0\n")
    assert trees.base_version_of(tmp_path, "torch") == "2.10.0a0"
    (tmp_path / "version.txt").write_text("two\n")
    with pytest.raises(SourceError):
        trees.base_version_of(tmp_path, "torch")
    (tmp_path / "version.txt").unlink()
    (tmp_path / "python" / "triton").mkdir(parents=True)
    (tmp_path / "python" / "triton" / "__init__.py").write_text("__version__ = '3.6.0'\n")
    assert trees.base_version_of(tmp_path, "triton") == "3.6.0"


@pytest.fixture
def tree(tmp_path: Path, commit_files: Commit, git: Git) -> Path:
    commit_files(tmp_path / "sub", {"code.cpp": "one\n"})
    tree = tmp_path / "mine"
    commit_files(
        tree, {"setup.py": "", "pkg/a.py": "a = 1\n", "pkg/b.py": "b = 1\n", ".gitignore": "build/\n"}
    )
    (tree / "link").symlink_to("pkg/a.py")
    git(tree, "submodule", "--quiet", "add", "../sub", "third_party/sub")
    commit_files(tree, {})
    return tree


def snapshot(tree: Path, git: Git) -> dict[str, object]:
    """Everything in a tree that a build could have changed, git's own index included."""
    files = [path for path in sorted(tree.rglob("*")) if path.is_file() and not path.is_symlink()]
    state: dict[str, object] = {str(path): (path.stat().st_mtime_ns, path.read_bytes()) for path in files}
    env = ("-c", "core.fsmonitor=false")
    state["status"] = git(tree, *env, "--no-optional-locks", "status", "--ignored", "--porcelain")
    return state


def texts(work: Path) -> dict[str, str]:
    files = (
        path for path in work.rglob("*") if path.is_file() and ".git" not in path.relative_to(work).parts
    )
    return {path.relative_to(work).as_posix(): path.read_text() for path in files}


def test_a_copy_holds_what_the_tree_holds(tree: Path, tmp_path: Path, write_files: Write, git: Git) -> None:
    write_files(tree, {"pkg/new.py": "new\n", "build/object.o": "ignored\n"})
    work = tmp_path / "work"
    trees.mirror(tree, work)
    held = texts(work)
    assert held["pkg/new.py"] == "new\n"
    assert held["third_party/sub/code.cpp"] == "one\n"
    assert "build/object.o" not in held
    assert (work / "link").is_symlink()
    assert (work / "pkg/a.py").stat().st_mtime_ns == (tree / "pkg/a.py").stat().st_mtime_ns
    # git in the copy answers for the tree's commit
    assert git(tree, "rev-parse", "HEAD") == git(work, "rev-parse", "HEAD")


def test_the_tree_itself_is_never_changed(tree: Path, tmp_path: Path, write_files: Write, git: Git) -> None:
    write_files(tree, {"pkg/a.py": "mine\n", "pkg/new.py": "new\n", "build/object.o": "ignored\n"})
    # an index that git would want to refresh
    os.utime(tree / "pkg/b.py", (1, 1))
    before = snapshot(tree, git)
    trees.mirror(tree, tmp_path / "work")
    trees.mirror(tree, tmp_path / "work")
    assert snapshot(tree, git) == before


def test_only_changes_are_copied(tree: Path, tmp_path: Path, write_files: Write) -> None:
    work = tmp_path / "work"
    assert trees.mirror(tree, work) == len(texts(work))  # the link is a file of the tree, as .gitmodules is
    write_files(work, {"build/object.o": "built\n", "pkg/generated.py": "built\n"})
    built_from = (work / "pkg/a.py").stat().st_mtime_ns
    os.utime(tree / "pkg/a.py")
    trees.mirror(tree, work)
    assert (work / "pkg/a.py").stat().st_mtime_ns == built_from, "the same text keeps its time"
    assert trees.mirror(tree, work) == 0
    write_files(tree, {"pkg/a.py": "a = 2\n", "third_party/sub/code.cpp": "two\n"})
    (tree / "pkg/b.py").unlink()
    assert trees.mirror(tree, work) == 3
    held = texts(work)
    assert (held["pkg/a.py"], held["third_party/sub/code.cpp"]) == ("a = 2\n", "two\n")
    assert "pkg/b.py" not in held
    # what builds left stays
    assert (held["build/object.o"], held["pkg/generated.py"]) == ("built\n", "built\n")


def test_a_copy_that_was_damaged_is_repaired(
    tree: Path, tmp_path: Path, write_files: Write, commit_files: Commit, git: Git
) -> None:
    work = tmp_path / "work"
    trees.mirror(tree, work)
    (work / "pkg/a.py").unlink()
    assert trees.mirror(tree, work) == 1
    (work / ".git/pytorch-build-mirror.json").write_text("{")
    assert trees.mirror(tree, work) == len(texts(work))
    assert texts(work)["pkg/a.py"] == "a = 1\n"
    # files and folders may change places
    shutil.rmtree(tree / "pkg")
    write_files(tree, {"pkg": "now a file\n", "setup.cfg/x": "now a folder\n"})
    trees.mirror(tree, work)
    assert texts(work)["pkg"] == "now a file\n"
    (tree / "pkg").unlink()
    # and the copy follows the tree's commit
    commit = commit_files(tree, {"pkg/c.py": "c\n"})
    trees.mirror(tree, work)
    assert git(work, "rev-parse", "HEAD") == commit
    assert texts(work)["pkg/c.py"] == "c\n"
    assert git(work, "status", "--porcelain", "--ignore-submodules=all") == ""


def test_the_digest_is_that_of_the_edits(tree: Path, write_files: Write, commit_files: Commit) -> None:
    write_files(tree, {"build/object.o": "ignored\n"})
    os.utime(tree / "pkg/a.py", (1, 1))
    assert trees.edits_of(tree) == ("", 0)
    commit_files(tree / "third_party/sub", {"code.cpp": "committed\n"})
    seen, before = {trees.edits_of(tree)[0]}, trees.edits_of(tree)[1]
    for edit, differ in (
        ({"pkg/a.py": "mine\n"}, 1),
        ({"pkg/a.py": "mine\n", "new.txt": ""}, 2),
        ({"pkg/a.py": "mine\n", "new.txt": "diff --git a/x b/x\n"}, 2),
        ({"third_party/sub/code.cpp": "two\n"}, 3),
        ({"third_party/sub/new.cpp": ""}, 4),
    ):
        write_files(tree, edit)
        digest, edited = trees.edits_of(tree)
        assert edited == before + differ
        assert digest == trees.edits_of(tree)[0]
        assert len(digest) == 64
        seen.add(digest)
    assert len(seen) == 6


def test_what_has_no_commit_is_refused(tmp_path: Path, git: Git, write_files: Write) -> None:
    write_files(tmp_path / "plain", {"setup.py": ""})
    git(tmp_path / "plain", "init", "--quiet")
    with pytest.raises(SourceError, match="its commit cannot be read"):
        trees.mirror(tmp_path / "plain", tmp_path / "work")
    assert not (tmp_path / "work").exists()


def test_what_a_tree_lacks_is_found_in_the_tree_itself(tree: Path, tmp_path: Path, git: Git) -> None:
    def lacks(tree: Path, project: str = "torch", **env: str) -> list[Any]:
        return list(trees.lacks(tree, project, env))

    (tree / "version.txt").write_text("2.10.0a0\n")
    (tree / "torch").mkdir()
    assert lacks(tree) == lacks(tmp_path) == []
    git(tmp_path, "clone", "--quiet", tree, tmp_path / "clone")
    (tmp_path / "clone" / "setup.py").unlink()
    setup, package, version, (submodules, hint) = lacks(tmp_path / "clone")
    assert package[0] == f"{tmp_path}/clone holds no package torch, so it is no tree of torch."
    assert setup[0].startswith(f"{tmp_path}/clone has neither setup.py nor pyproject.toml")
    assert version[0].startswith(f"{tmp_path}/clone/version.txt cannot be read")
    assert submodules == f"Submodules of {tmp_path}/clone are not initialised: third_party/sub."
    assert hint == f"Run: git -C {tmp_path}/clone submodule update --init --recursive"
    # builds with the system's libraries need none, and other projects fetch theirs
    assert lacks(tmp_path / "clone", USE_SYSTEM_LIBS="1") == [setup, package, version]
    (tmp_path / "clone" / "src" / "torchaudio").mkdir(parents=True)
    (tmp_path / "clone" / "version.txt").write_text("2.10.0\n")
    assert lacks(tmp_path / "clone", "audio") == [setup]


def test_a_name_that_is_not_utf8_is_refused(tree: Path, tmp_path: Path) -> None:
    with open(os.fsencode(tree) + b"/\xff", "wb"):  # noqa: PTH123 - a name that a Path would not show
        pass
    with pytest.raises(SourceError, match="not UTF-8"):
        trees.mirror(tree, tmp_path / "work")


def test_an_edit_in_the_moment_of_the_index_is_seen(tmp_path: Path, git: Git, commit_files: Commit) -> None:
    tree = tmp_path / "tree"
    commit_files(tree, {"setup.py": "one\n"})
    # the clock's tick as the only witness: neither size nor time nor ctime tells
    git(tree, "config", "core.trustctime", "false")
    moment = (tree / "setup.py").stat().st_mtime_ns - 10**10
    os.utime(tree / "setup.py", ns=(moment, moment))
    git(tree, "update-index", "--refresh")
    (tree / "setup.py").write_text("two\n")
    os.utime(tree / "setup.py", ns=(moment, moment))
    os.utime(tree / ".git" / "index", ns=(moment, moment))
    assert trees.edits_of(tree)[0]
