import os
import sys
import venv
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from core import process
from core.env import Interpreter, interpreter
from core.env.installer import InstallerCall
from core.errors import BuildError, ProcessError, WheelError
from pytorch_build.build import execution
from pytorch_build.build.plan import BuildPlan
from pytorch_build.check import Expectation
from pytorch_build.components.steps import Command, Overlay
from tests.kit.builds import LocalRun
from tests.kit.machines import Answer, Call, VirtualEnvironment, answer_processes
from tests.kit.platforms import LINUX
from tests.kit.repos import commit_files
from tests.kit.windows import make_link

VERSION = "2.10.0a0+cpu.sample"
WHEEL = f"torch-{VERSION}-cp312-cp312-linux_x86_64.whl"
EXPECTATION = Expectation(distribution="torch", version=VERSION)
FIRST_CONFIGURATION = "a" * 64
SECOND_CONFIGURATION = "b" * 64

# Commands for a shell.
MAKE_WHEEL = f"mkdir -p dist; touch dist/{WHEEL}"
COMPILE = "mkdir -p build; printf x >> build/objects"


def plan_commands(
    tree: Path,
    *scripts: str,
    folder: str = ".",
    configuration: str = FIRST_CONFIGURATION,
    removes: tuple[str, ...] = ("dist",),
    overlays: tuple[Overlay, ...] = (),
    notes: tuple[str, ...] = (),
) -> BuildPlan:
    """Return a plan whose commands are a shell's, in a folder of the tree."""
    commands = [Command(argv=("/bin/sh", "-c", script), cwd=tree / folder) for script in scripts]
    return BuildPlan(
        project="torch",
        distribution="torch",
        version=VERSION,
        env={"ADDED": "1"},
        unset=frozenset({"GONE"}),
        removes=removes,
        commands=tuple(commands),
        overlays=overlays,
        notes=notes,
        configuration=configuration,
    )


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """Return a source tree in git that ignores what builds leave."""
    path = tmp_path / "src" / "torch"
    commit_files(path, {"setup.py": "", "kept.py": "kept = 1\n", ".gitignore": "build/\ndist/\n*.so\n"})
    return path


class Cache:
    """A compiler cache that sees the environment of the plan's commands."""

    def environment(self, env: Mapping[str, str]) -> dict[str, str]:
        """Return the environment with a variable of the cache's own."""
        return {**env, "SEEN": env["ADDED"]}


def execute(
    plan: BuildPlan, tree: Path, *, cache: Any = None, variables: Mapping[str, str] | None = None
) -> Path:
    """Execute a plan in a tree, with variables of the user's; return the wheel."""
    base_env = {"PATH": process.inherited()["PATH"], **(variables or {})}
    return execution.execute(plan, tree, LINUX, base_env=base_env, log=log_of(tree), cache=cache)


def log_of(tree: Path) -> Path:
    """Return the log of a tree's builds."""
    return tree.parent / "build.log"


# Commands


@pytest.mark.processes
def test_runs_commands_in_order_and_returns_the_wheel(tree: Path) -> None:
    plan = plan_commands(tree, "mkdir dist; echo first", f"cd dist && touch {WHEEL}; echo second")

    assert execute(plan, tree) == tree / "dist" / WHEEL

    lines = log_of(tree).read_text().splitlines()
    assert lines.index("first") < lines.index("second")


@pytest.mark.processes
def test_gives_commands_the_plans_variables_and_no_rights_of_the_job(tree: Path) -> None:
    show_names = "env | sed 's/=.*//' | sort | paste -sd ' '"
    rights = dict.fromkeys(("ACTIONS_RUNTIME_TOKEN", "GITHUB_ENV", "USE_TOKEN", "LD_PRELOAD"), "")
    variables = {"GONE": "1", "USE_KEPT": "1", **rights}

    execute(plan_commands(tree, show_names, MAKE_WHEEL), tree, cache=Cache(), variables=variables)

    # PWD is the shell's own, and SUPERVISED_BY marks what the command starts.
    assert "ADDED PATH PWD SEEN SUPERVISED_BY USE_KEPT\n" in log_of(tree).read_text()


