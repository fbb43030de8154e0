from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from core import process
from core.errors import EnvironmentSetupError, UsageError
from pytorch_build.build.options import add_build_options, build_choices_from

if TYPE_CHECKING:
    from pytorch_build.build.options import BuildChoices


def choices(*words: str, platform: str = "linux") -> BuildChoices:
    parser = argparse.ArgumentParser(allow_abbrev=False)
    add_build_options(parser)
    return build_choices_from(parser.parse_args(words), platform=platform)


def test_nothing_is_chosen_by_default() -> None:
    chosen = choices()
    assert dict(chosen.own_trees) == {}
    assert chosen.flash_attention is None
    assert chosen.compiler_cache is None
    assert (chosen.depth, chosen.max_jobs, chosen.gpu_targets) == (1, "", "")
    assert not (chosen.clean)
    assert not (chosen.update)


@pytest.mark.parametrize(
    ("option", "project"),
    [
        ("--triton-dir", "triton"),
        ("--pytorch-dir", "torch"),
        ("--pytorch-audio-dir", "audio"),
        ("--pytorch-vision-dir", "vision"),
        ("--apex-dir", "apex"),
    ],
)
def test_own_trees_are_absolute(
    option: str, project: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert dict(choices(option, "mine").own_trees) == {project: tmp_path / "mine"}


@pytest.mark.parametrize("platform", ["linux", "windows"])
def test_flash_attention_is_the_platforms_own(platform: str) -> None:
    other = "windows" if platform == "linux" else "linux"
    enable, disable = (f"--{word}enable-pytorch-flash-attention-{platform}" for word in ("", "no-"))
    assert choices(enable, platform=platform).flash_attention is True
    assert choices(disable, platform=platform).flash_attention is False
    assert choices(enable, platform=other).flash_attention is None


def test_a_compiler_cache_is_given_by_its_absolute_path(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(process, "which", lambda name: Path(f"bin/{name}"))
    cache = choices("--compiler-cache", "ccache").compiler_cache
    assert cache is not None
    assert (cache.kind, cache.program) == ("ccache", Path.cwd() / "bin" / "ccache")


def test_a_compiler_cache_that_is_not_there_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(process, "which", lambda _name: None)
    with pytest.raises(EnvironmentSetupError, match="sccache is not on the PATH"):
        choices("--compiler-cache", "sccache")


def test_where_a_compiler_caches_entries_lie(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(process, "which", lambda name: Path(f"bin/{name}"))
    plain = choices("--compiler-cache", "sccache")
    assert (plain.compiler_cache_store, plain.compiler_cache_read_only) == ("", False)
    chosen = choices(
        "--compiler-cache=sccache", "--compiler-cache-store=s3://mine", "--compiler-cache-read-only"
    )
    assert (chosen.compiler_cache_store, chosen.compiler_cache_read_only) == ("s3://mine", True)
    # before hours are spent
    with pytest.raises(UsageError, match="ccache does not speak S3"):
        choices("--compiler-cache=ccache", "--compiler-cache-store=s3://mine")
    for alone in ("--compiler-cache-store=s3://mine", "--compiler-cache-read-only"):
        with pytest.raises(UsageError, match="say how a compiler cache is used") as without:
            choices(alone)
        assert "--compiler-cache sccache" in without.value.hint


def test_a_compiler_cache_may_come_from_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(process, "which", lambda name: Path(f"bin/{name}"))
    monkeypatch.setenv("COMPILER_CACHE", "sccache")
    monkeypatch.setenv("COMPILER_CACHE_STORE", "s3://mine")
    chosen = choices()
    assert chosen.compiler_cache is not None
    assert (chosen.compiler_cache.kind, chosen.compiler_cache_store) == ("sccache", "s3://mine")
    assert choices("--compiler-cache-store=local").compiler_cache_store == "local"
    # as a workflow passes variables that nobody has set
    for name in ("COMPILER_CACHE", "COMPILER_CACHE_STORE"):
        monkeypatch.setenv(name, "")
    assert choices().compiler_cache is None
    monkeypatch.setenv("COMPILER_CACHE", "scache")
    with pytest.raises(UsageError, match="COMPILER_CACHE='scache' is no compiler cache") as wrong:
        choices()
    assert "sccache" in wrong.value.hint


def test_mirrors_are_prefix_and_place() -> None:
    chosen = choices("--git-mirror", "https://github.com/=/m/", "--git-mirror", "https://gitlab.com/=/g/?a=b")
    assert dict(chosen.mirrors) == {"https://github.com/": "/m/", "https://gitlab.com/": "/g/?a=b"}
    for wrong in ("nothing", "=there", "here="):
        with pytest.raises(UsageError, match="PREFIX=MIRROR"):
            choices("--git-mirror", wrong)
