from __future__ import annotations

import argparse
from pathlib import Path

import pytest

from core.packages.options import SourceOptions, absolute, add_package_source, below, source_options


def parsed(words: list[str], *prefixes: str, env: dict[str, str] | None = None) -> SourceOptions:
    parser = argparse.ArgumentParser()
    add_package_source(parser, "x", *prefixes)
    return source_options(parser.parse_args(words), prefixes[0], env or {})


def test_one_group_of_words_serves_every_stage() -> None:
    words = ["--find-links", "/a", "--index-url", "https://c", "--index-url=", "--index-subdir", "/d/"]
    found = parsed(words, "")
    assert (found.find_links, found.index_urls, found.index_subdir) == (("/a",), ("https://c",), "d")
    assert found.named
    assert not parsed([], "").named
    both = [
        "--rocm-find-links=/b",
        "--find-links=/a",
        "--rocm-index",
        "dev",
        "--rocm-version=7",
        "--rocm-run-id=9",
    ]
    for prefixes in (("rocm-",), ("rocm-", "")):
        asked = [one for one in both if len(prefixes) > 1 or not one.startswith("--find")]
        found = parsed(asked, *prefixes)
        assert (found.index_name, found.version, found.run_id, found.prefix) == ("dev", "7", "9", "--rocm-")
        assert found.find_links == (("/b", "/a") if len(prefixes) > 1 else ("/b",))


def test_a_workflows_inputs_count_where_no_option_names_a_source() -> None:
    env = {
        "ROCM_PACKAGE_INDEX_URL": "",
        "ROCM_PACKAGE_FIND_LINKS_URL": "https://page",
        "ROCM_PACKAGE_VERSION": "7",
    }
    found = parsed([], "rocm-", env=env)
    assert (found.find_links, found.index_urls, found.version) == (("https://page",), (), "7")
    mine = parsed(["--rocm-index-url=https://mine", "--rocm-version=8"], "rocm-", env=env)
    assert (mine.find_links, mine.index_urls, mine.version) == ((), ("https://mine",), "8")


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
    assert absolute(list(links)) == (str(Path.cwd() / "wheels"), *links[1:])
