"""Temporary folders, and what a killed program leaves of them: nothing, after the next one."""

import subprocess  # noqa: TID251 - to be killed
import sys
from pathlib import Path

import pytest

from core import files, temporary
from core.cli.options import ROOT

# A program that waits within a temporary folder, of which it prints the path.
PROGRAM = """
import sys, time
sys.path.insert(0, {root!r})
from pathlib import Path
from core import temporary
temporary.keep_journal(Path("cache"))
with temporary.folder("trial", within=Path({within!r}) if {within!r} else None) as folder:
    (folder / "file").write_text("x" * 1000)
    print(folder, flush=True)
    {then}
"""


def run_program(checkout: Path, *, within: str = "", then: str = "") -> subprocess.Popen[str]:
    """Start a program in a checkout."""
    text = PROGRAM.format(root=str(ROOT), within=within, then=then or "time.sleep(60)")
    return subprocess.Popen([sys.executable, "-c", text], cwd=checkout, stdout=subprocess.PIPE, text=True)


def kill_in_its_folder(checkout: Path, *, within: str = "") -> Path:
    """Run a program and kill it in its temporary folder; return that."""
    with run_program(checkout, within=within) as running:
        assert running.stdout is not None
        folder = Path(running.stdout.readline().strip())
        running.kill()
    assert running.returncode != 0
    return folder


def test_a_temporary_folder_goes_in_the_end(tmp_path: Path) -> None:
    with temporary.folder("trial", within=tmp_path) as folder:
        (folder / "file").touch()
        assert folder.parent == tmp_path

    assert not list(tmp_path.iterdir())


def test_a_folder_that_forbids_its_removal_goes_all_the_same(tmp_path: Path) -> None:
    with temporary.folder("trial", within=tmp_path) as folder:
        (folder / "inner").mkdir()
        (folder / "inner" / "file").touch()
        (folder / "inner").chmod(0o500)

    assert not folder.exists()


@pytest.mark.processes
@pytest.mark.parametrize("within", ["", "out"], ids=["system's", "own"])
def test_the_next_program_removes_what_a_killed_one_left(tmp_path: Path, within: str) -> None:
    (tmp_path / "out").mkdir()
    leftover = kill_in_its_folder(tmp_path, within=within)
    assert temporary.leftovers(tmp_path / "cache") == [leftover]

    with run_program(tmp_path, then="pass") as running:
        running.communicate()

    assert not leftover.exists()
    assert not list((tmp_path / "cache" / temporary.JOURNALS).iterdir())


@pytest.mark.processes
def test_a_program_leaves_the_folders_of_a_running_one(tmp_path: Path) -> None:
    with run_program(tmp_path) as running:
        assert running.stdout is not None
        folder = Path(running.stdout.readline().strip())
        temporary.remove_leftovers(tmp_path / "cache")

        assert folder.exists()
        assert temporary.leftovers(tmp_path / "cache") == []
        running.kill()
    temporary.remove_leftovers(tmp_path / "cache")
    assert not folder.exists()


def test_a_journal_never_leads_to_another_folder(tmp_path: Path) -> None:
    journals = files.ensure_folder(tmp_path / temporary.JOURNALS)
    mine = files.ensure_folder(tmp_path / "mine.part")
    (journals / "1.txt").write_text(f"{mine}\n{tmp_path}\n/\n")
    (journals / "1.lock").touch()

    temporary.remove_leftovers(tmp_path)

    assert mine.exists()


def test_a_commands_own_temporary_folder_is_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(temporary._STATE, "journals_folder", tmp_path)

    assert temporary.variables_of_commands({"TMPDIR": "/its/own"}, {}) == {}


def test_a_program_without_a_journal_changes_no_variable() -> None:
    assert temporary.variables_of_commands({}, {}) == {}
