"""What stages left in a checkout, listed and freed."""

import os
import shutil
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path

import pytest
from filelock import FileLock

from ci.verbs import clean
from ci.verbs.clean import KINDS
from core import temporary
from core.errors import UsageError
from core.run import RunOutputs
from core.stores.directory import DirectoryStore
from pytorch_build.sources.checkout import UPSTREAM_REF
from tests.kit import repos
from tests.kit.front_doors import run_verb, use_checkout
from tests.kit.runs import write_record
from tests.kit.windows import make_link

# One folder of each kind, but for trees.
FOLDERS = (".nox/lint", ".nox/build_torch", "src/main/.builds/torch-1", ".cache/refs", "out/18-linux")

Clean = Callable[..., list[str]]


@pytest.fixture
def checkout(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A checkout with a folder of 1 KiB of each kind, and a run with a record of a build."""
    root = tmp_path / "checkout"
    for name in FOLDERS:
        folder = root / name
        folder.mkdir(parents=True)
        (folder / "file").write_bytes(b"x" * 1024)
    (root / ".nox" / ".build_torch.lock").touch()
    outputs = RunOutputs(run_id="17", platform="linux")
    write_record(DirectoryStore(root=root / "out"), outputs, step="build_torch", family="cpu")
    use_checkout(monkeypatch, clean, root)
    return root


@pytest.fixture(name="clean")
def clean_fixture(checkout: Path, capsys: pytest.CaptureFixture[str]) -> Clean:
    """Run the verb in the checkout; return the lines that it prints."""
    assert checkout.is_dir()

    def run(*options: str) -> list[str]:
        capsys.readouterr()
        assert run_verb("ci", "clean", *options) == 0
        return [" ".join(line.split()) for line in capsys.readouterr().err.splitlines()]

    return run


def line_of(lines: list[str], path: str) -> str:
    """Return the line about a path."""
    (line,) = [line for line in lines if str(Path(path)) in line]
    return line


def runs_in(checkout: Path) -> list[str]:
    return sorted(path.name for path in (checkout / "out").glob("*-linux"))


@pytest.mark.parametrize("options", [(), ("--yes", "--dry-run")])
def test_lists_what_can_be_freed_and_frees_nothing(
    clean: Clean, checkout: Path, options: tuple[str, ...]
) -> None:
    lines = clean(*options)

    assert line_of(lines, "src/main/.builds/torch-1").startswith("builds")
    assert "1.0 KiB" in line_of(lines, "src/main/.builds/torch-1")
    assert line_of(lines, ".nox/lint").startswith("environments")
    assert lines[-1].startswith("4.0 KiB")
    for folder in FOLDERS:
        assert (checkout / folder / "file").is_file()


def test_tells_how_long_a_build_took_that_would_go(clean: Clean) -> None:
    assert line_of(clean(), "src/main/.builds/torch-1").endswith(" 1.0 s")


def test_tells_the_day_of_the_last_change(clean: Clean, checkout: Path) -> None:
    # Noon is on the same day in most time zones.
    noon = datetime(2026, 3, 4, 12, tzinfo=UTC).timestamp()
    for path in (checkout / ".nox" / "lint" / "file", checkout / ".nox" / "lint"):
        os.utime(path, (noon, noon))

    assert "2026-03-04" in line_of(clean(), ".nox/lint")


def test_frees_everything_but_runs(clean: Clean, checkout: Path) -> None:
    lines = clean("--yes")

    assert lines[-1].startswith("4.0 KiB")
    assert runs_in(checkout) == ["17-linux", "18-linux"]
    assert list((checkout / ".nox").glob("[!.]*")) == []
    assert list((checkout / ".cache").iterdir()) == []


def test_says_that_runs_have_to_be_named(clean: Clean) -> None:
    assert "--what runs" in line_of(clean(), "out/17-linux")


def test_frees_runs_when_asked_but_the_one_to_keep(clean: Clean, checkout: Path) -> None:
    clean("--what", "runs", "--keep-run", "17", "--yes")

    assert runs_in(checkout) == ["17-linux"]


def test_keeps_what_a_running_stage_uses(clean: Clean, checkout: Path) -> None:
    with FileLock(checkout / ".nox" / ".build_torch.lock"):
        lines = clean("--yes", "--what", "environments", "runs")

    assert "a running stage" in line_of(lines, ".nox/build_torch")
    assert (checkout / ".nox" / "build_torch").is_dir()
    assert not (checkout / ".nox" / "lint").exists()
    # The stage may write into a run.
    assert runs_in(checkout) == ["17-linux", "18-linux"]


def test_keeps_what_changed_lately(clean: Clean, checkout: Path) -> None:
    lines = clean("--yes", "--older-than", "1")

    assert "--older-than 1" in line_of(lines, ".nox/lint")
    assert (checkout / ".nox" / "lint").is_dir()


@pytest.mark.parametrize("link", ["src/linked", ".cache/link"])
def test_keeps_links_and_what_they_lead_to(clean: Clean, checkout: Path, link: str) -> None:
    elsewhere = checkout.with_name("elsewhere")
    (elsewhere / "torch").mkdir(parents=True)
    make_link(checkout / link, elsewhere)

    lines = clean("--yes", "--what", *KINDS)

    assert "a link" in line_of(lines, link)
    assert (elsewhere / "torch").is_dir()


def test_does_not_count_bytes_that_another_folder_shares(clean: Clean, checkout: Path) -> None:
    # An installer's cache has it, too.
    os.link(checkout / ".nox" / "lint" / "file", checkout.with_name("shared"))

    lines = clean("--yes", "--what", "environments")

    assert " 0 B " in line_of(lines, ".nox/lint")
    assert checkout.with_name("shared").is_file()


@pytest.mark.parametrize(
    ("options", "mention"),
    [(("--older-than", "30d"), "30d"), (("--keep-run", "71"), "'17'"), (("--what", "run"), "runs")],
)
def test_a_mistake_frees_nothing(
    checkout: Path, capsys: pytest.CaptureFixture[str], options: tuple[str, ...], mention: str
) -> None:
    assert run_verb("ci", "clean", "--yes", *options) == UsageError.exit_code

    assert mention in capsys.readouterr().err
    for folder in FOLDERS:
        assert (checkout / folder).is_dir()


def test_says_what_to_do_where_there_is_no_run_to_keep(
    checkout: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    shutil.rmtree(checkout / "out")

    assert run_verb("ci", "clean", "--keep-run", "17") == UsageError.exit_code
    assert "Leave the option out" in capsys.readouterr().err


# --- Trees with the user's work --------------------------------------------------------------


def commit_tree(tree: Path, *, is_checkout: bool = True) -> None:
    """Make a tree of sources with one commit, which a checkout marks as upstream's."""
    repos.commit_files(tree, {"setup.py": ""})
    if is_checkout:
        repos.run_git(tree, "update-ref", UPSTREAM_REF, "HEAD")


@pytest.fixture
def trees(checkout: Path) -> Path:
    return checkout / "src" / "main"


@pytest.mark.processes
def test_frees_a_tree_without_changes(clean: Clean, trees: Path) -> None:
    commit_tree(trees / "clean")

    clean("--yes", "--what", "trees")

    assert not (trees / "clean").exists()


@pytest.mark.processes
@pytest.mark.parametrize("work", ["edited", "committed", "stashed"])
def test_keeps_a_tree_with_the_users_work(clean: Clean, trees: Path, work: str) -> None:
    tree = trees / work
    commit_tree(tree)
    (tree / "setup.py").write_text("print()")
    if work == "committed":
        repos.run_git(tree, "checkout", "-qb", "mine")
        repos.run_git(tree, "commit", "-qam", "mine")
        repos.run_git(tree, "checkout", "-q", "main")
    elif work == "stashed":
        repos.run_git(tree, "stash")

    lines = clean("--yes", "--what", "trees")

    assert "edits or commits" in line_of(lines, f"src/main/{work}")
    assert tree.is_dir()


@pytest.mark.processes
def test_keeps_a_tree_that_no_stage_made(clean: Clean, trees: Path) -> None:
    commit_tree(trees / "theirs", is_checkout=False)

    lines = clean("--yes", "--what", "trees")

    assert "not one of ours" in line_of(lines, "src/main/theirs")
    assert (trees / "theirs").is_dir()


def test_counts_and_frees_what_a_killed_program_left(checkout: Path, clean: Clean) -> None:
    leftover = checkout / "out" / ".payload.0123456789ab.part"
    leftover.mkdir()
    (leftover / "file").write_bytes(b"x" * 2048)
    journals = checkout / ".cache" / temporary.JOURNALS
    journals.mkdir()
    (journals / "1.txt").write_text(f"{leftover}\n")
    (journals / "1.lock").touch()

    assert "leftovers" in line_of(clean(), leftover.name)
    assert leftover.exists()
    clean("--yes")

    assert not leftover.exists()
    assert journals.exists()
