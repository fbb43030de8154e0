from __future__ import annotations

import json
import os
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING

import boto3
import pytest
from moto import mock_aws

from ci import retention
from ci.promotion import layout, release_pages
from ci.retaining.policy import retention as load
from core import distributions
from core.errors import DataError, MissingInputError, StoreError, UsageError
from core.frontdoor import Verb, main
from core.options import environment
from core.stores.directory import DirectoryStore
from core.stores.s3 import open_bucket

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from core.stores import Store

VERBS = (Verb("retention", "ci.retention", "delete what is old"),)
FAMILY = "gfx94X-dcgpu"
STAGED = layout.folder(layout.STAGING, FAMILY)
DAYS = 86_400
CREDENTIALS = {
    "AWS_ACCESS_KEY_ID": "test",
    "AWS_SECRET_ACCESS_KEY": "test",
    "AWS_DEFAULT_REGION": "us-east-1",
}
RUN_FILES = ("python/g/index.html", "manifests/g/x.json", "a_lib_generic.tar.zst")


def door(store: object, *words: str, release_type: str = "nightly") -> int:
    return main("ci", "", VERBS, ["retention", "--store", str(store), "--release-type", release_type, *words])


@pytest.fixture(autouse=True)
def few(monkeypatch: pytest.MonkeyPatch) -> None:
    """Keep two of each: the data's ten would need much to be made."""
    data = load()
    policies = {name: one.model_copy(update={"newest": 2}) for name, one in data.policies.items()}
    monkeypatch.setattr(retention, "retention", lambda: data.model_copy(update={"policies": policies}))


@pytest.fixture(name="later")
def later_fixture(monkeypatch: pytest.MonkeyPatch) -> Callable[[int], None]:
    def days(number: int) -> None:
        monkeypatch.setattr(retention, "_now", lambda: datetime.now(UTC) + timedelta(days=number))

    return days


@pytest.fixture(name="folder")
def folder_fixture(tmp_path: Path) -> DirectoryStore:
    return DirectoryStore(tmp_path / "bucket")


@pytest.fixture(name="bucket")
def bucket_fixture(monkeypatch: pytest.MonkeyPatch) -> Iterator[Store]:
    for name, value in (
        ("ACCESS_KEY_ID", "test"),
        ("SECRET_ACCESS_KEY", "test"),
        ("DEFAULT_REGION", "us-east-1"),
    ):
        monkeypatch.setenv(f"AWS_{name}", value)
    monkeypatch.setenv("AWS_TEST", str(id(monkeypatch)))
    with mock_aws():
        boto3.client("s3").create_bucket(Bucket="releases")
        yield open_bucket("s3://releases", environment())


@pytest.fixture(name="staged", params=["folder", "bucket"])
def staged_fixture(request: pytest.FixtureRequest, tmp_path: Path, make_wheel: Callable[..., Path]) -> Store:
    """Stage rocm 7.1 to 7.5, and a torch that pins 7.1; the pages list them."""
    store: Store = request.getfixturevalue(request.param)
    pin = [("Requires-Dist", "rocm==7.1")]
    paths = [make_wheel(tmp_path / "dist", "rocm", f"7.{number}") for number in range(1, 6)]
    paths.append(make_wheel(tmp_path / "dist", "torch", "2.10", fields=pin))
    stage(store, paths)
    return store


def stage(store: Store, paths: list[Path]) -> None:
    files = []
    for path in paths:
        one = distributions.publish(store, _Folder(STAGED), FAMILY, path)  # type: ignore[arg-type]
        files.append(one.model_dump(mode="json"))
    document = {"schema_version": 1, "status": "ok", "files": files}
    store.put_bytes(f"{layout.manifests(layout.STAGING, FAMILY)}/1.json", _json(document))
    release_pages.write(store, layout.STAGING, FAMILY, expected=())


class _Folder:
    immutable = True

    def __init__(self, prefix: str) -> None:
        self.prefix = prefix

    def python_prefix(self, _group: str) -> str:
        return self.prefix


def _json(value: object) -> bytes:
    return json.dumps(value).encode()


def keys(store: Store) -> set[str]:
    return {one.key for one in store.list("")}


def wheels(store: Store) -> list[str]:
    return sorted(key.rpartition("/")[2].split("-py3")[0] for key in keys(store) if key.endswith(".whl"))


def page(store: Store) -> str:
    return store.read(f"{STAGED}/index.html").decode()


def test_old_versions_go_from_pages_and_bucket_and_what_is_required_stays(
    staged: Store, later: Callable[[int], None]
) -> None:
    later(130)
    assert door(staged.url, "--yes") == 0
    assert wheels(staged) == ["rocm-7.1", "rocm-7.4", "rocm-7.5", "torch-2.10"]
    assert "rocm-7.2" not in page(staged)
    assert "rocm-7.1" in page(staged)
    assert not [key for key in keys(staged) if "rocm-7.2" in key or "rocm-7.3" in key]
    before = keys(staged)
    assert door(staged.url, "--yes") == 0
    assert keys(staged) == before


def test_nothing_goes_before_its_day(staged: Store, later: Callable[[int], None]) -> None:
    before = keys(staged)
    later(119)
    assert door(staged.url, "--yes") == 0
    assert keys(staged) == before