@pytest.mark.processes
def test_prints_the_plans_notes(tree: Path, capsys: pytest.CaptureFixture[str]) -> None:
    execute(plan_commands(tree, MAKE_WHEEL, notes=("Flash attention is off.",)), tree)

    assert "Flash attention is off." in capsys.readouterr().err


@pytest.mark.processes
def test_removes_what_an_earlier_build_left(tree: Path) -> None:
    (tree / "dist").mkdir()
    (tree / "dist" / WHEEL.replace("2.10", "2.9")).touch()
    make_link(tree / "dist" / "link", tree / "kept.py")

    execute(plan_commands(tree, MAKE_WHEEL), tree)

    assert [path.name for path in (tree / "dist").iterdir()] == [WHEEL]
    # Links are removed, and not what they lead to.
    assert (tree / "kept.py").is_file()


@pytest.mark.processes
def test_names_the_log_of_a_command_that_failed(tree: Path) -> None:
    with pytest.raises(ProcessError, match="status 1") as caught:
        execute(plan_commands(tree, "exit 1"), tree)

    assert caught.value.log == log_of(tree)


# Overlays: files that are there for the build alone


def overlays_of(tree: Path) -> tuple[Overlay, ...]:
    """Return a new file, one in the place of another, and a copied one."""
    library = tree.parent / "lib.dll"
    library.write_bytes(b"dll\n")
    return (
        Overlay(path="new/_rocm_init.py", content="added\n"),
        Overlay(path="kept.py", content="other\n"),
        Overlay(path="lib.dll", source=library),
    )


@pytest.mark.processes
def test_overlays_files_while_a_build_runs(tree: Path) -> None:
    show = "cat new/_rocm_init.py kept.py lib.dll"

    execute(plan_commands(tree, show, MAKE_WHEEL, overlays=overlays_of(tree)), tree)

    assert "added\nother\ndll\n" in log_of(tree).read_text()


@pytest.mark.processes
@pytest.mark.parametrize("script", [MAKE_WHEEL, "exit 1"], ids=["success", "failure"])
def test_removes_overlays_however_a_build_ends(tree: Path, script: str) -> None:
    plan = plan_commands(tree, script, overlays=overlays_of(tree))

    if script == MAKE_WHEEL:
        execute(plan, tree)
    else:
        with pytest.raises(ProcessError):
            execute(plan, tree)

    assert not (tree / "new" / "_rocm_init.py").exists()
    assert not (tree / "lib.dll").exists()
    assert (tree / "kept.py").read_text() == "kept = 1\n"


@pytest.mark.processes
def test_removes_overlays_before_one_that_fails(tree: Path) -> None:
    plan = plan_commands(tree, MAKE_WHEEL, overlays=overlays_of(tree))
    (tree.parent / "lib.dll").unlink()

    with pytest.raises(FileNotFoundError):
        execute(plan, tree)

    assert (tree / "kept.py").read_text() == "kept = 1\n"


# Build folders, one for each configuration


def compile_in(
    tree: Path,
    *,
    configuration: str = FIRST_CONFIGURATION,
    folder: str = ".",
    removes: tuple[str, ...] = ("dist",),
) -> str:
    """Build once more; return one letter for each build that the build folder has seen."""
    plan = plan_commands(
        tree, f"{COMPILE}; {MAKE_WHEEL}", configuration=configuration, folder=folder, removes=removes
    )
    execute(plan, tree)
    return (tree / folder / "build" / "objects").read_text()


@pytest.mark.processes
def test_goes_on_in_the_build_folder_of_the_same_configuration(tree: Path) -> None:
    assert compile_in(tree) == "x"
    assert compile_in(tree) == "xx"

    marker = tree / "build" / execution.CONFIGURATION_MARKER
    assert marker.read_text() == FIRST_CONFIGURATION


@pytest.mark.processes
def test_trusts_no_build_folder_of_another_tool(tree: Path) -> None:
    (tree / "build").mkdir()
    (tree / "build" / "objects").write_text("of another tool")

    assert compile_in(tree) == "x"


