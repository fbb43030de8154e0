import sys
from pathlib import Path

import pytest

from core import process
from pytorch_build.build.execution import import_command, read_report
from pytorch_build.check import import_check


@pytest.mark.parametrize(
    ("returncode", "stdout", "problems"),
    [
        (0, '{"problems": []}', ()),
        (-11, '{"problems": []}', ("Python died with status -11 when it ended.",)),
        *(
            (-11, text, ("The import check died with status -11: Fatal: segmentation fault",))
            for text in ("", "Traceback", "[]", '{"distribution": 1}')
        ),
    ],
)
def test_what_a_report_means(returncode: int, stdout: str, problems: tuple[str, ...]) -> None:
    assert read_report(returncode, stdout, "warning\nFatal: segmentation fault\n\n") == problems


def environment(folder: Path, code: str, version: str = "1.0+cpu") -> None:
    """Install a module into a folder, as a wheel would."""
    (folder / "demo.py").write_text(code)
    info = folder / "demo-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: demo\nVersion: {version}\n")


def imported(folder: Path, *options: str) -> process.Completed:
    """Run the script with `folder` in place of site-packages."""
    words = [word for word in import_command(Path(sys.executable), "demo", "1.0+cpu") if word != "-I"]
    return process.capture(
        [*words, *options], env=process.inherited(PYTHONPATH=str(folder)), cwd=folder, check=False
    )


@pytest.mark.parametrize(
    ("one", "other", "same"),
    [
        ("1.0+A-b_c", "1.0+a.b.c", True),
        ("1.0 ", "1.0", True),
        ("1.0", "1.0+cpu", False),
        ("1.0", "1.1", False),
    ],
)
def test_spellings_of_versions(one: str, other: str, same: bool) -> None:  # noqa: FBT001 - a parameter
    assert (import_check.normal(one) == import_check.normal(other)) is same


@pytest.mark.processes
@pytest.mark.parametrize(
    ("code", "version", "options", "problems"),
    [
        ("print('noise')\n__import__('os').write(1, b'noise')\n__version__ = '1.0+cpu'", "1.0+cpu", [], ()),
        ("__version__ = '1.0'", "1.0+cpu", [], ("demo.__version__ is 1.0; 1.0+cpu is expected.",)),
        ("__version__ = '1.0'", "1.0+cpu", ["--public"], ()),
        ("", "1.0+CPU", [], ()),
        (
            "__version__ = '2'",
            "1.1",
            [],
            ("demo 1.1 is installed; 1.0+cpu is expected.", "demo.__version__ is 2; 1.0+cpu is expected."),
        ),
        ("1/0", "1.0+cpu", [], ("import demo failed: ZeroDivisionError: division by zero",)),
        ("raise SystemExit(0)", "1.0+cpu", [], ("import demo failed: SystemExit: 0",)),
    ],
)
def test_modules(
    tmp_path: Path, code: str, version: str, options: list[str], problems: tuple[str, ...]
) -> None:
    environment(tmp_path, code, version)
    done = imported(tmp_path, *options)
    assert read_report(done.returncode, done.stdout, done.stderr) == problems
    assert done.returncode == bool(problems)
    assert ("noise" in done.stderr) is ("noise" in code)


@pytest.mark.processes
def test_a_module_that_kills_the_process(tmp_path: Path) -> None:
    environment(tmp_path, "import os\nos._exit(3)\n")
    done = imported(tmp_path)
    (problem,) = read_report(done.returncode, done.stdout, done.stderr)
    assert "died with status 3" in problem


@pytest.mark.processes
def test_a_distribution_that_is_not_installed(tmp_path: Path) -> None:
    done = imported(tmp_path)
    assert read_report(done.returncode, done.stdout, done.stderr)[0] == "demo is not installed."
