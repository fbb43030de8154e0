import sys
import venv
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from core import process
from core.env import Interpreter, installer, interpreter
from core.errors import BuildError, ProcessError, WheelError
from pytorch_build.build import execution
from pytorch_build.build.metrics import Metrics
from pytorch_build.build.plans.common import BuildPlan, Command, Overlay
from pytorch_build.check import Expectation
from pytorch_build.platforms import LINUX
from tests.conftest import Commit

VERSION = "2.10.0a0+cpu.sample"
WHEEL = f"torch-{VERSION}-cp312-cp312-linux_x86_64.whl"
ENV = {"PATH": process.inherited()["PATH"]}
PYTHON = str(Path(sys.executable))


def plan(tree: Path, *code: str, **changes: Any) -> BuildPlan:
    """Plan a build whose commands are lines of Python."""
    commands = tuple(Command(argv=(PYTHON, "-S", "-c", one), cwd=tree) for one in code)
    made = BuildPlan(
        project="torch",
        distribution="torch",
        version=VERSION,
        env={"ADDED": "1"},
        unset=frozenset({"GONE"}),
        removes=("dist",),
        commands=commands,
        configuration="a" * 64,
    )
    return replace(made, **changes)


MAKE_DIST = "import pathlib as p; p.Path('dist').mkdir(exist_ok=True)"
MAKE_WHEEL = f"{MAKE_DIST}; p.Path('dist/{WHEEL}').touch()"


@pytest.fixture
def tree(tmp_path: Path, commit_files: Commit) -> Path:
    path = tmp_path / "src" / "torch"
    commit_files(path, {"setup.py": "", "kept.py": "kept = 1\n", ".gitignore": "build/\ndist/\n*.so\n"})
    return path


class Cache:
    def environment(self, env: Mapping[str, str]) -> dict[str, str]:
        return {**env, "SEEN": env["ADDED"]}


def go(plan: BuildPlan, tree: Path, cache: Any = None, **env: str) -> Path:
    return execution.execute(
        plan,
        tree,
        LINUX,
        base_env={**ENV, **env},
        log=tree.parent / "build.log",
        metrics=Metrics(),
        cache=cache,
    )


@pytest.mark.processes
def test_commands_run_in_order_in_the_plans_environment(tree: Path) -> None:
    ask = "import os; print(sorted(set(os.environ) - {'PATH', 'LC_CTYPE'}))"
    rights = dict.fromkeys(("ACTIONS_RUNTIME_TOKEN", "GITHUB_ENV", "USE_TOKEN", "LD_PRELOAD"), "")
    wheel = go(plan(tree, ask, MAKE_WHEEL), tree, Cache(), GONE="1", USE_KEPT="1", **rights)
    assert wheel == tree / "dist" / WHEEL
    assert "['ADDED', 'SEEN', 'USE_KEPT']" in (tree.parent / "build.log").read_text()


@pytest.mark.processes
def test_notes_are_printed_and_what_an_earlier_build_left_is_removed(
    tree: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tree / "dist").mkdir()
    (tree / "dist" / WHEEL.replace("2.10", "2.9")).touch()
    (tree / "dist" / "link").symlink_to(tree / "kept.py")
    go(plan(tree, MAKE_WHEEL, notes=("Flash attention is off.",)), tree)
    assert "Flash attention is off." in capsys.readouterr().err
    assert [path.name for path in (tree / "dist").iterdir()] == [WHEEL]
    assert (tree / "kept.py").is_file()


