"""Deleting what is old: which runs and versions go, which stay, and in which order."""

import os
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from ci.cleanup.plan import retention as load_retention
from ci.promote import documents
from ci.promote.documents import Decision, PromotedFile, Refusal, StagedFile, StagingRecord
from ci.publish.buckets import buckets
from ci.verbs import retention
from core.errors import DataError, FatalError, MissingInputError, StoreError, UsageError
from core.run.records import FileRecord
from core.stores import Store
from core.stores.directory import DirectoryStore
from core.stores.s3 import open_bucket
from core.wheel import distributions
from tests.kit.front_doors import run_verb
from tests.kit.memory_store import MemoryStore
from tests.kit.stores import audit, audit_every_write, interruptions
from tests.kit.wheels import sha256, write_wheel

if TYPE_CHECKING:
    from types_boto3_s3 import S3Client

FAMILY = "gfx94X-dcgpu"
STAGING = documents.folder(documents.STAGING, FAMILY)
DAY = 86_400


def run_retention(store: str, *options: str, release_type: str = "nightly") -> int:
    return run_verb("ci", "retention", "--store", store, "--release-type", release_type, *options)


@pytest.fixture(autouse=True)
def _keep_two(monkeypatch: pytest.MonkeyPatch) -> None:
    """Keep the newest two: the data's ten would need much to be made."""
    data = load_retention()
    policies = {name: policy.model_copy(update={"newest": 2}) for name, policy in data.policies.items()}
    monkeypatch.setattr(retention, "retention", lambda: data.model_copy(update={"policies": policies}))


def pass_days(monkeypatch: pytest.MonkeyPatch, days: int) -> None:
    """Let it be so many days later."""
    monkeypatch.setattr(retention, "_now", lambda: datetime.now(UTC) + timedelta(days=days))


@pytest.fixture
def folder(tmp_path: Path) -> DirectoryStore:
    return DirectoryStore(tmp_path / "bucket")


@pytest.fixture
def bucket(aws: "S3Client") -> Store:
    aws.create_bucket(Bucket="releases")
    return open_bucket("s3://releases")


def keys_of(store: Store) -> set[str]:
    return set(documents.list_keys(store, ""))


def wheels_of(store: Store) -> list[str]:
    """Return the names and versions of the wheels in a store."""
    names = [key.rpartition("/")[2] for key in keys_of(store) if key.endswith(".whl")]
    return sorted(name.split("-py3")[0] for name in names)


# --- Staged wheels ---------------------------------------------------------------------------


def stage_wheels(store: Store, paths: Sequence[Path]) -> None:
    """Put wheels up for testing, with a record and pages, as the verb `stage` does."""
    files: list[FileRecord] = []
    for path in paths:
        key = f"{STAGING}/{path.name}"
        file, sidecar = distributions.describe(path, key=key, sha256=sha256(path))
        store.put_file(key, path, sha256=file.sha256, replace=False)
        store.put_bytes(f"{key}.metadata", sidecar or b"")
        files.append(file)
    write_staging_record(store, files)
    documents.write_pages(store, documents.STAGING, FAMILY, expected=())


def write_staging_record(
    store: Store, files: Sequence[FileRecord], *, run_store: str = "s3://elsewhere", run_id: str = "1"
) -> None:
    """Write down which files of a run were staged."""
    staged = [StagedFile(**file.model_dump(mode="json"), source_key=file.key) for file in files]
    record = StagingRecord(
        family=FAMILY,
        run_id=run_id,
        platform="linux",
        store=run_store,
        prefix=f"{run_id}-linux",
        artifact_group=FAMILY,
        staged="2026-01-01T00:00:00+00:00",
        files=tuple(staged),
        records=(),
    )
    store.put_bytes(documents.staging_record_key(FAMILY, record.prefix), documents.serialized(record))


def stage_versions(store: Store, dist: Path) -> None:
    """Stage rocm 7.1 to 7.4, and a torch that requires 7.1."""
    torch = write_wheel(dist, version="2.10", requires=["rocm==7.1"])
    stage_wheels(store, [*write_rocm_wheels(dist, 4), torch])


def write_rocm_wheels(dist: Path, count: int) -> list[Path]:
    """Write wheels of rocm 7.1 and later versions."""
    return [write_wheel(dist, name="rocm", version=f"7.{number}") for number in range(1, count + 1)]


@pytest.fixture
def staging(folder: DirectoryStore, tmp_path: Path) -> Store:
    stage_versions(folder, tmp_path / "dist")
    return folder