@pytest.mark.processes
def test_keeps_a_build_folder_for_each_configuration(tree: Path) -> None:
    compile_in(tree)

    assert compile_in(tree, configuration=SECOND_CONFIGURATION) == "x"
    assert compile_in(tree) == "xx"
    assert compile_in(tree, configuration=SECOND_CONFIGURATION) == "xx"


@pytest.mark.processes
def test_removes_libraries_of_another_configuration_from_the_tree(tree: Path) -> None:
    compile_in(tree)
    # Upstream's build puts it beside its sources, and would pack it as its own.
    (tree / "libtorch.so").touch()

    compile_in(tree, configuration=SECOND_CONFIGURATION)

    assert not (tree / "libtorch.so").exists()


@pytest.mark.processes
def test_takes_no_build_folder_of_another_tree(tree: Path) -> None:
    other_tree = tree.parent / "torch-mine"
    commit_files(other_tree, {"setup.py": "", ".gitignore": "build/\ndist/\n"})
    compile_in(tree)
    # The first folder is put aside beside both trees.
    compile_in(tree, configuration=SECOND_CONFIGURATION)

    assert compile_in(other_tree) == "x"


@pytest.mark.processes
def test_cleans_the_build_folder_of_one_configuration_alone(tree: Path) -> None:
    compile_in(tree)
    compile_in(tree, configuration=SECOND_CONFIGURATION)

    assert compile_in(tree, removes=("dist", "build")) == "x"
    assert compile_in(tree, configuration=SECOND_CONFIGURATION) == "xx"


@pytest.mark.processes
def test_keeps_build_folders_below_the_tree(tree: Path) -> None:
    (tree / "python").mkdir()
    compile_in(tree, folder="python", removes=("python/dist",))

    assert (
        compile_in(tree, folder="python", removes=("python/dist",), configuration=SECOND_CONFIGURATION) == "x"
    )
    assert compile_in(tree, folder="python", removes=("python/dist",)) == "xx"


# The wheel


def write_wheels(folder: Path, *names: str) -> BuildPlan:
    """Write files as wheels that a build left; return its plan."""
    (folder / "dist").mkdir()
    for name in names:
        (folder / "dist" / name).touch()
    return plan_commands(folder, MAKE_WHEEL)


def test_finds_the_wheel_among_those_of_other_projects(tmp_path: Path) -> None:
    plan = write_wheels(tmp_path, WHEEL, "torchaudio-1.0-py3-none-any.whl")

    assert execution.find_wheel(plan).name == WHEEL


@pytest.mark.parametrize("names", [[], [WHEEL.replace("cp312", "cp311"), WHEEL]], ids=["none", "two wheels"])
def test_rejects_a_build_that_left_no_wheel_or_two(tmp_path: Path, names: list[str]) -> None:
    plan = write_wheels(tmp_path, *names)

    with pytest.raises(BuildError) as caught:
        execution.find_wheel(plan)

    assert [name for name in names if name not in caught.value.message] == []
    assert "--clean" in caught.value.hint


@pytest.mark.parametrize("version", ["2.10.0a0", "2.10.0a0+cpu", "2.10.0a1+cpu.sample"])
def test_rejects_a_wheel_of_another_version(tmp_path: Path, version: str) -> None:
    plan = write_wheels(tmp_path, WHEEL.replace(VERSION, version))

    with pytest.raises(BuildError) as caught:
        execution.find_wheel(plan)

    assert version in caught.value.message
    assert VERSION in caught.value.message


def test_rejects_a_file_whose_name_is_not_that_of_a_wheel(tmp_path: Path) -> None:
    plan = write_wheels(tmp_path, "torch-2.10.whl")

    with pytest.raises(WheelError, match=r"torch-2\.10\.whl"):
        execution.find_wheel(plan)


# Installing requirements, and the wheel where it was built

LOCKED = InstallerCall(requirements=("ninja==1",), hashed=True)


def answer_installers(call: Call) -> Answer:
    """Answer for uv, which succeeds, and for a Python that imports the wheel."""
    if execution.IMPORT_SCRIPT.name in " ".join(call.words):
        return Answer(stdout='{"problems": []}')
    return Answer()