@pytest.mark.processes
@pytest.mark.parametrize("code", [MAKE_WHEEL, "raise SystemExit(1)"])
def test_dropped_files_are_there_for_the_build_and_gone_afterwards(tree: Path, code: str) -> None:
    source = tree.parent / "lib.dll"
    source.write_bytes(b"dll")
    drops = (
        Overlay(path="new/_rocm_init.py", content="dropped"),
        Overlay(path="kept.py", content="other"),
        Overlay(path="lib.dll", source=source),
    )
    read = "import pathlib as p; print([p.Path(n).read_text() for n in "
    read += "('new/_rocm_init.py', 'kept.py', 'lib.dll')])"
    planned = plan(tree, read, code, overlays=drops)
    if code == MAKE_WHEEL:
        go(planned, tree)
    else:
        with pytest.raises(ProcessError, match="status 1") as caught:
            go(planned, tree)
        assert caught.value.log == tree.parent / "build.log"
    assert "['dropped', 'other', 'dll']" in (tree.parent / "build.log").read_text()
    assert not (tree / "new" / "_rocm_init.py").exists()
    assert not (tree / "lib.dll").exists()
    assert (tree / "kept.py").read_text() == "kept = 1\n"
    source.unlink()
    with pytest.raises(FileNotFoundError):
        go(planned, tree)
    assert (tree / "kept.py").read_text() == "kept = 1\n", "those before it are undone"


BUILD = (
    "import pathlib as p; b = p.Path('build'); b.mkdir(exist_ok=True);"
    "f = b / 'objects'; f.write_text((f.read_text() if f.exists() else '') + 'x')"
)


def objects(tree: Path) -> str:
    return (tree / "build" / "objects").read_text()


@pytest.mark.processes
def test_a_build_folder_serves_its_own_configuration_alone(tree: Path) -> None:
    one, other = plan(tree, BUILD, MAKE_WHEEL), plan(tree, BUILD, MAKE_WHEEL, configuration="b" * 64)
    (tree / "build").mkdir()
    (tree / "build" / "objects").write_text("of another tool, which is not trusted")
    go(one, tree)
    assert objects(tree) == "x"
    go(one, tree)
    assert objects(tree) == "xx"
    assert (tree / "build" / execution.CONFIGURATION_MARKER).read_text() == "a" * 64
    # what upstream's build puts beside its sources belongs to the configuration, too
    (tree / "libtorch.so").touch()
    go(other, tree)
    assert objects(tree) == "x"
    assert not (tree / "libtorch.so").exists()
    go(one, tree)
    assert objects(tree) == "xxx"
    go(other, tree)
    assert objects(tree) == "xx"


@pytest.mark.processes
def test_clean_and_another_tree_bring_nothing_back(tree: Path, commit_files: Commit) -> None:
    one, other = plan(tree, BUILD, MAKE_WHEEL), plan(tree, BUILD, MAKE_WHEEL, configuration="b" * 64)
    mine = tree.parent / "torch-mine"
    commit_files(mine, {"setup.py": "", ".gitignore": "build/\ndist/\n"})
    go(one, tree)
    go(other, tree)
    go(plan(mine, BUILD, MAKE_WHEEL), mine)
    assert objects(mine) == "x", "two trees of one project do not swap their folders"
    go(replace(one, removes=("dist", "build")), tree)
    assert objects(tree) == "x"
    # the other configuration is not the one that was to be cleaned
    go(other, tree)
    assert objects(tree) == "xx"


@pytest.mark.processes
def test_a_build_folder_may_lie_below_the_tree(tree: Path) -> None:
    inner = tree / "python"
    inner.mkdir()
    one = plan(tree, BUILD, MAKE_WHEEL, removes=("python/dist",))
    one = replace(one, commands=tuple(replace(command, cwd=inner) for command in one.commands))
    go(one, tree)
    go(replace(one, configuration="b" * 64), tree)
    assert (inner / "build" / "objects").read_text() == "x"
    go(one, tree)
    assert (inner / "build" / "objects").read_text() == "xx"


def test_exactly_one_wheel_is_a_build(tmp_path: Path) -> None:
    planned = plan(tmp_path, MAKE_WHEEL)
    with pytest.raises(BuildError, match=r"must leave one torch-\*\.whl .* left: none"):
        execution.the_wheel(planned)
    (tmp_path / "dist").mkdir()
    for name in (WHEEL, "torchaudio-1.0-py3-none-any.whl"):
        (tmp_path / "dist" / name).touch()
    assert execution.the_wheel(planned).name == WHEEL
    (tmp_path / "dist" / WHEEL.replace("cp312", "cp311")).touch()
    with pytest.raises(
        BuildError, match=f"{WHEEL.replace('cp312', 'cp311')}, {WHEEL}".replace("+", ".")
    ) as caught:
        execution.the_wheel(planned)
    assert "--clean" in caught.value.hint


