import argparse
from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest

from core.errors import UsageError
from core.packages.options import (
    SourceOptions,
    absolute_links,
    add_package_source,
    add_staged_source,
    below,
    options_of_tested_source,
    source_options,
)
from tests.kit.windows import absolute


def parse_options(
    *arguments: str, prefixes: Sequence[str] = ("",), variables: Mapping[str, str] | None = None
) -> SourceOptions:
    """Parse options whose names begin with one of the prefixes."""
    parser = argparse.ArgumentParser()
    add_package_source(parser, "x", *prefixes)
    return source_options(parser.parse_args(arguments), prefixes[0], variables or {})


def test_reads_a_source_from_options() -> None:
    options = parse_options("--find-links", "/a", "--index-url", "https://c", "--index-subdir", "/d/")

    assert options.find_links == (absolute("/a"),)
    assert options.index_urls == ("https://c",)
    assert options.index_subdir == "d"
    assert options.named


def test_ignores_an_empty_option() -> None:
    assert parse_options("--index-url=https://c", "--index-url=").index_urls == ("https://c",)


def test_no_option_names_no_source() -> None:
    assert not parse_options().named


@pytest.mark.parametrize("prefixes", [("rocm-",), ("rocm-", "")], ids=["one prefix", "two prefixes"])
def test_reads_options_with_a_prefix(prefixes: Sequence[str]) -> None:
    options = parse_options(
        "--rocm-index",
        "dev",
        "--rocm-version=7",
        "--rocm-run-id=9",
        "--rocm-find-links=/b",
        prefixes=prefixes,
    )

    assert options.index_name == "dev"
    assert options.version == "7"
    assert options.run_id == "9"
    assert options.find_links == (absolute("/b"),)
    assert options.prefix == "--rocm-"


def test_reads_a_list_from_options_of_two_prefixes() -> None:
    options = parse_options("--rocm-find-links=/b", "--find-links=/a", prefixes=("rocm-", ""))

    assert options.find_links == (absolute("/b"), absolute("/a"))


VARIABLES = {
    "ROCM_PACKAGE_INDEX_URL": "",
    "ROCM_PACKAGE_FIND_LINKS_URL": "https://page",
    "ROCM_PACKAGE_VERSION": "7",
}


def test_inputs_of_a_workflow_name_a_source() -> None:
    options = parse_options(prefixes=("rocm-",), variables=VARIABLES)

    assert options.find_links == ("https://page",)
    assert options.index_urls == ()
    assert options.version == "7"


def test_options_win_over_inputs_of_a_workflow() -> None:
    options = parse_options(
        "--rocm-index-url=https://mine", "--rocm-version=8", prefixes=("rocm-",), variables=VARIABLES
    )

    assert options.find_links == ()
    assert options.index_urls == ("https://mine",)
    assert options.version == "8"


@pytest.mark.parametrize("index", ["https://a.example/v2", "https://a.example/v2/"])
@pytest.mark.parametrize("folder", ["gfx110X-all", "/gfx110X-all/"])
def test_joins_an_index_and_a_folder_below_it(index: str, folder: str) -> None:
    assert below(index, folder) == "https://a.example/v2/gfx110X-all/"


def parse_tested_source(*arguments: str) -> SourceOptions:
    """Parse the options of a test."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--no-install", action="store_true")
    add_staged_source(add_package_source(parser, "x", ""))
    return options_of_tested_source(parser.parse_args(arguments))


def test_a_test_takes_staged_wheels_of_a_store() -> None:
    options = parse_tested_source("--staged", "--distribution-store", "s3://releases")

    assert options == SourceOptions(staged=True, distribution_store="s3://releases")
    assert not options.named


@pytest.mark.parametrize(
    ("arguments", "mentioned"),
    [
        (["--distribution-store", "s3://releases"], "--distribution-store"),
        (["--staged", "--find-links", "/a"], "--find-links"),
        (["--staged", "--no-install"], "--no-install"),
    ],
    ids=["a store alone", "another source", "what is installed"],
)
def test_rejects_options_that_contradict_staging(arguments: list[str], mentioned: str) -> None:
    with pytest.raises(UsageError) as raised:
        parse_tested_source(*arguments)

    assert mentioned in f"{raised.value.message} {raised.value.hint}"


def test_leaves_an_index_without_a_folder_as_it_is() -> None:
    assert below("https://a.example/v2", "") == "https://a.example/v2"


@pytest.mark.parametrize(
    ("link", "place"),
    [
        ("wheels", str(Path("{folder}/wheels"))),
        ("/data/wheels", absolute("/data/wheels")),
        ("https://a.example/index.html", "https://a.example/index.html"),
        (Path(absolute("/my data")).as_uri(), absolute("/my data")),
    ],
)
def test_names_folders_from_where_commands_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, link: str, place: str
) -> None:
    monkeypatch.chdir(tmp_path)

    assert absolute_links([link]) == (place.format(folder=Path.cwd()),)