def existing_target(run: LocalRun) -> Interpreter:
    """Return the interpreter of an environment on the disk, which has the wheel."""
    environment = VirtualEnvironment(folder=run.root / "env")
    environment.installed = {"torch": VERSION}
    return run.target(executable=environment.python)


def uv_calls(calls: Sequence[Call]) -> list[Call]:
    """Return the calls of uv: ``uv pip install`` and ``uv pip uninstall``."""
    return [call for call in calls if call.words[1] == "pip"]


def test_installs_a_projects_own_requirements_before_locked_ones(
    run: LocalRun, monkeypatch: pytest.MonkeyPatch
) -> None:
    (run.root / "requirements.txt").write_text("numpy\n")
    plan = replace(
        plan_commands(run.root, MAKE_WHEEL),
        uninstall=("ninja", "ninja"),
        requirements_files=("requirements.txt",),
        requirements=("numpy",),
    )
    calls = answer_processes(monkeypatch, answer_installers)

    execution.install_requirements(existing_target(run), plan, run.root, LOCKED, run.root / "cache")

    uninstall, own_install, locked_install = uv_calls(calls)
    # An installed wheel of an earlier build must not be what the build imports.
    assert uninstall.words[2] == "uninstall"
    assert uninstall.words[-2:] == ("ninja", "torch")
    assert uninstall.option("--python") == str(run.target().executable)
    assert "numpy" in own_install.words
    assert str(run.root / "requirements.txt") in own_install.words
    assert own_install.option("--cache-dir") == str(run.root / "cache")
    # Whatever the project's own requirements brought.
    assert "--require-hashes" in locked_install.words


def test_installs_nothing_for_a_project_without_requirements(
    run: LocalRun, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls = answer_processes(monkeypatch, answer_installers)

    execution.install_requirements(
        existing_target(run), plan_commands(run.root, MAKE_WHEEL), run.root, None, None
    )

    (uninstall,) = uv_calls(calls)
    assert uninstall.words[2] == "uninstall"
    assert uninstall.words[-1] == "torch"


def test_imports_a_wheel_where_it_was_built(run: LocalRun, monkeypatch: pytest.MonkeyPatch) -> None:
    wheel = run.root / "dist" / WHEEL
    calls = answer_processes(monkeypatch, answer_installers)

    execution.check_import(existing_target(run), EXPECTATION, wheel, None)

    (install,) = uv_calls(calls)
    assert str(wheel) in install.words
    # torchvision's own module does not import without pillow, which only its wheel asks for.
    assert "--no-deps" not in install.words
    assert calls[-1].words[0] == str(run.target().executable)
    assert str(execution.IMPORT_SCRIPT) in calls[-1].words


def test_names_the_cause_where_a_wheel_cannot_be_imported(
    run: LocalRun, monkeypatch: pytest.MonkeyPatch
) -> None:
    traceback = '  File "/a.py", line 3, in <module>\nImportError: libamdhip64.so: cannot open'

    def answer(call: Call) -> Answer:
        if str(execution.IMPORT_SCRIPT) in call.words:
            return Answer(status=1, stderr=traceback)
        return answer_installers(call)

    answer_processes(monkeypatch, answer)

    with pytest.raises(BuildError, match=r"libamdhip64\.so") as caught:
        execution.check_import(existing_target(run), EXPECTATION, run.root / "dist" / WHEEL, None)

    assert "import torch" in caught.value.hint
    assert caught.value.cause is not None
    assert caught.value.cause.headline == "/a.py:3: ImportError: libamdhip64.so: cannot open"


# Importing a wheel where ROCm's development tree is not installed

TORCH_INIT = f"""
import ctypes, pathlib
from torch import _rocm_init
_rocm_init.initialize()
ctypes.CDLL(str(pathlib.Path(__file__).parent / "lib" / "libtorch_hip.so"))
__version__ = {VERSION!r}
"""
PRELOADING_INIT = """
import ctypes, pathlib
def initialize():
    ctypes.CDLL(str(pathlib.Path(__file__).parents[1] / "_rocm_sdk_core" / "lib" / "libamdhip64.so.7"))
"""


def compile_library(path: Path, code: str, *flags: str) -> None:
    """Compile a shared library."""
    compiler = process.which("cc") or process.which("c++")
    assert compiler is not None
    source = path.with_suffix(".c")
    source.write_text(code)
    process.capture([compiler, "-shared", "-fPIC", source, "-o", path, *flags])


@pytest.fixture(scope="module")
def target(tmp_path_factory: pytest.TempPathFactory) -> Interpreter:
    """Return an environment with torch, ROCm's run-time library, and the same in its development tree.

    Each test links torch's library anew.
    """
    folder = tmp_path_factory.mktemp("bare-import") / "environment"
    venv.create(folder, symlinks=True)
    target = interpreter(folder / "bin" / Path(sys.executable).name)
    site_packages = target.purelib

    torch = site_packages / "torch"
    (torch / "lib").mkdir(parents=True)
    (torch / "__init__.py").write_text(TORCH_INIT)
    (torch / "_rocm_init.py").write_text(PRELOADING_INIT)
    info = site_packages / f"torch-{VERSION}.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: torch\nVersion: {VERSION}\n")

    core = site_packages / "_rocm_sdk_core" / "lib"
    core.mkdir(parents=True)
    hip_code = "int hip(void) { return 7; }\n"
    compile_library(core / "libamdhip64.so.7", hip_code, "-Wl,-soname,libamdhip64.so.7")
    devel = site_packages / "_rocm_sdk_devel" / "lib"
    devel.mkdir(parents=True)
    make_link(devel / "libamdhip64.so", "../../_rocm_sdk_core/lib/libamdhip64.so.7")
    make_link(devel / "libamdhip64.so.7", "libamdhip64.so")
    return target


