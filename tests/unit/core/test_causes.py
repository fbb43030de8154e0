import itertools
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest

from core import causes, console

LOGS = Path(__file__).with_name("logs")
EXPECTED = tomllib.loads((LOGS / "expected.toml").read_text(encoding="utf-8"))


@pytest.mark.parametrize("name", sorted(EXPECTED))
def test_the_first_error_of_a_real_log_is_found(name: str) -> None:
    found = causes.in_log(LOGS / f"{name}.txt", folder=Path("/build"))
    assert found is not None
    got = {"tool": found.tool, "file": found.file, "line": found.line, "message": found.message}
    assert got == {"file": "", "line": 0, **EXPECTED[name]}
    assert 1 <= len(found.around) <= 6
    assert not any("\x1b" in line or "\r" in line for line in found.around)


def test_every_log_is_expected() -> None:
    assert {path.stem for path in LOGS.glob("*.txt")} == set(EXPECTED)


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
def test_what_only_reports_a_failure_is_no_cause(line: str) -> None:
    found = causes.first([line, "x.c:4:1: error: here"])
    assert found is not None
    assert (found.file, found.line, found.message) == ("x.c", 4, "error: here")


def test_a_log_is_read_no_further_than_needed() -> None:
    def endless() -> Iterator[str]:
        yield from ["one", "two", "three", "x.c:4:1: error: here\r\n"]
        yield from map(str, itertools.count(5))

    found = causes.first(endless())
    assert found is not None
    assert found.around == ("two", "three", "x.c:4:1: error: here", "5", "6", "7")
    assert causes.first(["nothing to see"]) is None
    assert causes.first([]) is None


def test_the_lines_before_a_process_are_not_its_own_and_its_end_counts(tmp_path: Path) -> None:
    log = tmp_path / "log"
    log.write_text("a.c:1:1: error: of an earlier one\nb.c:2:1: error: ours\n")
    found = causes.in_log(log, start=34, folder=tmp_path)
    assert found is not None
    assert found.file == "b.c"
    log.write_text("compiling\n")
    ended = causes.in_log(log, folder=tmp_path, end="cc1plus ended with signal SIGKILL.")
    assert ended is not None
    assert "ran out of memory" in ended.headline
    assert ended.around == ("compiling",)


def test_a_path_is_relative_to_the_tree_it_lies_in(tmp_path: Path) -> None:
    (tmp_path / "src").mkdir()
    (tmp_path / "build").mkdir()
    (tmp_path / "src" / "a.cpp").touch()
    log = tmp_path / "log"
    for written in ("../src/a.cpp", "src/a.cpp", str(tmp_path / "src" / "a.cpp")):
        log.write_text(f"{written}:7:2: error: bad\n")
        found = causes.in_log(log, folder=tmp_path)
        assert found is not None
        assert found.headline == "src/a.cpp:7: error: bad"


def test_rows_are_worth_a_look() -> None:
    """Each row's logs pass the sieve; a row that no log has would not be known to work."""
    rows = causes._rows().rows
    assert {row.rank for row in rows} <= {1, 2, 3, 4}
    assert {one["tool"] for one in EXPECTED.values()} == {row.tool for row in rows}


def test_secrets_do_not_go_into_a_record(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SAMPLE_TOKEN", "s3cr3t-value")
    found = causes.first(["a.c:1:1: error: s3cr3t-value"])
    assert found is not None
    assert "s3cr3t" not in found.masked().model_dump_json()
    assert console.mask("s3cr3t-value") == "***"
