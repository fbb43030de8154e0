from collections.abc import Callable
from pathlib import Path
from urllib.parse import unquote, urlsplit

import pytest
from hypothesis import given
from hypothesis import strategies as st

from core.errors import UsageError
from core.run import RunOutputs, record_keys_by_group
from core.stores.directory import DirectoryStore

GROUP = "gfx110X-all"
PREFIX = "ROCm-TheRock/17123441166-linux"
ADDRESS = f"https://artifacts.s3.amazonaws.com/{PREFIX}"

LETTERS = "ABCXYZabcxyz0123456789"
RUN_IDS = st.builds(str.__add__, st.sampled_from(LETTERS), st.text(f"{LETTERS}._-", max_size=20))
VERSIONS = st.builds(
    "2.10.0{}+{}rocm7.{}{}".format,
    st.sampled_from(["", "a0"]),
    st.sampled_from(["", "dev"]),
    st.integers(0, 99),
    st.sampled_from(["", ".dev0"]),
)


def run_in_bucket(run_id: str = "17123441166", *, external_repo: str = "") -> RunOutputs:
    """Return a run whose outputs are in a bucket of Amazon's."""
    return RunOutputs(
        run_id=run_id,
        platform="linux",
        external_repo=external_repo,
        address="https://artifacts.s3.amazonaws.com",
    )


PathOf = Callable[[RunOutputs], str]


@pytest.mark.parametrize(
    ("path_of", "path"),
    [
        (lambda run: run.prefix, PREFIX),
        (lambda run: run.url_of(run.prefix), ADDRESS),
        (lambda run: run.python_prefix(GROUP), f"{PREFIX}/python/{GROUP}"),
        (lambda run: run.python_index_prefix(GROUP), f"{PREFIX}/python/{GROUP}/simple"),
        (lambda run: run.python_index_url(GROUP), f"{ADDRESS}/python/{GROUP}/simple/"),
        (lambda run: run.python_find_links_url(GROUP), f"{ADDRESS}/python/{GROUP}/index.html"),
        (lambda run: run.manifests_prefix(GROUP), f"{PREFIX}/manifests/{GROUP}"),
        (
            lambda run: run.source_lock_key("release/2.10"),
            f"{PREFIX}/manifests/source-lock-release-2.10.json",
        ),
        (
            lambda run: run.record_key(GROUP, "build_torch-release/2.10"),
            f"{PREFIX}/manifests/{GROUP}/build_torch-release-2.10.json",
        ),
        (lambda run: run.logs_prefix(GROUP), f"{PREFIX}/logs/{GROUP}"),
        (lambda run: run.reports_prefix(GROUP), f"{PREFIX}/reports/{GROUP}"),
    ],
    ids=[
        "run",
        "address",
        "packages",
        "index",
        "address of the index",
        "address of the flat page",
        "records",
        "source lock",
        "record",
        "logs",
        "reports",
    ],
)
def test_lays_the_outputs_of_a_run_out(path_of: PathOf, path: str) -> None:
    run = run_in_bucket(external_repo="ROCm-TheRock/")

    assert path_of(run) == path


@given(RUN_IDS, VERSIONS)
def test_addresses_survive_the_plus_of_a_version(run_id: str, version: str) -> None:
    run = run_in_bucket(run_id)
    key = f"{run.python_prefix(GROUP)}/torch-{version}-cp312-cp312-linux_x86_64.whl"

    url = run.url_of(key)

    assert "+" not in url  # S3 reads it as a space
    assert unquote(urlsplit(url).path) == f"/{key}"
    assert urlsplit(url).query == ""
    assert urlsplit(url).fragment == ""


@pytest.mark.parametrize("run_id", ["", "..", ".hidden", "a/b", "../1", "a b", "1\n", "-x", "ü"])
def test_rejects_what_is_no_run_id(run_id: str) -> None:
    with pytest.raises(UsageError) as raised:
        run_in_bucket(run_id)

    assert repr(run_id) in raised.value.message


def test_addresses_are_those_of_a_folder_that_is_the_store(tmp_path: Path) -> None:
    folder = tmp_path / "a b"

    run = RunOutputs(run_id="17", platform="linux").at(DirectoryStore(folder))

    assert run.python_find_links_url(GROUP) == f"{folder.as_uri()}/17-linux/python/{GROUP}/index.html"


def test_addresses_are_those_of_an_endpoint() -> None:
    run = RunOutputs(run_id="17", platform="linux", address="http://127.0.0.1:9000/b")

    assert run.url_of("17-linux/a+b") == "http://127.0.0.1:9000/b/17-linux/a%2Bb"


def test_finds_records_by_their_group_among_all_manifests() -> None:
    run = run_in_bucket()
    record_key = run.record_key("cpu", "build_torch-nightly-cp312")
    keys = [
        run.plan_key,
        run.source_lock_key("nightly"),
        f"{run.manifests_prefix(GROUP)}/therock_manifest.json",
        record_key,
    ]

    assert record_keys_by_group(run, keys) == {"cpu": [record_key]}