@pytest.mark.parametrize(
    ("name", "error", "message"),
    [
        (WHEEL.replace(VERSION, "2.10.0a0"), BuildError, "the source lock promises"),
        (WHEEL.replace(VERSION, "2.10.0a0+cpu"), BuildError, "the source lock promises"),
        (WHEEL.replace(VERSION, "2.10.0a1+cpu.sample"), BuildError, "the source lock promises"),
        ("torch-2.10.whl", WheelError, "torch-2.10.whl"),
    ],
)
def test_a_wheel_of_another_version_or_name_is_refused(
    tmp_path: Path, name: str, error: type[Exception], message: str
) -> None:
    (tmp_path / "dist").mkdir()
    (tmp_path / "dist" / name).touch()
    with pytest.raises(error, match=message):
        execution.the_wheel(plan(tmp_path, MAKE_WHEEL))


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    made: list[Any] = []
    monkeypatch.setattr(installer, "uv_program", lambda: "uv")
    monkeypatch.setattr(installer, "install", lambda _target, call, **options: made.append((call, options)))

    def capture(argv: list[str | Path], **_options: object) -> process.Completed:
        made.append([str(word) for word in argv])
        return process.Completed(returncode=0, stdout="", stderr="")

    monkeypatch.setattr(process, "capture", capture)
    return made


PROMISED = Expectation(distribution="torch", version=VERSION)
LOCKED = installer.Install(requirements=("ninja==1",), hashed=True)


def test_a_projects_own_requirements_come_before_what_must_be_locked(run: Any, calls: list[Any]) -> None:
    planned = plan(
        run.root,
        uninstall=("ninja", "ninja"),
        requirements_files=("requirements.txt",),
        requirements=("numpy",),
    )
    execution.install_requirements(
        run.target(), planned, run.root, LOCKED, {"backend": "pip", "cache_dir": run.root / "cache"}
    )
    before, (call, options), (after, _) = calls
    # an installed wheel of an earlier build must not be what the build imports
    assert before[-2:] == ["ninja", "torch"]
    assert str(run.target().executable) in before
    assert call.files == (run.root / "requirements.txt",)
    assert call.requirements == ("numpy",)
    assert not call.hashed
    assert options == {"backend": "pip", "cache_dir": run.root / "cache"}
    assert after == LOCKED, "whatever the project's own requirements brought"
    calls.clear()
    execution.install_requirements(run.target(), plan(run.root), run.root, None, {})
    assert [one[-1] for one in calls] == ["torch"], "without requirements nothing is installed"


