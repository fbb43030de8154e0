from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from core import process
from pytorch_build.check import import_check
from pytorch_build.check.imports import import_command, read_report

if TYPE_CHECKING:
    from core.process import Completed

PYTHON = Path("/env/bin/python")


def test_the_command() -> None:
    words = import_command(PYTHON, "Torch", "2.10.0+cpu")
    assert words[:2] == (str(PYTHON), "-I")
    assert words[2].endswith("import_check.py")
    assert words[3:] == ("--distribution", "torch", "--version", "2.10.0+cpu", "--module", "torch")


def test_modules_by_distribution() -> None:
    assert import_command(PYTHON, "triton", "3.6.0")[-1] == "--public"
    assert import_command(PYTHON, "rocm-sdk", "7")[-2:] == ("--module", "rocm_sdk")
    assert import_command(PYTHON, "a", "7", ["b", "c.d"])[-4:] == ("--module", "b", "--module", "c.d")


def test_a_good_report() -> None:
    module = {"name": "torch", "version": "2", "file": "/x/torch/__init__.py", "seconds": 1.5}
    text = json.dumps(
        {"distribution": "torch", "version": "2", "python": "3.12.1", "modules": [module], "problems": []}
    )
    report, findings = read_report("torch.whl", 0, text, "")
    assert report is not None
    assert report.modules[0].seconds == 1.5
    assert findings == ()
    _, findings = read_report("torch.whl", -11, text, "")
    assert [one.message for one in findings] == ["Python died with status -11 when it ended."]


@pytest.mark.parametrize("stdout", ["", "Traceback", "[]", '{"distribution": 1}'])
def test_a_process_that_died(stdout: str) -> None:
    report, (finding,) = read_report("torch.whl", -11, stdout, "warning\nFatal: segmentation fault\n\n")
    assert report is None
    assert (finding.severity, finding.check, finding.wheel) == ("error", "import", "torch.whl")
    assert finding.message == "The import check died with status -11: Fatal: segmentation fault"


def environment(folder: Path, code: str, version: str = "1.0+cpu") -> None:
    """Install a module into a folder, as a wheel would."""
    (folder / "demo.py").write_text(code)
    info = folder / "demo-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: demo\nVersion: {version}\n")


def imported(folder: Path, *options: str) -> Completed:
    """Run the script with `folder` in place of site-packages."""
    words = [word for word in import_command(Path(sys.executable), "demo", "1.0+cpu") if word != "-I"]
    return process.capture(
        [*words, *options], env=process.inherited(PYTHONPATH=str(folder)), cwd=folder, check=False
    )


def test_the_script_reports_what_it_sees(capsys: pytest.CaptureFixture[str]) -> None:
    report = import_check.check("packaging", "0", ["packaging", "no_such_module_anywhere"], public=False)
    problems = report["problems"]
    assert isinstance(problems, list)
    assert [one.partition(";")[0].partition(":")[0].split()[0] for one in problems] == [
        "packaging",
        "packaging.__version__",
        "import",
    ]
    assert "ModuleNotFoundError" in capsys.readouterr().err


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
def test_a_module_that_imports(tmp_path: Path) -> None:
    environment(tmp_path, "import os\nprint('noise')\nos.write(1, b'more noise')\n__version__ = '1.0+cpu'\n")
    done = imported(tmp_path)
    report, findings = read_report("demo.whl", done.returncode, done.stdout, done.stderr)
    assert findings == ()
    assert report is not None
    assert (report.version, report.modules[0].version) == ("1.0+cpu", "1.0+cpu")
    assert report.modules[0].file == str(tmp_path / "demo.py")
    assert "noise" in done.stderr


@pytest.mark.processes
@pytest.mark.parametrize(
    ("code", "version", "options", "messages"),
    [
        ("__version__ = '1.0'", "1.0+cpu", [], ["demo.__version__ is 1.0; 1.0+cpu is expected."]),
        ("__version__ = '1.0'", "1.0+cpu", ["--public"], []),
        ("", "1.0+CPU", [], []),
        ("", "1.1", [], ["demo 1.1 is installed; 1.0+cpu is expected."]),
        ("1/0", "1.0+cpu", [], ["import demo failed: ZeroDivisionError: division by zero"]),
        ("raise SystemExit(0)", "1.0+cpu", [], ["import demo failed: SystemExit: 0"]),
    ],
)
def test_modules_that_do_not(
    tmp_path: Path, code: str, version: str, options: list[str], messages: list[str]
) -> None:
    environment(tmp_path, code, version)
    done = imported(tmp_path, *options)
    _, findings = read_report("demo.whl", done.returncode, done.stdout, done.stderr)
    assert [one.message for one in findings] == messages
    assert done.returncode == bool(messages)


@pytest.mark.processes
def test_a_module_that_kills_the_process(tmp_path: Path) -> None:
    environment(tmp_path, "import os\nos._exit(3)\n")
    done = imported(tmp_path)
    report, (finding,) = read_report("demo.whl", done.returncode, done.stdout, done.stderr)
    assert report is None
    assert "died with status 3" in finding.message


@pytest.mark.processes
def test_a_distribution_that_is_not_installed(tmp_path: Path) -> None:
    done = imported(tmp_path)
    _, findings = read_report("demo.whl", done.returncode, done.stdout, done.stderr)
    assert findings[0].message == "demo is not installed."
