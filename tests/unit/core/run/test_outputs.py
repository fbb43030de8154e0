from pathlib import Path
from urllib.parse import unquote, urlsplit

import pytest
from hypothesis import given
from hypothesis import strategies as st

from core.errors import UsageError
from core.run import RunOutputs
from core.stores.directory import DirectoryStore

GROUP = "gfx110X-all"
RUN_IDS = st.from_regex(r"[A-Za-z0-9][A-Za-z0-9._-]{0,20}", fullmatch=True)
WHEELS = st.from_regex(r"torch-2\.10\.0(a0)?\+(dev)?rocm7\.[0-9]{1,2}(\.dev0)?-cp312-cp312-linux_x86_64\.whl")


def of(run_id: str = "17123441166", **more: str) -> RunOutputs:
    return RunOutputs(run_id=run_id, platform="linux", bucket="artifacts", **more)


def test_the_layout_of_a_run() -> None:
    run = of(external_repo="ROCm-TheRock/")
    assert run.prefix == "ROCm-TheRock/17123441166-linux"
    assert run.url_of(run.prefix) == "https://artifacts.s3.amazonaws.com/ROCm-TheRock/17123441166-linux"
    assert run.python_prefix(GROUP) == f"{run.prefix}/python/gfx110X-all"
    assert run.python_index_prefix(GROUP) == f"{run.prefix}/python/gfx110X-all/simple"
    assert run.python_index_url(GROUP) == f"{run.url_of(run.prefix)}/python/gfx110X-all/simple/"
    assert run.python_find_links_url(GROUP) == f"{run.url_of(run.prefix)}/python/gfx110X-all/index.html"
    assert run.manifests_prefix(GROUP) == f"{run.prefix}/manifests/gfx110X-all"
    assert run.source_lock_key("release/2.10") == f"{run.prefix}/manifests/source-lock-release-2.10.json"
    assert run.record_key(GROUP, "build_torch-release/2.10") == (
        f"{run.prefix}/manifests/gfx110X-all/build_torch-release-2.10.json"
    )
    assert run.logs_prefix(GROUP) == f"{run.prefix}/logs/gfx110X-all"
    assert run.reports_prefix(GROUP) == f"{run.prefix}/reports/gfx110X-all"


@given(RUN_IDS, WHEELS)
def test_addresses_survive_the_plus_of_a_version(run_id: str, wheel: str) -> None:
    run = of(run_id)
    key = f"{run.python_prefix(GROUP)}/{wheel}"
    url = run.url_of(key)
    assert "+" not in url  # S3 reads it as a space
    assert unquote(urlsplit(url).path) == f"/{key}"
    assert urlsplit(url).query == urlsplit(url).fragment == ""


@pytest.mark.parametrize("run_id", ["", "..", ".hidden", "a/b", "../1", "a b", "1\n", "-x", "ü"])
def test_what_is_no_run_id_is_refused(run_id: str) -> None:
    with pytest.raises(UsageError, match="is not a run id"):
        of(run_id)


def test_addresses_are_those_of_the_store_where_it_has_its_own(tmp_path: Path) -> None:
    run = RunOutputs(run_id="17", platform="linux").at(DirectoryStore(tmp_path / "a b"))
    page = f"{(tmp_path / 'a b').as_uri()}/17-linux/python/{GROUP}/index.html"
    assert run.python_find_links_url(GROUP) == page
    endpoint = RunOutputs(run_id="17", platform="linux", bucket="b", address="http://127.0.0.1:9000/b")
    assert endpoint.url_of(endpoint.prefix) == "http://127.0.0.1:9000/b/17-linux"
    assert endpoint.url_of("17-linux/a+b") == "http://127.0.0.1:9000/b/17-linux/a%2Bb"
