import sys
from pathlib import Path

import pytest

from core import process
from pytorch_build.build.execution import import_command, read_import_report
from pytorch_build.check import import_check


@pytest.mark.parametrize(
    ("status", "report", "facts"),
    [
        pytest.param(0, '{"problems": []}', None, id="no problem"),
        pytest.param(-11, '{"problems": []}', ["status -11"], id="died at its end"),
        pytest.param(-11, "", ["status -11", "Fatal: segmentation fault"], id="no report"),
        pytest.param(-11, "Traceback", ["status -11", "Fatal: segmentation fault"], id="no JSON"),
        pytest.param(-11, "[]", ["status -11", "Fatal: segmentation fault"], id="no object"),
        pytest.param(
            -11, '{"distribution": 1}', ["status -11", "Fatal: segmentation fault"], id="no problems in it"
        ),
    ],
)
def test_reads_how_an_import_check_ended(status: int, report: str, facts: list[str] | None) -> None:
    problems = read_import_report(status, report, "warning\nFatal: segmentation fault\n\n")

    assert len(problems) == (0 if facts is None else 1)
    assert [fact for fact in facts or [] if fact not in problems[0]] == []


@pytest.mark.parametrize(
    ("first", "second", "is_same"),
    [
        ("1.0+A-b_c", "1.0+a.b.c", True),
        ("1.0 ", "1.0", True),
        ("1.0", "1.0+cpu", False),
        ("1.0", "1.1", False),
    ],
)
def test_compares_versions_whatever_their_spelling(first: str, second: str, *, is_same: bool) -> None:
    assert (import_check.normalized_version(first) == import_check.normalized_version(second)) is is_same


def install_demo(folder: Path, code: str, version: str = "1.0+cpu") -> None:
    """Install a module into a folder, as a wheel would."""
    (folder / "demo.py").write_text(code)
    info = folder / "demo-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: demo\nVersion: {version}\n")


def check_demo(folder: Path, *options: str) -> process.Completed:
    """Run the import check of demo 1.0+cpu with `folder` in the place of site-packages."""
    check_command = import_command(Path(sys.executable), "demo", "1.0+cpu")
    # -I would leave PYTHONPATH out.
    command = [argument for argument in check_command if argument != "-I"]
    env = process.inherited(PYTHONPATH=str(folder))
    return process.capture([*command, *options], env=env, cwd=folder, check=False)


def problems_of(completed: process.Completed) -> tuple[str, ...]:
    """Return the problems that an import check reports."""
    return tuple(read_import_report(completed.returncode, completed.stdout, completed.stderr))


@pytest.mark.processes
@pytest.mark.parametrize(
    ("code", "version", "options"),
    [
        pytest.param("__version__ = '1.0+cpu'", "1.0+cpu", [], id="same version"),
        pytest.param("__version__ = '1.0'", "1.0+cpu", ["--public"], id="same public version"),
        pytest.param("", "1.0+CPU", [], id="no __version__"),
    ],
)
def test_accepts_a_module_of_the_expected_version(
    tmp_path: Path, code: str, version: str, options: list[str]
) -> None:
    install_demo(tmp_path, code, version)

    completed = check_demo(tmp_path, *options)

    assert problems_of(completed) == ()
    assert completed.returncode == 0


@pytest.mark.processes
def test_reads_the_report_of_a_module_that_prints(tmp_path: Path) -> None:
    install_demo(tmp_path, "print('noise')\n__import__('os').write(1, b'noise')\n__version__ = '1.0+cpu'")

    completed = check_demo(tmp_path)

    assert problems_of(completed) == ()
    assert completed.stderr.count("noise") == 2


@pytest.mark.processes
@pytest.mark.parametrize(
    ("code", "version", "facts"),
    [
        pytest.param("__version__ = '1.0'", "1.0+cpu", [["__version__", "1.0+cpu"]], id="other version"),
        pytest.param(
            "__version__ = '2'",
            "1.1",
            [["1.1", "1.0+cpu"], ["__version__", "2", "1.0+cpu"]],
            id="both versions differ",
        ),
        pytest.param("1/0", "1.0+cpu", [["import demo", "ZeroDivisionError"]], id="exception"),
        pytest.param("raise SystemExit(0)", "1.0+cpu", [["import demo", "SystemExit"]], id="exit"),
    ],
)
def test_reports_what_is_wrong_with_a_module(
    tmp_path: Path, code: str, version: str, facts: list[list[str]]
) -> None:
    install_demo(tmp_path, code, version)

    completed = check_demo(tmp_path)

    assert completed.returncode == 1
    for problem, facts_of_problem in zip(problems_of(completed), facts, strict=True):
        assert [fact for fact in facts_of_problem if fact not in problem] == []


@pytest.mark.processes
def test_reports_a_module_that_kills_the_process(tmp_path: Path) -> None:
    install_demo(tmp_path, "import os\nos._exit(3)\n")

    (problem,) = problems_of(check_demo(tmp_path))

    assert "status 3" in problem


@pytest.mark.processes
def test_reports_a_distribution_that_is_not_installed(tmp_path: Path) -> None:
    problems = problems_of(check_demo(tmp_path))

    assert "demo is not installed" in problems[0]
