from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from core.options import ROOT, Common, add_common, common_from, environment
from core.outputs import this_platform
from core.stores.directory import DirectoryStore
from core.stores.dry_run import DryRunStore

if TYPE_CHECKING:
    from collections.abc import Sequence


def parsed(*words: str) -> Common:
    parser = argparse.ArgumentParser(exit_on_error=False)
    add_common(parser)
    return common_from(parser.parse_args(words))


def test_without_options_the_local_run_in_out_is_meant() -> None:
    assert parsed() == Common()
    assert (parsed().run_id, parsed().store, parsed().release_type) == ("local", "out", "ci")
    assert not parsed().outputs.immutable


def test_every_option_arrives() -> None:
    words = [
        *("--torch-ref", "release/2.10", "--refs-file", "refs.toml", "--gpu-family", "cpu", "--run-id", "17"),
        *("--store", "elsewhere", "--release-type", "nightly", "--python", "/venv/bin/python"),
        *("--force", "--dry-run"),
    ]
    assert parsed(*words) == Common(
        torch_ref="release/2.10",
        refs_file=Path("refs.toml"),
        gpu_family="cpu",
        run_id="17",
        store="elsewhere",
        release_type="nightly",
        python=Path("/venv/bin/python"),
        force=True,
        dry_run=True,
    )


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--torch-ref=a", "--torch-ref=b"), "--torch-ref is 'a' here and cannot be 'b' too"),
        (("--gpu-family=cpu", "--amdgpu-family=gfx1100"), "is 'cpu' here and cannot be 'gfx1100' too"),
    ],
)
def test_a_cells_options_cannot_be_contradicted(
    words: Sequence[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises((SystemExit, argparse.ArgumentError)):
        parsed(*words)
    assert said in capsys.readouterr().err


def test_a_cells_options_may_be_repeated() -> None:
    assert parsed("--torch-ref=a", "--gpu-family=cpu", "--torch-ref", "a").torch_ref == "a"


def test_what_a_stage_works_on_follows_from_its_options(tmp_path: Path) -> None:
    common = Common(root=tmp_path, run_id="17")
    assert common.outputs.prefix == f"17-{this_platform()}"
    assert common.open_store() == DirectoryStore(tmp_path / "out")
    assert Common(root=tmp_path, dry_run=True).open_store() == DryRunStore(DirectoryStore(tmp_path / "out"))
    assert (common.sources, common.cache) == (tmp_path / "src", tmp_path / ".cache")
    assert (ROOT / "noxfile.py").is_file()


def test_the_environment_is_given_as_a_copy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MAX_JOBS", "3")
    given = environment()
    monkeypatch.setenv("MAX_JOBS", "4")
    assert given["MAX_JOBS"] == "3"
