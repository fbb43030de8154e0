from dataclasses import replace
from pathlib import Path

import pytest

from pytorch_build.check import Finding, metadata
from pytorch_build.check.run import check_wheel
from tests.kit.findings import errors_among, messages
from tests.kit.views import wheel_view
from tests.kit.wheels import write_wheel


def check_metadata(text: str) -> list[Finding]:
    """Return what is found in METADATA of a wheel."""
    view = wheel_view("demo-1.0-py3-none-any.whl", files={"demo.py": 1})
    assert view.metadata is not None
    return [*metadata.check(replace(view, metadata=replace(view.metadata, raw=text.encode())))]


def check_entry_points(text: str) -> list[tuple[str, str]]:
    """Return severity and message of what is found in entry_points.txt."""
    view = wheel_view("demo-1.0-py3-none-any.whl", files={"demo.py": 1}, entry_points=text)
    return [(finding.severity, finding.message) for finding in metadata.check(view)]


SOUND = "Metadata-Version: 2.4\nName: demo\nVersion: 1.0\n"


# Fields


@pytest.mark.parametrize(
    ("field", "name"),
    [
        pytest.param("Requires-Dist: a ==\n", "Requires-Dist", id="requirement"),
        pytest.param("Requires-Python: >>3\n", "Requires-Python", id="python"),
        pytest.param("Provides-Extra: a b\n", "Provides-Extra", id="extra"),
        pytest.param("License-Expression: Foo bar\n", "License-Expression", id="licence expression"),
        pytest.param("License-File: ../LICENSE\n", "License-File", id="licence file"),
        pytest.param("Dynamic: Name\n", "Dynamic", id="dynamic"),
        pytest.param("Description-Content-Type: text/foo\n", "Description-Content-Type", id="content type"),
        pytest.param("Summary: a\n b\n", "Summary", id="summary"),
    ],
)
def test_refuses_a_field_that_is_invalid(field: str, name: str) -> None:
    errors = errors_among(check_metadata(SOUND + field))

    assert name in " ".join(messages(errors))


@pytest.mark.parametrize(
    "text",
    [
        pytest.param(SOUND, id="sound"),
        pytest.param(f"{SOUND}License-Expression: MIT\nLicense-File: LICENSE\n", id="licence"),
        pytest.param(f"{SOUND}New-Field: x\n", id="field of a later version"),
        pytest.param(SOUND.replace("2.4", "2.9"), id="later version"),
        pytest.param(f"{SOUND.replace('2.4', '2.1')}License-File: LICENSE\n", id="setuptools before 77"),
        pytest.param(f"{SOUND}Provides-Extra: GPU_All\nRequires-Dist: a; extra == 'gpu-all'\n", id="extra"),
    ],
)
def test_accepts_fields_that_installers_take(text: str) -> None:
    assert check_metadata(text) == []


def test_refuses_a_version_of_the_format_that_installers_refuse() -> None:
    (finding,) = check_metadata(SOUND.replace("2.4", "3.0"))

    assert finding.severity == "error"
    assert "Metadata-Version" in finding.message


# Entry points


@pytest.mark.parametrize(
    "text",
    [
        pytest.param("[console_scripts]\ndemo = demo\n", id="no function"),
        pytest.param("[console_scripts]\ndemo = demo main\n", id="no module"),
        pytest.param("[console_scripts]\n../demo = demo:main\n", id="folder in a name"),
        pytest.param("[console_scripts]\ndemo\n", id="no object"),
        pytest.param("[group]\ndemo = not a module\n", id="words"),
        pytest.param("demo = demo:main\n", id="no group"),
    ],
)
def test_refuses_entry_points_that_installers_refuse(text: str) -> None:
    ((severity, message),) = check_entry_points(text)

    assert severity == "error"
    assert "demo" in message or "entry_points.txt" in message


@pytest.mark.parametrize(
    "text",
    [
        "",
        "# nothing\n",
        "[console_scripts]\n",
        "[console_scripts]\ndemo = demo:main\ndemo-2.x = demo.sub:Class.main [extra]\n",
        "[group]\nany name = demo\n",
    ],
)
def test_accepts_entry_points_that_installers_take(text: str) -> None:
    assert check_entry_points(text) == []


def test_warns_of_an_entry_point_that_is_there_twice() -> None:
    ((severity, _message),) = check_entry_points("[group]\na = demo\na = other\n")

    assert severity == "warning"


def test_reads_the_entry_points_of_a_written_wheel(tmp_path: Path) -> None:
    files = {"demo.py": b"", "demo-1.0.dist-info/entry_points.txt": b"[console_scripts]\npip = demo:main\n"}
    wheel = write_wheel(tmp_path, name="demo", version="1.0", files=files)

    (finding,) = check_wheel(wheel)

    assert finding.severity == "error"
    assert "pip" in finding.message
