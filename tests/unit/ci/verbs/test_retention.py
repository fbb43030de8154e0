from __future__ import annotations

import os
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

import pytest

from ci.cleanup.plan import retention as load
from ci.promote import documents
from ci.promote.documents import Decision, PromotedFile, StagedFile, StagingRecord
from ci.publish.buckets import buckets
from ci.verbs import retention
from core.errors import DataError, FatalError, MissingInputError, StoreError, UsageError
from core.files import sha256
from core.stores.directory import DirectoryStore
from core.stores.s3 import open_bucket
from core.wheel import distributions
from tests.kit import stores
from tests.kit.front_doors import run_ci
from tests.kit.memory_store import MemoryStore

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from types_boto3_s3 import S3Client

    from core.stores import Store

FAMILY = "gfx94X-dcgpu"
STAGED = documents.folder(documents.STAGING, FAMILY)
DAYS = 86_400


def door(store: object, *words: str, release_type: str = "nightly") -> int:
    return run_ci("retention", "--store", str(store), "--release-type", release_type, *words)


@pytest.fixture(autouse=True)
def few(monkeypatch: pytest.MonkeyPatch) -> None:
    """Keep two of each: the data's ten would need much to be made."""
    data = load()
    policies = {name: one.model_copy(update={"newest": 2}) for name, one in data.policies.items()}
    monkeypatch.setattr(retention, "retention", lambda: data.model_copy(update={"policies": policies}))


def later(monkeypatch: pytest.MonkeyPatch, days: int) -> None:
    monkeypatch.setattr(retention, "_now", lambda: datetime.now(UTC) + timedelta(days=days))


@pytest.fixture(name="folder")
def folder_fixture(tmp_path: Path) -> DirectoryStore:
    return DirectoryStore(tmp_path / "bucket")


@pytest.fixture(name="bucket")
def bucket_fixture(aws: S3Client) -> Store:
    aws.create_bucket(Bucket="releases")
    return open_bucket("s3://releases")


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
        key, digest = f"{STAGED}/{path.name}", sha256(path)
        record, sidecar = distributions.describe(path, key=key, sha256=digest)
        store.put_file(key, path, sha256=digest, replace=False)
        store.put_bytes(f"{key}.metadata", sidecar or b"")
        files.append(record.model_dump(mode="json"))
    staging_record(store, files)
    documents.write_pages(store, documents.STAGING, FAMILY, expected=())


def staging_record(
    store: Store, files: list[dict[str, Any]], *, of: str = "s3://elsewhere", run: str = "1"
) -> None:
    """Write down what was staged of a run, as `stage` does."""
    record = StagingRecord(
        family=FAMILY,
        run_id=run,
        platform="linux",
        store=of,
        prefix=f"{run}-linux",
        artifact_group=FAMILY,
        staged="2026-01-01T00:00:00+00:00",
        files=tuple(StagedFile(**one, source_key=one["key"]) for one in files),
        records=(),
    )
    store.put_bytes(documents.staging_record(FAMILY, record.prefix), documents.serialized(record))


def keys(store: Store) -> set[str]:
    return {one.key for one in store.list("")}


def wheels(store: Store) -> list[str]:
    return sorted(key.rpartition("/")[2].split("-py3")[0] for key in keys(store) if key.endswith(".whl"))


def page(store: Store) -> str:
    return store.read(f"{STAGED}/index.html").decode()