def link_torch(target: Interpreter, rpath: str) -> None:
    """Link torch's library to ROCm's, with a search path."""
    devel = target.purelib / "_rocm_sdk_devel" / "lib"
    code = "int hip(void); int x(void) { return hip(); }\n"
    flags = [f"-L{devel}", "-lamdhip64", f"-Wl,-rpath,{rpath}", "-Wl,--disable-new-dtags"]
    compile_library(target.purelib / "torch" / "lib" / "libtorch_hip.so", code, *flags)


def check_bare_import(target: Interpreter, *, preloads: bool = False) -> None:
    """Import torch where the development tree is not installed."""
    execution.check_bare_import(target, EXPECTATION, target.prefix / WHEEL, keeps_preloads=preloads)


@pytest.mark.processes
def test_accepts_a_search_path_into_the_run_time_packages(target: Interpreter) -> None:
    link_torch(target, "$ORIGIN/../../_rocm_sdk_core/lib")

    check_bare_import(target)

    # The environment itself is as it was, and no copy of it is left.
    assert (target.purelib / "torch" / "_rocm_init.py").read_text() == PRELOADING_INIT
    assert (target.purelib / "_rocm_sdk_devel").is_dir()
    assert [path.name for path in target.prefix.parent.iterdir()] == ["environment"]


@pytest.mark.processes
def test_copies_files_where_they_cannot_be_linked(
    target: Interpreter, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_arguments: object) -> None:
        raise OSError("Invalid cross-device link")

    monkeypatch.setattr(os, "link", refuse)
    link_torch(target, "$ORIGIN/../../_rocm_sdk_core/lib")

    check_bare_import(target)

    assert (target.purelib / "torch" / "__init__.py").stat().st_nlink == 1


@pytest.mark.processes
@pytest.mark.parametrize(
    "rpath", ["$ORIGIN", "$ORIGIN/../../_rocm_sdk_devel/lib", "$ORIGIN/../_rocm_sdk_core/lib"]
)
def test_rejects_a_search_path_that_leads_elsewhere(target: Interpreter, rpath: str) -> None:
    link_torch(target, rpath)

    with pytest.raises(BuildError, match=r"libamdhip64\.so\.7"):
        check_bare_import(target)

    assert [path.name for path in target.prefix.parent.iterdir()] == ["environment"]


@pytest.mark.processes
def test_needs_no_search_path_where_rocm_is_loaded_first(target: Interpreter) -> None:
    link_torch(target, "$ORIGIN")

    check_bare_import(target, preloads=True)
