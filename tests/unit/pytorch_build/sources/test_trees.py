import os
import re
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from packaging.version import Version

from core.causes import Cause
from core.errors import BuildError, ProcessError, SourceError
from pytorch_build.build.request import BuildOptions
from pytorch_build.lock import versions
from pytorch_build.lock.source_lock import LockedProject
from pytorch_build.sdk import RocmOptions
from pytorch_build.sources import checkout, edits, trees
from pytorch_build.sources.git import Origins
from pytorch_build.sources.trees import DevelopersTree
from tests.kit.builds import LocalRun
from tests.kit.repos import commit_files, run_git, write_files

pytestmark = pytest.mark.processes


# Managed trees


def test_checks_a_managed_tree_out_and_then_builds_in_it(
    run: LocalRun, monkeypatch: pytest.MonkeyPatch
) -> None:
    steps: list[str] = []

    @contextmanager
    def build_in(path: Path) -> Iterator[None]:
        assert (path.parent / ".torch.build.lock").exists()
        steps.append("build begins")
        yield
        steps.append("build ends")

    def check_out(locked: LockedProject, *_arguments: object) -> None:
        steps.append(f"checkout of {locked.project}")

    monkeypatch.setattr(trees, "origins", lambda *_arguments: Origins())
    monkeypatch.setattr(checkout, "checkout", check_out)
    monkeypatch.setattr(checkout, "building", build_in)
    options = BuildOptions(rocm=RocmOptions(), own_trees={}, mirrors={}, depth=0)
    tree = trees.managed_tree(run.context(), options, run.lock(), "torch")

    with tree.checked_out() as path:
        steps.append("build")

    assert path == tree.path
    assert steps == ["checkout of torch", "build begins", "build", "build ends"]


# Developers' trees


@pytest.fixture
def own_tree(tmp_path: Path) -> Path:
    """Return a torch that a developer works on."""
    tree = tmp_path / "mine"
    commit_files(tree, {"setup.py": "", "version.txt": "2.11.0a0\n", "a.cpp": ""})
    return tree


def take_tree(
    run: LocalRun, tree: Path, *, gpu_family: str = "gfx94X-dcgpu", release_type: str = "ci"
) -> DevelopersTree:
    """Return a developer's tree of torch, which names a version, so that no lock is asked for."""
    return trees.developers_tree(
        run.context(gpu_family, release_type=release_type),
        tree,
        "torch",
        rocm_version="" if gpu_family == "cpu" else "7.1.0",
        lock=lambda: pytest.fail("the tree names a version"),
    )


def test_knows_a_developers_tree_without_edits_by_its_commit(run: LocalRun, own_tree: Path) -> None:
    tree = take_tree(run, own_tree, gpu_family="cpu")

    assert tree.inputs == {
        "tree": str(own_tree),
        "commit": run_git(own_tree, "rev-parse", "HEAD"),
        "diff": "",
        "edited": 0,
        "hipify": False,
    }


@pytest.mark.parametrize(
    ("gpu_family", "version"), [("cpu", "2.11.0a0+cpu.sample"), ("gfx94X-dcgpu", "2.11.0a0+rocm7.1.0")]
)
def test_gives_a_developers_tree_its_own_version_with_the_runs_suffix(
    run: LocalRun, own_tree: Path, gpu_family: str, version: str
) -> None:
    assert take_tree(run, own_tree, gpu_family=gpu_family).version == version


def test_adds_the_commit_of_a_developers_tree_to_its_version(run: LocalRun, own_tree: Path) -> None:
    commit = run_git(own_tree, "rev-parse", "HEAD")

    assert f"git{commit[:8]}" in take_tree(run, own_tree, release_type="dev").version


def test_knows_a_developers_edits_by_their_digest(run: LocalRun, own_tree: Path) -> None:
    write_files(own_tree, {"setup.py": "# mine\n"})

    inputs = take_tree(run, own_tree).inputs

    assert re.fullmatch("[0-9a-f]{64}", inputs["diff"])
    assert inputs["edited"] == 1
    assert inputs["hipify"]