def test_old_versions_go_and_required_ones_stay(staged: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    later(monkeypatch, 130)
    assert door(staged.url, "--yes") == 0
    assert wheels(staged) == ["rocm-7.1", "rocm-7.4", "rocm-7.5", "torch-2.10"]
    assert "rocm-7.2" not in page(staged)
    assert "rocm-7.1" in page(staged)
    assert not [key for key in keys(staged) if "rocm-7.2" in key or "rocm-7.3" in key]
    before = keys(staged)
    assert door(staged.url, "--yes") == 0
    assert keys(staged) == before


def test_files_in_promotion_stay_until_it_ends(staged: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    name = "rocm-7.2-py3-none-any.whl"
    file = PromotedFile(
        family=FAMILY,
        name=name,
        key=f"v2/{FAMILY}/{name}",
        size=1,
        sha256="0" * 64,
        distribution="rocm",
        version="7.2",
        staged_key=f"{STAGED}/{name}",
        staged_sha256="0" * 64,
    )
    said = {"set_name": "set", "identity": "1", "release_type": "nightly", "decided": "2026", "by": "one"}
    decision = Decision(**said, staging=(), rulings=(), files=(file,))
    staged.put_bytes(decision.intent_key, documents.serialized(decision))
    later(monkeypatch, 130)
    assert door(staged.url, "--yes") == 0
    assert wheels(staged) == ["rocm-7.1", "rocm-7.2", "rocm-7.4", "rocm-7.5", "torch-2.10"]
    assert staged.find(f"{STAGED}/{name}.metadata") is not None
    staged.delete(decision.intent_key)
    assert door(staged.url, "--yes") == 0
    assert "rocm-7.2" not in wheels(staged)


def test_a_dry_run_and_a_forgotten_yes_delete_nothing(
    staged: Store, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    before = keys(staged)
    later(monkeypatch, 130)
    assert door(staged.url, "--dry-run") == 0
    said = capsys.readouterr().err
    assert "2 of 6 runs and versions" in said
    assert f"{STAGED}/rocm 7.2" in said
    assert "130 days old, kept for 120" in said
    assert "a version that stays requires it" in said
    assert door(staged.url) == UsageError.exit_code
    assert "nothing was deleted" in capsys.readouterr().err
    assert keys(staged) == before


@pytest.mark.usefixtures("staged_days")
def test_a_day_to_plan_for_is_never_deleted_by(folder: DirectoryStore) -> None:
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


def test_pages_elsewhere_keep_runs(bucket: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for number in range(1, 7):
        bucket.put_bytes(f"{number}-linux/python/g/x-1.0-py3-none-any.whl", b"x")
    address = "https://releases.s3.amazonaws.com/1-linux/python/g/x-1.0-py3-none-any.whl#sha256=0"
    other = DirectoryStore(tmp_path / "other")
    other.put_bytes("v2/g/index.html", f'<a href="{address}">x</a>'.encode())
    later(monkeypatch, 200)
    assert door("s3://releases", "--yes", "--distribution-store", str(other.root)) == 0
    assert {key.split("/")[0] for key in keys(bucket)} == {"1-linux", "6-linux", "5-linux"}


@pytest.mark.usefixtures("staged_days")
@pytest.mark.parametrize(
    ("key", "content"),
    [("v2/g/simple/torch/index.json", b"{"), (documents.staging_record(FAMILY, "1-linux"), b"{}")],
)
def test_an_unreadable_page_or_record_stops_it(folder: DirectoryStore, key: str, content: bytes) -> None:
    folder.put_bytes(key, content)
    before = keys(folder)
    assert door(folder.root, "--yes", "--at-most", "100") == DataError.exit_code
    assert keys(folder) == before


@pytest.mark.usefixtures("staged_days")
def test_a_plan_that_takes_most_needs_a_word_more(
    folder: DirectoryStore, capsys: pytest.CaptureFixture[str]
) -> None:
    before = keys(folder)
    assert door(folder.root, "--yes") == StoreError.exit_code
    said = capsys.readouterr().err
    assert "3 of 5 runs and versions would be deleted, which is more than 50 %" in said
    assert "--at-most 60" in said
    assert keys(folder) == before
    assert door(folder.root, "--yes", "--at-most", "60") == 0
    assert keys(folder) == {"4-linux/x", "5-linux/x"}


@pytest.mark.usefixtures("staged_days")
def test_a_policy_can_be_named(folder: DirectoryStore) -> None:
    for name in ("weekly", "rc", "release"):
        assert door(folder.root, "--yes", "--policy", name) == 0
    assert len(keys(folder)) == 5
    assert door(folder.root, "--yes", "--policy", "nigthly") == UsageError.exit_code


@pytest.mark.parametrize(
    ("words", "error"),
    [
        (("--dry-run",), MissingInputError),
        (("--today", "yesterday"), UsageError),
        (("--today", "2026-13-01"), UsageError),
    ],
)
def test_an_empty_store_and_a_day_that_is_none_are_mistakes(
    folder: DirectoryStore, words: tuple[str, ...], error: type[FatalError]
) -> None:
    assert door(folder.root, *words) == error.exit_code


@pytest.mark.usefixtures("staged_days")
@pytest.mark.parametrize(("there", "left"), [(b"x", {"1", "4", "5"}), (b"", {"4", "5"})])
def test_a_staged_run_stays(folder: DirectoryStore, tmp_path: Path, there: bytes, left: set[str]) -> None:
    releases = DirectoryStore(tmp_path / "releases")
    key = f"{STAGED}/rocm-7.1-py3-none-any.whl"
    facts = {"name": "x", "key": key, "size": 1, "sha256": "0" * 64, "distribution": "x", "version": "1"}
    staging_record(releases, [facts], of=folder.url, run="1")
    staging_record(releases, [facts], of="s3://elsewhere", run="2")
    if there:
        releases.put_bytes(key, there)
    words = ("--yes", "--at-most", "100", "--distribution-store", str(releases.root))
    assert door(folder.root, *words) == 0
    assert {one.partition("-")[0] for one in keys(folder)} == left


def test_a_bucket_of_the_data_has_the_releases_of_its_type() -> None:
    stores = retention.releases_of(buckets(), "s3://therock-nightly-artifacts")
    assert stores == ["s3://therock-nightly-python"]
    others = ("s3://therock-ci-artifacts", "s3://therock-ci-artifacts-external", "s3://mine", "out", "")
    assert not any(retention.releases_of(buckets(), one) for one in others)


def test_killed_at_any_write_no_page_lists_what_is_gone_and_the_next_run_ends_it(
    tmp_path: Path, make_wheel: Callable[..., Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    for each in ("core.parallel.each", "ci.publish.index.each"):
        monkeypatch.setattr(each, lambda action, items, **_: [action(one) for one in items])
    start = MemoryStore(folder_pages=False)
    stage(start, [make_wheel(tmp_path / "dist", "rocm", f"7.{number}") for number in range(1, 6)])

    def work(store: MemoryStore) -> None:
        monkeypatch.setattr("ci.verbs.retention.open_store", lambda *_, **__: store)
        assert door(store.url, "--yes", "--at-most", "100") == 0

    undisturbed = start.copy_of()
    work(undisturbed)
    assert wheels(undisturbed) == ["rocm-7.4", "rocm-7.5"]
    assert stores.audit(undisturbed, documents.STAGING) == 4
    # two pages of the project, the flat one and what the index remembers; three wheels, three sidecars
    assert undisturbed.writes == 4 + 6

    for moment, store in stores.interruptions(start, work):
        stores.audit(store, documents.STAGING)
        stores.audit_every_write(store, documents.STAGING)
        work(store)

        assert store.objects == undisturbed.objects, f"killed {moment}"
