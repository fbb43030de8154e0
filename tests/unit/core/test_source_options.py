from __future__ import annotations

import argparse
from pathlib import Path

import pytest

from core.installer import Sources
from core.named_sources import absolute, add_find_links, add_index_subdir, add_index_urls, alone, below


def test_sources_are_named_more_than_once_and_under_each_name() -> None:
    parser = argparse.ArgumentParser()
    group = parser.add_argument_group("sources")
    add_find_links(group, "--rocm-find-links", "--find-links")
    add_index_urls(group, "--index-url")
    add_index_subdir(group)
    words = ["--find-links", "a", "--rocm-find-links=b", "--index-url", "c", "--index-subdir", "d"]
    assert vars(parser.parse_args(words)) == {
        "rocm_find_links": ["a", "b"],
        "index_url": ["c"],
        "index_subdir": "d",
    }
    assert vars(parser.parse_args([])) == {"rocm_find_links": [], "index_url": [], "index_subdir": ""}


@pytest.mark.parametrize("folder", ["gfx110X-all", "/gfx110X-all/"])
def test_a_folder_lies_below_its_index(folder: str) -> None:
    assert below("https://a.example/v2", folder) == "https://a.example/v2/gfx110X-all/"
    assert below("https://a.example/v2/", folder) == "https://a.example/v2/gfx110X-all/"
    assert below("https://a.example/v2", "") == "https://a.example/v2"


def test_folders_are_named_from_where_the_command_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    links = ("wheels", "/data/wheels", "https://a.example/index.html", "file:///data")
    assert absolute(links) == (str(Path.cwd() / "wheels"), *links[1:])


def test_named_sources_are_asked_alone() -> None:
    assert alone(["https://a.example/", "https://b.example/"], ["/data"], cert="/ca.pem") == Sources(
        index_url="https://a.example/",
        extra_index_urls=("https://b.example/",),
        find_links=("/data",),
        cert="/ca.pem",
    )
    assert alone([], ["/data"], cert="") == Sources(find_links=("/data",), no_index=True)
