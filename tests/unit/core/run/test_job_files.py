import re
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from core.errors import FatalError, UsageError
from core.run import job_files
from core.run.job_files import JobFiles


def entries(file: Path) -> dict[str, str]:
    """Read a file of entries as the runner does."""
    found, lines = {}, iter(file.read_bytes().decode().split("\n"))
    for line in lines:
        if not line:
            continue
        name, separator, rest = re.split(r"(<<|=)", line, maxsplit=1)
        value = [rest]
        if separator == "<<":
            value = []
            while (following := next(lines)) != rest:
                value.append(following)
        found[name] = "\n".join(value)
    return found


@pytest.fixture(name="files")
def files_fixture(tmp_path: Path) -> JobFiles:
    env = {"GITHUB_OUTPUT": "output", "GITHUB_ENV": "env", "GITHUB_PATH": "path"}
    return job_files.job_files({name: str(tmp_path / file) for name, file in env.items()})


@given(values=st.lists(st.text(st.characters(exclude_categories=["Cs"])), min_size=1, max_size=4))
def test_all_values_arrive_and_no_more(values: list[str], tmp_path_factory: pytest.TempPathFactory) -> None:
    file = tmp_path_factory.mktemp("job") / "output"
    given_files = JobFiles(outputs=file)
    for number, value in enumerate(values):
        given_files.set_output(f"value_{number}", value)
    assert entries(file) == {f"value_{number}": value for number, value in enumerate(values)}


def test_a_value_cannot_end_its_entry_by_what_earlier_ones_show(files: JobFiles, tmp_path: Path) -> None:
    files.set_output("first", "x")
    end = (tmp_path / "output").read_text().splitlines()[-1]
    files.set_output("second", f"a\n{end}\nevil=1\nfirst<<{end}\nb\n{end}")
    assert entries(tmp_path / "output").keys() == {"first", "second"}
    assert entries(tmp_path / "output")["first"] == "x"


def test_paths_are_lines_also_after_an_open_one(files: JobFiles, tmp_path: Path) -> None:
    (tmp_path / "path").write_text("/somebody/elses")
    files.add_path(tmp_path / "a")
    files.add_path(tmp_path / "b")
    lines = (tmp_path / "path").read_text().splitlines()
    assert lines == ["/somebody/elses", str(tmp_path / "a"), str(tmp_path / "b")]
    with pytest.raises(UsageError, match="search path"):
        files.add_path(tmp_path / "a\n/evil")


def test_variables_are_written_and_the_runners_own_refused(files: JobFiles, tmp_path: Path) -> None:
    files.set_variable("VIRTUAL_ENV", "/venv\n")
    assert entries(tmp_path / "env") == {"VIRTUAL_ENV": "/venv\n"}
    for name in ("GITHUB_TOKEN", "runner_temp", "NODE_OPTIONS", "LD_PRELOAD"):
        with pytest.raises(UsageError, match="belongs to the runner"):
            files.set_variable(name, "x")


@pytest.mark.parametrize("name", ["", "a b", "a=b", "a\nb", "a<<b", "1a"])
def test_names_cannot_be_entries(name: str, files: JobFiles, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="is not a valid name of a job's output"):
        files.set_output(name, "x")
    with pytest.raises(UsageError, match="is not a valid name of a job's variable"):
        files.set_variable(name, "x")
    assert list(tmp_path.iterdir()) == []


def test_elsewhere_everything_is_a_line(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    here = job_files.job_files({})
    here.set_output("package_find_links_url", "file:///x")
    here.set_variable("NAME", "value")
    here.add_path(tmp_path)
    said = capsys.readouterr().err.splitlines()
    assert said == ["package_find_links_url: file:///x", "NAME: value", f"PATH: {tmp_path}"]


def test_a_file_that_cannot_be_written_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(FatalError, match="could not be written"):
        JobFiles(outputs=tmp_path / "nowhere" / "output").set_output("a", "b")


def test_markdown_shows_what_a_name_holds() -> None:
    assert job_files.text("a|b\n<img>*_x_`") == r"a\|b \<img\>\*\_x\_\`"
    assert job_files.link("t[o]rch", "https://h/a%2Bb") == r"[t\[o\]rch](<https://h/a%2Bb>)"
    rows = job_files.table(("file", "size"), [(job_files.text("a|b"), "1")])
    assert rows.splitlines() == ["| file | size |", "| ---|--- |", r"| a\|b | 1 |"]
