import os
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from filelock import FileLock

from ci.verbs import clean
from core.cli.options import common_from
from core.errors import UsageError
from core.run import RunOutputs, records
from core.stores.directory import DirectoryStore
from pytorch_build.sources.checkout import UPSTREAM_REF
from tests.kit.front_doors import run_ci

RECORD = records.Record(
    stage="build_torch", run_id="17", platform="linux", started="2026-11-20T00:00:00+00:00", seconds=90
)


@pytest.fixture
def call(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Callable[..., list[str]]:
    """Call the verb in a checkout with one folder of each kind, for the lines that it prints."""
    monkeypatch.setattr(clean, "common_from", lambda words: replace(common_from(words), root=tmp_path))
    folders = (".nox/lint", ".nox/build_torch", "src/main/.builds/torch-1", ".cache/refs", "out/18-linux")
    for name in folders:
        (tmp_path / name).mkdir(parents=True)
        (tmp_path / name / "file").write_bytes(b"x" * 1024)
    (tmp_path / ".nox" / ".build_torch.lock").touch()
    records.write(
        DirectoryStore(root=tmp_path / "out"), RunOutputs(run_id="17", platform="linux"), "cpu", RECORD
    )

    def run(*words: str) -> list[str]:
        capsys.readouterr()
        assert run_ci("clean", *words) == 0
        return [" ".join(line.split()) for line in capsys.readouterr().err.splitlines()]

    return run


def test_it_says_what_goes_and_frees_nothing_unasked(call: Any, tmp_path: Path) -> None:
    day = time.strftime("%Y-%m-%d")
    before = sorted(tmp_path.rglob("*"))
    for words in ((), ("--yes", "--dry-run")):
        said = call(*words)
        assert f"builds src/main/.builds/torch-1 1.0 KiB {day} 1 min 30 s" in said
        assert f"environments .nox/lint 1.0 KiB {day}" in said
        assert next(line for line in said if line.endswith("not asked for: --what runs")).startswith(
            "runs out/17-linux"
        )
        assert said[-1].startswith("4.0 KiB can be freed")
    assert [one for one in sorted(tmp_path.rglob("*")) if one.suffix != ".lock"] == [
        one for one in before if one.suffix != ".lock"
    ]
    assert call("--yes")[-1] == "4.0 KiB freed."
    assert sorted(
        one.name for one in (tmp_path / "out").iterdir() if one.is_dir() and one.name[0] != "."
    ) == ["17-linux", "18-linux"]
    assert not [*(tmp_path / ".nox").glob("[!.]*"), *(tmp_path / ".cache").iterdir()]
    assert call("--what", "runs", "--keep-run", "17", "--yes")[-1] == "1.0 KiB freed."
    assert not (tmp_path / "out" / "18-linux").exists()
    assert (tmp_path / "out" / "17-linux").is_dir()


def test_what_is_in_use_linked_or_new_stays(call: Any, tmp_path: Path) -> None:
    elsewhere = tmp_path.parent / f"{tmp_path.name}-elsewhere"
    (elsewhere / "torch").mkdir(parents=True)
    (tmp_path / "src" / "linked").symlink_to(elsewhere)
    (tmp_path / ".cache" / "link").symlink_to(elsewhere)
    os.link(tmp_path / ".nox/lint/file", elsewhere / "file")  # an installer's cache has it, too
    with FileLock(tmp_path / ".nox" / ".build_torch.lock"):
        said = call("--yes", "--what", *clean.KINDS)
    assert next(line for line in said if "a running stage holds" in line).startswith(
        "environments .nox/build_torch"
    )
    assert said[-1] == "0 B freed."
    assert not (tmp_path / ".nox" / "lint").exists()
    assert (tmp_path / "out" / "17-linux").exists()  # it may write there
    said = call("--yes", "--older-than", "1")
    assert any(line.endswith("changed since: --older-than 1") for line in said)
    said = call("--yes", "--what", *clean.KINDS)
    assert sum(line.endswith("a link, or outside the checkout") for line in said) == 2
    assert [one.name for one in sorted(elsewhere.iterdir())] == ["file", "torch"]


@pytest.mark.parametrize(
    ("words", "said"),
    [(("--older-than", "30d"), "30d"), (("--keep-run", "71"), "you mean '17'"), (("--what", "run"), "runs")],
)
def test_what_cannot_be_meant_frees_nothing(
    call: Any, capsys: pytest.CaptureFixture[str], words: tuple[str, ...], said: str
) -> None:
    assert call
    assert run_ci("clean", "--yes", *words) == UsageError.exit_code
    assert said in capsys.readouterr().err


@pytest.mark.processes
def test_trees_with_work_of_the_users_stay(call: Any, tmp_path: Path, git: Callable[..., str]) -> None:
    for name in ("ours", "edited", "committed", "stashed", "theirs"):
        tree = tmp_path / "src" / "main" / name
        tree.mkdir(parents=True)
        git(tree, "init", "-q")
        (tree / "setup.py").write_text("")
        git(tree, "add", ".")
        git(tree, "commit", "-qm", "upstream's")
        if name != "theirs":
            git(tree, "update-ref", UPSTREAM_REF, "HEAD")
        if name in {"edited", "stashed", "committed"}:
            (tree / "setup.py").write_text("print()")
        if name == "committed":
            git(tree, "checkout", "-qb", "mine")
            git(tree, "commit", "-qam", "mine")
            git(tree, "checkout", "-q", "main")
        if name == "stashed":
            git(tree, "stash")
    said = call("--yes", "--what", "trees")
    expected = ["committed", "edited", "stashed", "theirs"]
    assert sorted(one.name for one in (tmp_path / "src" / "main").glob("[!.]*")) == expected
    assert sum(line.endswith("edits or commits of your own") for line in said) == 3
    assert sum(line.endswith("not one of ours") for line in said) == 1