@pytest.mark.parametrize("kind", ["folder", "bucket"])
def test_deletes_old_versions_but_those_that_a_kept_one_requires(
    request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    store: Store = request.getfixturevalue(kind)
    stage_versions(store, tmp_path / "dist")
    pass_days(monkeypatch, 130)

    assert run_retention(store.url, "--yes") == 0

    assert wheels_of(store) == ["rocm-7.1", "rocm-7.3", "rocm-7.4", "torch-2.10"]
    assert "rocm-7.2" not in "".join(keys_of(store))
    page = store.read(f"{STAGING}/index.html").decode()
    assert "rocm-7.2" not in page
    assert "rocm-7.1" in page


def test_deletes_a_set_that_was_refused_and_says_no_more_of_it(
    staging: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    refused_key = f"{STAGING}/rocm-7.2-py3-none-any.whl"
    refusal = Refusal(
        set_name="rocm-7.2",
        family=FAMILY,
        platform="linux",
        refused="2026-01-01T00:00:00+00:00",
        by="me",
        reasons=("test_rocm failed",),
        staged_keys=(refused_key,),
    )
    staging.put_bytes(refusal.key, documents.serialized(refusal))
    documents.write_pages(staging, documents.STAGING, FAMILY, expected=())
    assert "Not released: rocm-7.2" in staging.read(f"{STAGING}/index.html").decode()
    pass_days(monkeypatch, 130)

    assert run_retention(staging.url, "--yes") == 0

    assert refused_key not in keys_of(staging)
    assert "Not released" not in staging.read(f"{STAGING}/index.html").decode()


def test_deletes_nothing_more_the_next_time(staging: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    pass_days(monkeypatch, 130)
    assert run_retention(staging.url, "--yes") == 0
    keys = keys_of(staging)

    assert run_retention(staging.url, "--yes") == 0

    assert keys_of(staging) == keys


def test_keeps_files_in_promotion_until_it_ends(staging: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    name = "rocm-7.2-py3-none-any.whl"
    file = PromotedFile(
        family=FAMILY,
        name=name,
        key=f"v2/{FAMILY}/{name}",
        size=1,
        sha256="0" * 64,
        distribution="rocm",
        version="7.2",
        staged_key=f"{STAGING}/{name}",
        staged_sha256="0" * 64,
    )
    decision = Decision(
        set_name="set",
        identity="1",
        release_type="nightly",
        decided="2026",
        by="somebody",
        staging=(),
        rulings=(),
        files=(file,),
    )
    staging.put_bytes(decision.intent_key, documents.serialized(decision))
    pass_days(monkeypatch, 130)

    assert run_retention(staging.url, "--yes") == 0
    wheels_during_promotion = wheels_of(staging)
    staging.delete(decision.intent_key)
    assert run_retention(staging.url, "--yes") == 0

    assert "rocm-7.2" in wheels_during_promotion
    assert "rocm-7.2" not in wheels_of(staging)


def test_a_dry_run_tells_what_goes_and_deletes_nothing(
    staging: Store, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    keys = keys_of(staging)
    pass_days(monkeypatch, 130)

    assert run_retention(staging.url, "--dry-run") == 0

    printed = capsys.readouterr().err
    assert "1 of 5 runs and versions" in printed
    assert f"{STAGING}/rocm 7.2" in printed
    assert "130 days old, kept for 120" in printed
    assert "requires it" in printed
    assert keys_of(staging) == keys


def test_deletes_nothing_without_a_yes(
    staging: Store, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    keys = keys_of(staging)
    pass_days(monkeypatch, 130)

    assert run_retention(staging.url) == UsageError.exit_code

    assert "nothing was deleted" in capsys.readouterr().err
    assert keys_of(staging) == keys


def test_keeps_what_pages_of_a_release_list(folder: DirectoryStore) -> None:
    name = "torch-1.0-py3-none-any.whl"
    put_aged_versions(folder, 5)
    put_aged(folder, {"v2/g/rocm-1.0-py3-none-any.whl": 900})
    folder.put_bytes("v2/g/index.html", f'<a href="../../v2-staging/g/{name}">x</a>'.encode())

    assert run_retention(folder.url, "--yes") == 0

    assert wheels_of(folder) == ["rocm-1.0", "torch-1.0", "torch-4.0", "torch-5.0"]


def test_pages_of_another_store_do_not_keep_files_of_a_folder(folder: DirectoryStore, tmp_path: Path) -> None:
    # Only by a bucket's public address can they name files elsewhere.
    name = "torch-1.0-py3-none-any.whl"
    put_aged_versions(folder, 3)
    releases = DirectoryStore(tmp_path / "other")
    releases.put_bytes("v2/g/index.html", f'<a href="../../v2-staging/g/{name}">x</a>'.encode())

    assert run_retention(folder.url, "--yes", "--distribution-store", releases.url) == 0

    assert "torch-1.0" not in wheels_of(folder)


# --- Runs ------------------------------------------------------------------------------------


def put_aged(store: DirectoryStore, ages: dict[str, float]) -> None:
    """Put files that are so many days old."""
    for key, days in ages.items():
        store.put_bytes(key, key.encode())
        moment = datetime.now(UTC).timestamp() - days * DAY
        os.utime(store.root / key, (moment, moment))


def put_aged_versions(store: DirectoryStore, count: int) -> None:
    """Put versions of torch, of which the first is the oldest."""
    for number in range(1, count + 1):
        put_aged(store, {f"v2-staging/g/torch-{number}.0-py3-none-any.whl": 900 - number})


@pytest.fixture
def runs(folder: DirectoryStore) -> DirectoryStore:
    """A store with five old runs; run 1 is the oldest."""
    for number in range(1, 6):
        put_aged(folder, {f"{number}-linux/x": 200 - number})
    return folder


def runs_of(store: Store) -> set[str]:
    return {key.partition("-")[0] for key in keys_of(store)}


def test_never_deletes_for_a_day_that_is_only_planned_for(runs: DirectoryStore) -> None:
    assert run_retention(runs.url, "--today", "2099-01-01", "--yes") == UsageError.exit_code

    assert run_retention(runs.url, "--today", "2099-01-01") == 0
    assert len(keys_of(runs)) == 5


def test_deletes_most_of_a_store_only_when_told_how_much(
    runs: DirectoryStore, capsys: pytest.CaptureFixture[str]
) -> None:
    keys = keys_of(runs)

    assert run_retention(runs.url, "--yes") == StoreError.exit_code

    message = capsys.readouterr().err
    assert "3 of 5" in message
    assert "--at-most 60" in message
    assert keys_of(runs) == keys


def test_deletes_as_much_as_was_told(runs: DirectoryStore) -> None:
    assert run_retention(runs.url, "--yes", "--at-most", "60") == 0

    assert runs_of(runs) == {"4", "5"}


@pytest.mark.parametrize("policy", ["weekly", "rc", "release"])
def test_a_policy_may_keep_everything(runs: DirectoryStore, policy: str) -> None:
    assert run_retention(runs.url, "--yes", "--policy", policy) == 0

    assert len(keys_of(runs)) == 5


def test_refuses_an_unknown_policy(runs: DirectoryStore) -> None:
    assert run_retention(runs.url, "--yes", "--policy", "nigthly") == UsageError.exit_code


@pytest.mark.parametrize(
    ("options", "error"),
    [
        (("--dry-run",), MissingInputError),
        (("--today", "yesterday"), UsageError),
        (("--today", "2026-13-01"), UsageError),
    ],
)
def test_refuses_an_empty_store_and_text_that_is_not_a_day(
    folder: DirectoryStore, options: tuple[str, ...], error: type[FatalError]
) -> None:
    assert run_retention(folder.url, *options) == error.exit_code


@pytest.mark.parametrize(
    ("key", "content"),
    [("v2/g/simple/torch/index.json", b"{"), (documents.staging_record_key(FAMILY, "1-linux"), b"{}")],
    ids=["page", "record"],
)
def test_deletes_nothing_where_a_page_or_a_record_is_unreadable(
    runs: DirectoryStore, key: str, content: bytes
) -> None:
    runs.put_bytes(key, content)
    keys = keys_of(runs)

    assert run_retention(runs.url, "--yes", "--at-most", "100") == DataError.exit_code

    assert keys_of(runs) == keys


@pytest.mark.parametrize(
    ("is_staged", "kept"), [(True, {"1", "4", "5"}), (False, {"4", "5"})], ids=["staged", "staged once"]
)
def test_keeps_a_run_whose_wheels_are_staged(
    runs: DirectoryStore, tmp_path: Path, *, is_staged: bool, kept: set[str]
) -> None:
    releases = DirectoryStore(tmp_path / "releases")
    key = f"{STAGING}/rocm-7.1-py3-none-any.whl"
    file = FileRecord(name="x", key=key, size=1, sha256="0" * 64, distribution="x", version="1")
    write_staging_record(releases, [file], run_store=runs.url, run_id="1")
    write_staging_record(releases, [file], run_store="s3://elsewhere", run_id="2")
    if is_staged:
        releases.put_bytes(key, b"x")

    options = ("--yes", "--at-most", "100", "--distribution-store", releases.url)
    assert run_retention(runs.url, *options) == 0

    assert runs_of(runs) == kept


def test_keeps_a_run_that_pages_of_another_store_link_to(
    bucket: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    wheel = "python/g/x-1.0-py3-none-any.whl"
    for number in range(1, 7):
        bucket.put_bytes(f"{number}-linux/{wheel}", b"x")
    releases = DirectoryStore(tmp_path / "other")
    address = f"https://releases.s3.amazonaws.com/1-linux/{wheel}#sha256=0"
    releases.put_bytes("v2/g/index.html", f'<a href="{address}">x</a>'.encode())
    pass_days(monkeypatch, 200)

    assert run_retention("s3://releases", "--yes", "--distribution-store", releases.url) == 0

    assert runs_of(bucket) == {"1", "5", "6"}


def test_a_bucket_of_nightly_runs_has_the_releases_of_its_type() -> None:
    stores = retention.distribution_stores_of(buckets(), "s3://therock-nightly-artifacts")

    assert stores == ["s3://therock-nightly-python"]


@pytest.mark.parametrize(
    "store", ["s3://therock-ci-artifacts", "s3://therock-ci-artifacts-external", "s3://mine", "out", ""]
)
def test_other_stores_have_no_releases(store: str) -> None:
    assert not retention.distribution_stores_of(buckets(), store)


# --- Interruptions ---------------------------------------------------------------------------


def test_no_page_lists_what_is_gone_wherever_it_is_killed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # The order of writes is that of the code, and not of threads.
    for each in ("core.parallel.map_in_threads", "ci.publish.index.map_in_threads"):
        monkeypatch.setattr(each, lambda action, items, **_: [action(item) for item in items])
    start = MemoryStore(folder_pages=False)
    dist = tmp_path / "dist"
    stage_wheels(start, write_rocm_wheels(dist, 3))

    def work(store: MemoryStore) -> None:
        def open_store(*_arguments: Any, **_options: Any) -> MemoryStore:
            return store

        monkeypatch.setattr("ci.verbs.retention.open_store", open_store)
        assert run_retention(store.url, "--yes", "--at-most", "100") == 0

    undisturbed = start.copy_of()
    audit_every_write(undisturbed, "v2-staging")
    work(undisturbed)

    assert wheels_of(undisturbed) == ["rocm-7.2", "rocm-7.3"]
    # Two pages of the project, the flat one and what the index remembers; a wheel and its metadata.
    assert undisturbed.writes == 4 + 2
    for moment, store in interruptions(start, work):
        audit(store, "v2-staging")
        audit_every_write(store, "v2-staging")
        work(store)
        assert without_records(store.objects) == without_records(undisturbed.objects), moment


def without_records(objects: dict[str, bytes]) -> dict[str, bytes]:
    """Return objects without the records that lists of projects remember: these may be read once more."""
    contents = dict(objects)
    for key in contents:
        if key.endswith("/simple/index.json"):
            contents[key] = contents[key].partition(b'"_records"')[0]
    return contents


# The stores that CI keeps in order


def test_lists_the_stores_of_a_repository_as_outputs_of_a_job(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("GITHUB_OUTPUT", str(tmp_path / "outputs"))

    assert run_verb("ci", "retention", "--list-stores", "--repository=ROCm/TheRock") == 0

    outputs = (tmp_path / "outputs").read_text(encoding="utf-8")
    assert "mirror_matrix" in outputs
    assert "retention_matrix" in outputs
    assert "s3://therock-nightly-artifacts" in capsys.readouterr().err


@pytest.mark.parametrize("option", ["--yes", "--at-most=5", "--today=2026-01-01", "--store=elsewhere"])
def test_a_list_of_stores_takes_no_option_of_a_deletion(
    option: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run_verb("ci", "retention", "--list-stores", option) == UsageError.exit_code

    assert f"{option.partition('=')[0]} has no effect with --list-stores" in capsys.readouterr().err


def test_a_deletion_takes_no_repository(folder: DirectoryStore, capsys: pytest.CaptureFixture[str]) -> None:
    assert run_retention(folder.url, "--repository=ROCm/TheRock") == UsageError.exit_code

    assert "--repository has no effect without --list-stores" in capsys.readouterr().err
