import functools
import itertools
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest

from core import causes, console

LOGS = Path(__file__).with_name("logs")
EXPECTED = tomllib.loads((LOGS / "expected.toml").read_text(encoding="utf-8"))


@functools.cache
def read_log(name: str) -> causes.Cause:
    """Return the first error of one of the logs, which has one."""
    cause = causes.in_log(LOGS / f"{name}.txt", folder=Path("/build"))
    assert cause is not None
    return cause


def first_cause(*lines: str) -> causes.Cause:
    """Return the first error of lines that have one."""
    cause = causes.first(lines)
    assert cause is not None
    return cause


# Logs of real tools


@pytest.mark.parametrize("name", sorted(EXPECTED))
def test_finds_the_first_error_of_a_real_log(name: str) -> None:
    cause = read_log(name)

    facts = {"tool": cause.tool, "file": cause.file, "line": cause.line, "message": cause.message}
    assert facts == {"file": "", "line": 0, **EXPECTED[name]}


@pytest.mark.parametrize("name", sorted(EXPECTED))
def test_shows_a_few_plain_lines_around_the_error_of_a_real_log(name: str) -> None:
    cause = read_log(name)

    assert 1 <= len(cause.around) <= 6
    assert not any("\x1b" in line or "\r" in line for line in cause.around)


def test_every_log_has_an_expected_error() -> None:
    assert {path.stem for path in LOGS.glob("*.txt")} == set(EXPECTED)


def test_every_row_of_the_data_has_a_log() -> None:
    # A row without a log would not be known to pass the sieve that lines go through first.
    data = tomllib.loads(Path(causes.__file__).with_suffix(".toml").read_text(encoding="utf-8"))

    logged_tools = {log["tool"] for log in EXPECTED.values()}
    assert {row["tool"] for row in data["rows"]} == logged_tools


def test_every_row_of_the_data_has_a_rank_from_1_to_4() -> None:
    data = tomllib.loads(Path(causes.__file__).with_suffix(".toml").read_text(encoding="utf-8"))

    assert {row["rank"] for row in data["rows"]} <= {1, 2, 3, 4}


# Lines


@pytest.mark.parametrize(
    "line",
    [
        "FAILED: src/a.o",
        "ninja: build stopped: subcommand failed.",
        "make: *** [Makefile:3: all] Error 2",
        "collect2: error: ld returned 1 exit status",
        "clang: error: linker command failed with exit code 1 (use -v to see invocation)",
        "error: command '/usr/bin/gcc' failed with exit code 1",
        "-- Performing Test HAS_ERROR - Failed",
        "src/error.cpp: in function main",
        "ERROR: pip's dependency resolver does not currently take into account all the packages",
        "E                                             [100%]",
    ],
)
def test_prefers_an_error_to_a_line_that_only_reports_a_failure(line: str) -> None:
    cause = first_cause(line, "x.c:4:1: error: here")

    assert cause.headline == "x.c:4: error: here"


def test_reads_a_log_no_further_than_needed() -> None:
    def endless_log() -> Iterator[str]:
        yield from ["one", "two", "three", "x.c:4:1: error: here\r\n"]
        yield from map(str, itertools.count(5))

    cause = causes.first(endless_log())

    assert cause is not None
    assert cause.around == ("two", "three", "x.c:4:1: error: here", "5", "6", "7")


@pytest.mark.parametrize("lines", [[], ["nothing to see"]], ids=["no line", "no error"])
def test_finds_no_error_where_there_is_none(lines: list[str]) -> None:
    assert causes.first(lines) is None


def test_takes_secrets_out_of_a_masked_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SAMPLE_TOKEN", "s3cr3t-value")

    cause = first_cause("a.c:1:1: error: s3cr3t-value")

    assert "s3cr3t" not in cause.masked().model_dump_json()
    assert console.mask("s3cr3t-value") == "***"


# Logs of processes


def test_skips_what_earlier_processes_wrote_into_a_log(tmp_path: Path) -> None:
    log = tmp_path / "log"
    earlier = "a.c:1:1: error: of an earlier one\n"
    log.write_text(f"{earlier}b.c:2:1: error: of this one\n")

    cause = causes.in_log(log, start=len(earlier), folder=tmp_path)

    assert cause is not None
    assert cause.file == "b.c"


def test_reads_how_a_process_ended_as_the_last_line(tmp_path: Path) -> None:
    log = tmp_path / "log"
    log.write_text("compiling\n")

    cause = causes.in_log(log, folder=tmp_path, ending="cc1plus ended with signal SIGKILL.")

    assert cause is not None
    assert "memory" in cause.headline
    assert cause.around == ("compiling",)


@pytest.mark.parametrize("path", ["../src/a.cpp", "src/a.cpp", "{folder}/src/a.cpp"])
def test_writes_a_path_relative_to_the_source_tree(tmp_path: Path, path: str) -> None:
    # Compilers run in the tree or in its build folder.
    (tmp_path / "src").mkdir()
    (tmp_path / "build").mkdir()
    (tmp_path / "src" / "a.cpp").touch()
    log = tmp_path / "log"
    log.write_text(f"{path.format(folder=tmp_path)}:7:2: error: bad\n")

    cause = causes.in_log(log, folder=tmp_path)

    assert cause is not None
    assert cause.headline == "src/a.cpp:7: error: bad"
