import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest
from packaging.version import Version

from core.causes import Cause
from core.errors import BuildError, ProcessError, SourceError
from core.packages.options import SourceOptions
from pytorch_build.lock import versions
from pytorch_build.lock.source_lock import LockedProject
from pytorch_build.sdk import RocmOptions
from pytorch_build.sources import checkout, hipify, trees
from pytorch_build.sources.git import Origins
from pytorch_build.sources.trees import DevelopersTree
from tests.kit.builds import LocalRun, request_build
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

    monkeypatch.setattr(trees, "prepare_origins", lambda *_arguments: Origins())
    monkeypatch.setattr(checkout, "checkout", check_out)
    monkeypatch.setattr(checkout, "prepared_for_build", build_in)
    run.put_lock()
    tree = trees.managed_tree(request_build(run, "torch"))

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
    context = run.context(gpu_family, release_type=release_type)
    request = request_build(run, "torch", context=context)
    rocm = RocmOptions(source=SourceOptions(prefix="--rocm-", version="7.1.0"))
    return trees.developers_tree(replace(request, rocm=rocm), tree)


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
    assert versions.without_edit_marks(f"x {version};") == "x 2.11.0a0+rocm7.1.0;"


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

    assert take_tree(run, other_tree).path != take_tree(run, own_tree).path


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
    commit_files(own_tree, {hipify.SCRIPT: script})
    result = Path(hipify.SCRIPT).with_name("hipified")

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
        ("apex", {}, None),
        ("torch", {"version.txt": "2.10.0a0\n"}, "2.10.0a0"),
        ("apex", {"version.txt": "1.10.0\n"}, "1.10.0"),
        ("triton", {"python/triton/__init__.py": "__version__ = '3.6.0'\n"}, "3.6.0"),
    ],
)
def test_reads_the_version_that_a_tree_names(
    tmp_path: Path, project: str, texts: dict[str, str], version: str | None
) -> None:
    write_files(tmp_path, texts)

    assert trees.base_version_of(tmp_path, project) == version


def test_rejects_a_tree_that_names_no_version(tmp_path: Path) -> None:
    write_files(tmp_path, {"version.txt": "two\n"})

    with pytest.raises(SourceError, match=r"version\.txt"):
        trees.base_version_of(tmp_path, "torch")


# What a developer's tree lacks


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """Return a tree with a submodule that has one as well."""
    tree = tmp_path / "mine"
    sub = tmp_path / "sub"
    commit_files(tmp_path / "inner", {"inner.h": ""})
    commit_files(sub, {"code.cpp": "one\n"})
    run_git(sub, "submodule", "--quiet", "add", "../inner", "inner")
    commit_files(sub, {})
    commit_files(tree, {"setup.py": ""})
    run_git(tree, "submodule", "--quiet", "add", "../sub", "third_party/sub")
    run_git(tree, "submodule", "--quiet", "update", "--init", "--recursive")
    commit_files(tree, {})
    return tree


@pytest.fixture
def incomplete_tree(tree: Path) -> Path:
    """Return a clone of a tree that lacks its setup, its package, its version and its submodules."""
    run_git(tree.parent, "clone", "--quiet", tree, "clone")
    clone = tree.parent / "clone"
    (clone / "setup.py").unlink()
    return clone


def problems_of(
    tree: Path,
    project: str = "torch",
    env: dict[str, str] | None = None,
) -> list[str]:
    """Return what a developer's tree lacks for a build."""
    problems = trees.find_tree_problems(tree, project, env or {})
    return [problem.message for problem in problems]


def test_finds_nothing_that_a_complete_tree_lacks(tree: Path) -> None:
    write_files(tree, {"version.txt": "2.10.0a0\n", "torch/__init__.py": ""})

    assert problems_of(tree) == []


def test_finds_everything_that_a_tree_lacks(incomplete_tree: Path) -> None:
    setup, package, version, submodules = problems_of(incomplete_tree)

    assert setup.startswith(f"{incomplete_tree} has neither setup.py")
    assert "package torch" in package
    assert f"{incomplete_tree}/version.txt" in version
    assert "third_party/sub" in submodules


def test_finds_a_nested_submodule_that_is_missing(tree: Path) -> None:
    write_files(tree, {"version.txt": "2.10.0a0\n", "torch/__init__.py": ""})
    (tree / "third_party/sub/inner/inner.h").unlink()
    (tree / "third_party/sub/inner/.git").unlink()

    (problem,) = problems_of(tree)

    assert "third_party/sub/inner" in problem


def test_finds_missing_submodules_of_a_torch_that_names_none(tmp_path: Path) -> None:
    # As distributions pack it: without .gitmodules, and setup.py requires submodules all the same.
    setup = "def get_submodule_folders():\n    pass\n"
    tree = tmp_path / "packed"
    commit_files(tree, {"setup.py": setup, "version.txt": "2.6.0\n", "torch/__init__.py": ""})

    (problem,) = problems_of(tree)

    assert str(tree) in problem
    assert "third_party/cutlass" in problem


def test_names_the_command_that_fetches_missing_submodules(incomplete_tree: Path) -> None:
    hints = [problem.hint for problem in trees.find_tree_problems(incomplete_tree, "torch", {})]

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
