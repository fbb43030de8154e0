import re
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from core.errors import MachineError, UsageError
from core.run import job_files
from core.run.job_files import JobFiles

TEXTS = st.text(st.characters(exclude_categories=["Cs"]))


def read_entries(file: Path) -> dict[str, str]:
    """Read a file of entries as GitHub's runner does."""
    entries: dict[str, str] = {}
    lines = iter(file.read_bytes().decode().split("\n"))
    for line in lines:
        if not line:
            continue
        name, separator, rest = re.split(r"(<<|=)", line, maxsplit=1)
        value = [rest]
        if separator == "<<":
            value = []
            while (following := next(lines)) != rest:
                value.append(following)
        entries[name] = "\n".join(value)
    return entries


@pytest.fixture
def files(tmp_path: Path) -> JobFiles:
    """Return the files of a step: ``output``, ``env`` and ``path``."""
    variables = {
        "GITHUB_OUTPUT": str(tmp_path / "output"),
        "GITHUB_ENV": str(tmp_path / "env"),
        "GITHUB_PATH": str(tmp_path / "path"),
    }
    return job_files.job_files(variables)


@pytest.fixture(scope="module")
def output(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a file of outputs, which each example begins anew."""
    return tmp_path_factory.mktemp("job") / "output"


@given(values=st.lists(TEXTS, min_size=1, max_size=4))
def test_later_steps_get_every_output_and_no_other(values: list[str], output: Path) -> None:
    output.unlink(missing_ok=True)
    step_files = JobFiles(outputs=output)

    for number, value in enumerate(values):
        step_files.set_output(f"value_{number}", value)

    assert read_entries(output) == {f"value_{number}": value for number, value in enumerate(values)}


def test_an_output_cannot_end_its_entry_by_what_earlier_ones_show(files: JobFiles, tmp_path: Path) -> None:
    files.set_output("first", "x")
    end = (tmp_path / "output").read_text().splitlines()[-1]
    evil = f"a\n{end}\nevil=1\nfirst<<{end}\nb\n{end}"

    files.set_output("second", evil)

    assert read_entries(tmp_path / "output") == {"first": "x", "second": evil}


def test_later_steps_get_a_variable(files: JobFiles, tmp_path: Path) -> None:
    files.set_variable("VIRTUAL_ENV", "/venv\n")

    assert read_entries(tmp_path / "env") == {"VIRTUAL_ENV": "/venv\n"}


@pytest.mark.parametrize("name", ["GITHUB_TOKEN", "runner_temp", "NODE_OPTIONS", "LD_PRELOAD"])
def test_rejects_a_variable_of_the_runner(files: JobFiles, name: str) -> None:
    with pytest.raises(UsageError, match=name):
        files.set_variable(name, "x")


@pytest.mark.parametrize("name", ["", "a b", "a=b", "a\nb", "a<<b", "1a"])
def test_rejects_a_name_that_cannot_be_an_entry(name: str, files: JobFiles, tmp_path: Path) -> None:
    for set_entry in (files.set_output, files.set_variable):
        with pytest.raises(UsageError, match=re.escape(repr(name))):
            set_entry(name, "x")

    assert list(tmp_path.iterdir()) == []


def test_later_steps_get_folders_on_their_search_path(files: JobFiles, tmp_path: Path) -> None:
    # What wrote before may have left its last line open.
    (tmp_path / "path").write_text("/somebody/elses")

    files.add_path(tmp_path / "a")
    files.add_path(tmp_path / "b")

    lines = (tmp_path / "path").read_text().splitlines()
    assert lines == ["/somebody/elses", str(tmp_path / "a"), str(tmp_path / "b")]


def test_rejects_a_folder_whose_name_has_a_line_break(files: JobFiles, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="evil"):
        files.add_path(tmp_path / "a\n/evil")


def test_prints_every_entry_where_there_is_no_job(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    no_files = job_files.job_files({})

    no_files.set_output("package_find_links_url", "file:///x")
    no_files.set_variable("NAME", "value")
    no_files.add_path(tmp_path)

    lines = capsys.readouterr().err.splitlines()
    assert lines == ["package_find_links_url: file:///x", "NAME: value", f"PATH: {tmp_path}"]


def test_names_a_file_that_cannot_be_written(tmp_path: Path) -> None:
    output = tmp_path / "nowhere" / "output"

    with pytest.raises(MachineError) as raised:
        JobFiles(outputs=output).set_output("a", "b")

    assert str(output) in raised.value.message


# Markdown


def test_markdown_shows_a_text_as_it_is() -> None:
    assert job_files.text("a|b\n<img>*_x_`") == r"a\|b \<img\>\*\_x\_\`"


def test_markdown_shows_the_label_of_a_link_as_it_is() -> None:
    assert job_files.link("t[o]rch", "https://h/a%2Bb") == r"[t\[o\]rch](<https://h/a%2Bb>)"


def test_writes_a_table_of_cells() -> None:
    table = job_files.table(("file", "size"), [(job_files.text("a|b"), "1")])

    assert table.splitlines() == ["| file | size |", "| ---|--- |", r"| a\|b | 1 |"]