def test_gives_edits_a_newer_version_of_their_own(run: LocalRun, own_tree: Path) -> None:
    write_files(own_tree, {"setup.py": "# mine\n"})

    version = take_tree(run, own_tree).version

    assert Version(version) > Version("2.11.0a0+rocm7.1.0")
    assert re.fullmatch(r"2\.11\.0a0\+rocm7\.1\.0\.dirty\.[0-9a-f]{1,8}", version)
    assert versions.without_edits(f"x {version};") == "x 2.11.0a0+rocm7.1.0;"


def test_gives_other_edits_another_version(run: LocalRun, own_tree: Path) -> None:
    write_files(own_tree, {"setup.py": "# mine\n"})
    first_tree = take_tree(run, own_tree)
    write_files(own_tree, {"new.py": ""})

    second_tree = take_tree(run, own_tree)

    assert second_tree.inputs["diff"] != first_tree.inputs["diff"]
    assert second_tree.version != first_tree.version


def test_builds_a_developers_tree_in_a_copy(run: LocalRun, own_tree: Path) -> None:
    write_files(own_tree, {"setup.py": "# mine\n"})

    with take_tree(run, own_tree, gpu_family="cpu").checked_out() as path:
        assert path.is_relative_to(run.root / "src" / ".own")
        assert (path / "setup.py").read_text() == "# mine\n"
        (path / "setup.py").write_text("# built\n")

    assert (own_tree / "setup.py").read_text() == "# mine\n"


def test_builds_each_developers_tree_in_a_copy_of_its_own(run: LocalRun, own_tree: Path) -> None:
    other_tree = own_tree.parent / "other"
    commit_files(other_tree, {"setup.py": "", "version.txt": "1\n"})

    assert take_tree(run, other_tree).own.path != take_tree(run, own_tree).own.path


def test_rejects_a_tree_that_changes_while_its_build_begins(run: LocalRun, own_tree: Path) -> None:
    tree = take_tree(run, own_tree)
    write_files(own_tree, {"setup.py": "# changed meanwhile\n"})

    with pytest.raises(SourceError, match=str(own_tree)), tree.checked_out():
        pytest.fail("nothing is to be built")


@pytest.mark.parametrize(("gpu_family", "is_hipified"), [("gfx94X-dcgpu", True), ("cpu", False)])
def test_hipifies_a_copy_for_gpus_alone(
    run: LocalRun, own_tree: Path, gpu_family: str, *, is_hipified: bool
) -> None:
    # The script of upstream's trees, which writes where it lies.
    script = "import pathlib\npathlib.Path(__file__).with_name('hipified').touch()\n"
    commit_files(own_tree, {edits.SCRIPT: script})
    result = Path(edits.SCRIPT).with_name("hipified")

    with take_tree(run, own_tree, gpu_family=gpu_family).checked_out() as path:
        assert (path / result).exists() is is_hipified

    assert not (own_tree / result).exists()


def fail_in(path: Path) -> None:
    """Fail as a compiler in a folder does, with its files and one that the build made in the cause."""
    lines = (f"c++ -I{path}/. {path}/a.cpp", f"{path}/a.cpp:1:2: error: x", f"{path}/build/gone.hip:1:")
    problem = ProcessError("ninja ended with status 1.")
    problem.cause = Cause(tool="compiler", message="error: x", around=lines)
    raise BuildError("no wheel") from problem


def test_names_a_developers_file_and_not_its_copy_in_an_error(run: LocalRun, own_tree: Path) -> None:
    with (
        pytest.raises(BuildError) as caught,
        take_tree(run, own_tree, gpu_family="cpu").checked_out() as path,
    ):
        fail_in(path)

    problem = caught.value.__cause__
    assert isinstance(problem, ProcessError)
    assert problem.cause is not None
    assert problem.cause.around == (
        f"c++ -I{own_tree} {own_tree}/a.cpp",
        f"{own_tree}/a.cpp:1:2: error: x",
        # What a build made is nowhere else.
        f"{path}/build/gone.hip:1:",
    )


# The version that a tree names