def test_a_dry_run_and_a_forgotten_yes_delete_nothing(
    staged: Store, later: Callable[[int], None], capsys: pytest.CaptureFixture[str]
) -> None:
    before = keys(staged)
    later(130)
    assert door(staged.url, "--dry-run") == 0
    said = capsys.readouterr().err
    assert "2 of 6 runs and versions" in said
    assert f"{STAGED}/rocm 7.2" in said
    assert "130 days old, kept for 120" in said
    assert "a version that stays requires it" in said
    assert door(staged.url) == UsageError.exit_code
    assert "nothing was deleted" in capsys.readouterr().err
    assert keys(staged) == before


def test_a_day_to_plan_for_is_never_deleted_by(folder: DirectoryStore, staged_days: None) -> None:
    del staged_days
    assert door(folder.root, "--today", "2099-01-01", "--yes") == UsageError.exit_code
    assert door(folder.root, "--today", "2099-01-01") == 0


@pytest.fixture(name="staged_days")
def staged_days_fixture(folder: DirectoryStore) -> None:
    fill(folder, {f"{number}-linux/x": 200 - number for number in range(1, 6)})


def fill(store: DirectoryStore, ages: dict[str, float]) -> None:
    for key, days in ages.items():
        store.put_bytes(key, key.encode())
        when = datetime.now(UTC).timestamp() - days * DAYS
        os.utime(store.root / key, (when, when))


def test_runs_go_whole_by_repository_and_platform(folder: DirectoryStore) -> None:
    runs = {
        f"{number}-{platform}": 50 - number for number in range(1, 6) for platform in ("linux", "windows")
    }
    ages: dict[str, float] = {f"{run}/{name}": days for run, days in runs.items() for name in RUN_FILES}
    ages |= {f"me-TheRock/{number}-linux/x": 90 for number in (1, 2)}
    ages |= {"local-linux/x": 99, "python-deps/simple/index.html": 99, "README": 99, "5-linux/late": 0}
    fill(folder, ages)
    assert door(folder.root, "--yes", "--at-most", "100", release_type="ci") == 0
    left = {key.rpartition("/")[0].split("/python")[0].split("/manifests")[0] for key in keys(folder)}
    others = {"me-TheRock/1-linux", "me-TheRock/2-linux", "local-linux", "python-deps/simple", ""}
    assert left == {"4-linux", "5-linux", "4-windows", "5-windows"} | others


def test_what_pages_of_a_release_list_stays_wherever_it_lies(folder: DirectoryStore, tmp_path: Path) -> None:
    name = "torch-1.0-py3-none-any.whl"
    fill(folder, {f"v2-staging/g/torch-{number}.0-py3-none-any.whl": 900 - number for number in range(1, 6)})
    fill(folder, {"v2/g/rocm-1.0-py3-none-any.whl": 900})
    folder.put_bytes("v2/g/index.html", f'<a href="../../v2-staging/g/{name}">x</a>'.encode())
    assert door(folder.root, "--yes") == 0
    assert wheels(folder) == ["rocm-1.0", "torch-1.0", "torch-4.0", "torch-5.0"]
    folder.delete("v2/g/index.html")
    # the same from another store's pages: by the bucket's public address alone, so not for a folder
    other = DirectoryStore(tmp_path / "other")
    other.put_bytes("v2/g/index.html", f'<a href="../../v2-staging/g/{name}">x</a>'.encode())
    assert door(folder.root, "--yes", "--distribution-store", str(other.root)) == 0
    assert "torch-1.0" not in wheels(folder)


def test_another_buckets_release_pages_keep_runs(
    bucket: Store, tmp_path: Path, later: Callable[[int], None]
) -> None:
    for number in range(1, 7):
        bucket.put_bytes(f"{number}-linux/python/g/x-1.0-py3-none-any.whl", b"x")
    address = "https://releases.s3.amazonaws.com/1-linux/python/g/x-1.0-py3-none-any.whl#sha256=0"
    other = DirectoryStore(tmp_path / "other")
    other.put_bytes("v2/g/index.html", f'<a href="{address}">x</a>'.encode())
    later(200)
    assert door("s3://releases", "--yes", "--distribution-store", str(other.root)) == 0
    assert {key.split("/")[0] for key in keys(bucket)} == {"1-linux", "6-linux", "5-linux"}


def test_a_release_page_that_cannot_be_read_stops_it(folder: DirectoryStore, staged_days: None) -> None:
    del staged_days
    folder.put_bytes("v2/g/simple/torch/index.json", b"{")
    before = keys(folder)
    assert door(folder.root, "--yes", "--at-most", "100") == DataError.exit_code
    assert keys(folder) == before


def test_a_plan_that_takes_most_needs_a_word_more(folder: DirectoryStore, staged_days: None) -> None:
    del staged_days
    before = keys(folder)
    assert door(folder.root, "--yes") == StoreError.exit_code
    assert keys(folder) == before
    assert door(folder.root, "--yes", "--at-most", "60") == 0
    assert keys(folder) == {"4-linux/x", "5-linux/x"}


def test_a_policy_can_be_named(folder: DirectoryStore, staged_days: None) -> None:
    del staged_days
    for name in ("weekly", "rc", "release"):
        assert door(folder.root, "--yes", "--policy", name) == 0
    assert len(keys(folder)) == 5
    assert door(folder.root, "--yes", "--policy", "nigthly") == UsageError.exit_code


def test_an_empty_store_is_a_mistake(folder: DirectoryStore) -> None:
    assert door(folder.root, "--dry-run") == MissingInputError.exit_code


@pytest.mark.parametrize("bad", ["yesterday", "2026-13-01"])
def test_a_day_that_is_none_is_refused(folder: DirectoryStore, bad: str) -> None:
    assert door(folder.root, "--today", bad) == UsageError.exit_code