def test_a_wheel_is_imported_where_it_was_built(
    run: Any, calls: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    wheel = run.root / "dist" / WHEEL
    said = '  File "/a.py", line 3, in <module>\nImportError: libamdhip64.so: cannot open'
    failed = process.Completed(returncode=1, stdout="", stderr=said)
    held: list[Any] = []
    monkeypatch.setattr(installer, "require_planned", lambda _, planned, **__: held.append(dict(planned)))
    with monkeypatch.context() as patch:
        patch.setattr(process, "capture", lambda *_, **__: failed)
        with pytest.raises(BuildError, match=r"(?s)cannot be imported.*libamdhip64") as caught:
            execution.check_import(run.target(), PROMISED, wheel, {})
    assert "import torch" in caught.value.hint
    assert caught.value.cause
    assert caught.value.cause.headline == "/a.py:3: ImportError: libamdhip64.so: cannot open"
    calls.clear()
    monkeypatch.setattr(execution, "read_report", lambda *_: ())
    execution.check_import(run.target(), PROMISED, wheel, {})
    assert held == [{"torch": VERSION}] * 2, "the environment holds what was built"
    (call, _), command = calls
    assert call.requirements == (str(wheel),)
    # torchvision's own module does not import without pillow, which only its wheel asks for
    assert call.dependencies
    assert command[0] == str(run.target().executable)


TORCH = f"""
import ctypes, pathlib
from torch import _rocm_init
_rocm_init.initialize()
ctypes.CDLL(str(pathlib.Path(__file__).parent / "lib" / "libtorch_hip.so"))
__version__ = {VERSION!r}
"""
PRELOADS = """
import ctypes, pathlib
def initialize():
    ctypes.CDLL(str(pathlib.Path(__file__).parents[1] / "_rocm_sdk_core" / "lib" / "libamdhip64.so.7"))
"""


@pytest.fixture
def target(tmp_path: Path) -> Interpreter:
    """Return an environment with ROCm's run-time library, and the same in its development tree."""
    folder = tmp_path / "environment"
    venv.create(folder, symlinks=True)
    target = interpreter(folder / "bin" / Path(sys.executable).name)
    core, devel = (target.purelib / one / "lib" for one in ("_rocm_sdk_core", "_rocm_sdk_devel"))
    info = target.purelib / f"torch-{VERSION}.dist-info"
    for one in (core, devel, info, target.purelib / "torch" / "lib"):
        one.mkdir(parents=True)
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: torch\nVersion: {VERSION}\n")
    (target.purelib / "torch" / "__init__.py").write_text(TORCH)
    (target.purelib / "torch" / "_rocm_init.py").write_text(PRELOADS)
    compiled(core / "libamdhip64.so.7", "int hip(void) { return 7; }\n", "-Wl,-soname,libamdhip64.so.7")
    (devel / "libamdhip64.so").symlink_to("../../_rocm_sdk_core/lib/libamdhip64.so.7")
    (devel / "libamdhip64.so.7").symlink_to("libamdhip64.so")
    return target


def compiled(path: Path, code: str, *flags: str) -> None:
    compiler = process.which("cc") or process.which("c++")
    assert compiler is not None
    source = path.with_suffix(".c")
    source.write_text(code)
    process.capture([compiler, "-shared", "-fPIC", source, "-o", path, *flags])


def link(target: Interpreter, rpath: str) -> None:
    devel = target.purelib / "_rocm_sdk_devel" / "lib"
    code = "int hip(void); int x(void) { return hip(); }\n"
    flags = (f"-L{devel}", "-lamdhip64", f"-Wl,-rpath,{rpath}", "-Wl,--disable-new-dtags")
    compiled(target.purelib / "torch" / "lib" / "libtorch_hip.so", code, *flags)


def check(target: Interpreter, *, preloads: bool = False) -> None:
    execution.check_bare_import(target, PROMISED, target.prefix / WHEEL, preloads=preloads)


@pytest.mark.processes
def test_a_search_path_into_the_run_time_packages_is_enough(
    target: Interpreter, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    link(target, "$ORIGIN/../../_rocm_sdk_core/lib")
    check(target)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["environment"]
    assert (target.purelib / "torch" / "_rocm_init.py").read_text() == PRELOADS
    assert (target.purelib / "_rocm_sdk_devel").is_dir()

    def refuses(*_: object) -> None:
        raise OSError("Invalid cross-device link")

    monkeypatch.setattr("os.link", refuses)
    check(target)  # where files cannot be linked, they are copied
    assert (target.purelib / "torch" / "__init__.py").stat().st_nlink == 1


@pytest.mark.parametrize(
    "rpath", ["$ORIGIN", "$ORIGIN/../../_rocm_sdk_devel/lib", "$ORIGIN/../_rocm_sdk_core/lib"]
)
@pytest.mark.processes
def test_other_search_paths_are_found_out(target: Interpreter, tmp_path: Path, rpath: str) -> None:
    link(target, rpath)
    with pytest.raises(BuildError, match="development tree is not installed") as caught:
        check(target)
    assert "libamdhip64.so.7" in caught.value.message
    assert sorted(path.name for path in tmp_path.iterdir()) == ["environment"]
    check(target, preloads=True)