@pytest.mark.parametrize(
    ("project", "texts", "version"),
    [
        ("apex", {}, ""),
        ("torch", {"version.txt": "2.10.0a0\n"}, "2.10.0a0"),
        ("apex", {"version.txt": "1.10.0\n"}, "1.10.0"),
        ("triton", {"python/triton/__init__.py": "__version__ = '3.6.0'\n"}, "3.6.0"),
    ],
)
def test_reads_the_version_that_a_tree_names(
    tmp_path: Path, project: str, texts: dict[str, str], version: str
) -> None:
    write_files(tmp_path, texts)

    assert trees.base_version_of(tmp_path, project) == version


def test_rejects_a_tree_that_names_no_version(tmp_path: Path) -> None:
    write_files(tmp_path, {"version.txt": "two\n"})

    with pytest.raises(SourceError, match=r"version\.txt"):
        trees.base_version_of(tmp_path, "torch")


# Copies of a developer's tree


@pytest.fixture(scope="module")
def repositories(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with a tree ``mine``, which has a link and a submodule, for tests to copy."""
    folder = tmp_path_factory.mktemp("repositories")
    commit_files(folder / "sub", {"code.cpp": "one\n"})
    tree = folder / "mine"
    texts = {"setup.py": "", "pkg/a.py": "a = 1\n", "pkg/b.py": "b = 1\n", ".gitignore": "build/\n"}
    commit_files(tree, texts)
    (tree / "link").symlink_to("pkg/a.py")
    run_git(tree, "submodule", "--quiet", "add", "../sub", "third_party/sub")
    commit_files(tree, {})
    return folder


@pytest.fixture
def tree(repositories: Path, tmp_path: Path) -> Path:
    """Return a tree of this test's own."""
    shutil.copytree(repositories, tmp_path, symlinks=True, dirs_exist_ok=True)
    run_git(tmp_path / "mine", "status")  # git notes the times of the copied files
    return tmp_path / "mine"


@pytest.fixture
def copy(tmp_path: Path) -> Path:
    """Return where the copy of the tree is to lie."""
    return tmp_path / "work"


def read_texts(copy: Path) -> dict[str, str]:
    """Return the files of a copy without git's: path to text."""
    texts: dict[str, str] = {}
    for path in copy.rglob("*"):
        relative_path = path.relative_to(copy)
        if path.is_file() and ".git" not in relative_path.parts:
            texts[relative_path.as_posix()] = path.read_text()
    return texts


def test_copies_what_git_does_not_ignore_with_its_times(tree: Path, copy: Path) -> None:
    write_files(tree, {"pkg/new.py": "new\n", "build/object.o": "ignored\n"})

    trees.mirror(tree, copy)

    texts = read_texts(copy)
    assert texts["pkg/new.py"] == "new\n"
    assert texts["third_party/sub/code.cpp"] == "one\n"
    assert "build/object.o" not in texts
    assert (copy / "link").is_symlink()
    assert (copy / "pkg/a.py").stat().st_mtime_ns == (tree / "pkg/a.py").stat().st_mtime_ns


def test_a_copy_has_the_commit_of_its_tree(tree: Path, copy: Path) -> None:
    trees.mirror(tree, copy)
    assert run_git(copy, "rev-parse", "HEAD") == run_git(tree, "rev-parse", "HEAD")

    commit = commit_files(tree, {"pkg/c.py": "c\n"})
    trees.mirror(tree, copy)

    assert run_git(copy, "rev-parse", "HEAD") == commit
    assert read_texts(copy)["pkg/c.py"] == "c\n"
    assert run_git(copy, "status", "--porcelain", "--ignore-submodules=all") == ""


def describe_files(tree: Path) -> dict[str, tuple[int, bytes]]:
    """Return the time and content of everything in a tree, git's own files included."""
    files = [path for path in tree.rglob("*") if path.is_file() and not path.is_symlink()]
    return {str(path): (path.stat().st_mtime_ns, path.read_bytes()) for path in files}


def test_changes_nothing_in_the_tree_itself(tree: Path, copy: Path) -> None:
    write_files(tree, {"pkg/a.py": "mine\n", "pkg/new.py": "new\n", "build/object.o": "ignored\n"})
    # An index that git would want to refresh.
    os.utime(tree / "pkg/b.py", (1, 1))
    files_before = describe_files(tree)

    trees.mirror(tree, copy)
    trees.mirror(tree, copy)

    assert describe_files(tree) == files_before


def test_copies_every_file_the_first_time_and_none_the_second_time(tree: Path, copy: Path) -> None:
    # The link is a file of the tree, as .gitmodules is.
    assert trees.mirror(tree, copy) == len(read_texts(copy))
    assert trees.mirror(tree, copy) == 0


def test_keeps_the_time_of_a_file_whose_text_has_not_changed(tree: Path, copy: Path) -> None:
    trees.mirror(tree, copy)
    modified_before = (copy / "pkg/a.py").stat().st_mtime_ns
    os.utime(tree / "pkg/a.py")

    trees.mirror(tree, copy)

    # Nothing is compiled again for it.
    assert (copy / "pkg/a.py").stat().st_mtime_ns == modified_before


def test_copies_changes_and_removes_what_was_removed(tree: Path, copy: Path) -> None:
    trees.mirror(tree, copy)
    write_files(tree, {"pkg/a.py": "a = 2\n", "third_party/sub/code.cpp": "two\n"})
    (tree / "pkg/b.py").unlink()

    assert trees.mirror(tree, copy) == 3

    texts = read_texts(copy)
    assert texts["pkg/a.py"] == "a = 2\n"
    assert texts["third_party/sub/code.cpp"] == "two\n"
    assert "pkg/b.py" not in texts


def test_keeps_what_builds_left_in_the_copy(tree: Path, copy: Path) -> None:
    trees.mirror(tree, copy)
    built_texts = {"build/object.o": "built\n", "pkg/generated.py": "built\n"}
    write_files(copy, built_texts)
    write_files(tree, {"pkg/a.py": "a = 2\n"})

    trees.mirror(tree, copy)

    assert read_texts(copy).items() >= built_texts.items()


def test_lets_files_and_folders_change_places(tree: Path, copy: Path) -> None:
    trees.mirror(tree, copy)
    shutil.rmtree(tree / "pkg")
    (tree / "setup.py").unlink()
    write_files(tree, {"pkg": "now a file\n", "setup.py/x": "now a folder\n"})

    trees.mirror(tree, copy)

    texts = read_texts(copy)
    assert texts["pkg"] == "now a file\n"
    assert texts["setup.py/x"] == "now a folder\n"


def test_restores_a_file_that_the_copy_has_lost(tree: Path, copy: Path) -> None:
    trees.mirror(tree, copy)
    (copy / "pkg/a.py").unlink()

    assert trees.mirror(tree, copy) == 1
    assert read_texts(copy)["pkg/a.py"] == "a = 1\n"


def test_recreates_a_copy_whose_record_is_damaged(tree: Path, copy: Path) -> None:
    file_count = trees.mirror(tree, copy)
    (record,) = (copy / ".git").glob("*.json")
    record.write_text("{")

    assert trees.mirror(tree, copy) == file_count
    assert read_texts(copy)["pkg/a.py"] == "a = 1\n"


def test_copies_no_tree_without_a_commit(tmp_path: Path) -> None:
    tree = tmp_path / "plain"
    write_files(tree, {"setup.py": ""})
    run_git(tree, "init", "--quiet")

    with pytest.raises(SourceError, match=str(tree)):
        trees.mirror(tree, tmp_path / "work")

    assert not (tmp_path / "work").exists()


def test_rejects_a_name_that_is_not_utf8(tree: Path, copy: Path) -> None:
    with open(os.fsencode(tree) + b"/\xff", "wb"):  # noqa: PTH123 - a name that a Path would not show
        pass

    with pytest.raises(SourceError, match="UTF-8"):
        trees.mirror(tree, copy)


# The digest of a developer's edits


def test_counts_no_edits_in_an_unedited_tree(tree: Path) -> None:
    write_files(tree, {"build/object.o": "ignored\n"})
    os.utime(tree / "pkg/a.py", (1, 1))

    assert trees.edits_of(tree) == ("", 0)


@pytest.mark.parametrize(
    ("texts", "count"),
    [
        pytest.param({"pkg/a.py": "mine\n"}, 1, id="file"),
        pytest.param({"pkg/a.py": "mine\n", "new.txt": ""}, 2, id="file and new file"),
        # It counts as one file, though it reads as a diff.
        pytest.param({"new.txt": "diff --git a/x b/x\n"}, 1, id="new file like a diff"),
        pytest.param({"third_party/sub/code.cpp": "two\n"}, 1, id="file of a submodule"),
        pytest.param({"third_party/sub/new.cpp": ""}, 1, id="new file of a submodule"),
    ],
)
def test_counts_edited_files(tree: Path, texts: dict[str, str], count: int) -> None:
    write_files(tree, texts)

    digest, edited = trees.edits_of(tree)

    assert edited == count
    assert len(digest) == 64
    assert trees.edits_of(tree)[0] == digest


def test_gives_each_set_of_edits_a_digest_of_its_own(tree: Path) -> None:
    commit_files(tree / "third_party/sub", {"code.cpp": "committed\n"})
    digests = {trees.edits_of(tree)[0]}

    for texts in (
        {"pkg/a.py": "mine\n"},
        {"new.txt": ""},
        {"new.txt": "diff --git a/x b/x\n"},
        {"third_party/sub/code.cpp": "two\n"},
        {"third_party/sub/new.cpp": ""},
    ):
        write_files(tree, texts)
        digests.add(trees.edits_of(tree)[0])

    assert len(digests) == 6


def test_sees_an_edit_in_the_moment_of_the_index(tmp_path: Path) -> None:
    tree = tmp_path / "tree"
    commit_files(tree, {"setup.py": "one\n"})
    # The clock's tick is the only witness: neither size nor times tell.
    run_git(tree, "config", "core.trustctime", "false")
    moment = (tree / "setup.py").stat().st_mtime_ns - 10**10
    os.utime(tree / "setup.py", ns=(moment, moment))
    run_git(tree, "update-index", "--refresh")
    (tree / "setup.py").write_text("two\n")
    os.utime(tree / "setup.py", ns=(moment, moment))
    os.utime(tree / ".git" / "index", ns=(moment, moment))

    assert trees.edits_of(tree)[0] != ""


# What a developer's tree lacks


@pytest.fixture
def incomplete_tree(tree: Path) -> Path:
    """Return a clone of a tree that lacks its setup, its package, its version and its submodules."""
    run_git(tree.parent, "clone", "--quiet", tree, "clone")
    clone = tree.parent / "clone"
    (clone / "setup.py").unlink()
    return clone


def problems_of(tree: Path, project: str = "torch", env: dict[str, str] | None = None) -> list[str]:
    """Return what a developer's tree lacks for a build."""
    return [message for message, _hint in trees.lacks(tree, project, env or {})]


def test_finds_nothing_that_a_complete_tree_lacks(tree: Path) -> None:
    write_files(tree, {"version.txt": "2.10.0a0\n", "torch/__init__.py": ""})

    assert problems_of(tree) == []


def test_finds_everything_that_a_tree_lacks(incomplete_tree: Path) -> None:
    setup, package, version, submodules = problems_of(incomplete_tree)

    assert setup.startswith(f"{incomplete_tree} has neither setup.py")
    assert "package torch" in package
    assert f"{incomplete_tree}/version.txt" in version
    assert "third_party/sub" in submodules


def test_names_the_command_that_fetches_missing_submodules(incomplete_tree: Path) -> None:
    hints = [hint for _message, hint in trees.lacks(incomplete_tree, "torch", {})]

    assert f"git -C {incomplete_tree} submodule update --init --recursive" in hints[-1]


def test_needs_no_submodules_for_a_build_with_the_systems_libraries(incomplete_tree: Path) -> None:
    problems = problems_of(incomplete_tree, env={"USE_SYSTEM_LIBS": "1"})

    assert problems == problems_of(incomplete_tree)[:-1]


def test_needs_no_submodules_for_projects_that_fetch_them(incomplete_tree: Path) -> None:
    write_files(incomplete_tree, {"src/torchaudio/__init__.py": "", "version.txt": "2.10.0\n"})

    (problem,) = problems_of(incomplete_tree, "audio")

    assert "setup.py" in problem


@pytest.mark.parametrize("folder", [".", "absent"], ids=["not in git", "absent"])
def test_leaves_a_folder_that_is_no_repository_to_others(tmp_path: Path, folder: str) -> None:
    assert problems_of(tmp_path / folder) == []
