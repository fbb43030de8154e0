from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import pytest
from pydantic import ValidationError

from core.errors import UsageError
from core.run.locations import CompilerCaches, Origin, RunBucket, RunBuckets, run_buckets
from pytorch_build.build.compiler_cache_storage import (
    AccessRules,
    CacheRules,
    Storage,
    Wanted,
    cache_rules,
    require_usable,
    storage_for,
)

if TYPE_CHECKING:
    from pathlib import Path

BUCKETS = RunBuckets(
    repository="ROCm/TheRock",
    release_types={
        "ci": RunBucket(bucket="ours", external_bucket="everybodys"),
        "nightly": RunBucket(bucket="nightlies"),
    },
)
OWN = Origin(repository="rocm/therock")
FORK = Origin(repository="ROCm/TheRock", fork=True)
OTHER = Origin(repository="somebody/downstream")
RULES = CacheRules(
    layout="cc/{release_type}/{kind}",
    access=AccessRules(own="read-write", fork="read-only", shared="none"),
)
WANTED = Wanted(kind="sccache", store="s3://ours", origin=OWN, buckets=BUCKETS)


def chosen(wanted: Wanted = WANTED, env: dict[str, str] | None = None, **changes: object) -> Storage:
    return storage_for(replace(wanted, **changes), rules=RULES, env=env or {})  # type: ignore[arg-type]


def test_the_data_keeps_release_types_apart_and_forks_from_writing() -> None:
    rules = cache_rules()
    places = {rules.layout.format(release_type=one, kind="sccache") for one in run_buckets().release_types}
    assert len(places) == len(run_buckets().release_types)
    assert (rules.access.own, rules.access.fork, rules.access.shared) == ("read-write", "read-only", "none")
    with pytest.raises(ValidationError, match="entries would mix"):
        CacheRules(layout="cache/{kind}", access=rules.access)


def test_sccache_takes_the_runs_bucket() -> None:
    found = chosen()
    assert (found.kind, found.bucket, found.prefix, found.access) == (
        "s3",
        "ours",
        "cc/ci/sccache",
        "read-write",
    )
    assert str(found) == "s3://ours/cc/ci/sccache"
    assert chosen(store="s3://nightlies", release_type="nightly").prefix == "cc/nightly/sccache"


@pytest.mark.parametrize(
    ("store", "origin", "bucket", "access"),
    [
        ("s3://ours", OWN, "caches-ci", "read-write"),
        ("s3://everybodys", FORK, "caches-ci", "read-only"),
        ("s3://another", OWN, "another", "read-write"),
        ("s3://everybodys", OTHER, "everybodys", "none"),
    ],
)
def test_runs_in_the_main_repositorys_buckets_have_one_for_caches(
    store: str, origin: Origin, bucket: str, access: str
) -> None:
    caches = CompilerCaches(
        region="us-east-1", bucket="caches-{type}", role="", session_seconds=21600, types={"ci": "ci"}
    )
    buckets = BUCKETS.model_copy(update={"compiler_caches": caches})
    found = chosen(store=store, origin=origin, buckets=buckets)
    assert (found.bucket, found.access) == (bucket, access)


def test_each_release_type_of_the_data_has_a_bucket_for_caches() -> None:
    caches = run_buckets().compiler_caches
    assert caches is not None
    assert caches.types.keys() == run_buckets().release_types.keys()
    assert [one for one in caches.types.items() if one[1] == "prerelease"] == [("prerelease", "prerelease")]


def test_without_a_bucket_the_cache_is_local() -> None:
    assert chosen(store="out") == Storage()
    assert chosen(kind="ccache") == Storage(), "ccache does not speak S3"
    assert chosen(asked="local") == Storage()
    assert str(Storage()) == "local"


def test_a_persons_own_settings_go_before_the_runs_bucket_and_after_what_is_asked_for() -> None:
    mine = {"SCCACHE_BUCKET": "mine"}
    assert chosen(env=mine).kind == "own"
    assert chosen(env={"CCACHE_REMOTE_STORAGE": "redis://mine"}, kind="ccache").kind == "own"
    assert chosen(env={"SCCACHE_BUCKET": "", "SCCACHE_DIR": "/mine"}).kind == "s3"
    assert str(chosen(env=mine, asked="s3://theirs/deep/")) == "s3://theirs/deep/cc/ci/sccache"


def test_what_a_fork_compiles_reaches_nobody_else() -> None:
    # its outputs lie in the bucket that forks share; entries are the main repository's
    found = chosen(store="s3://everybodys", origin=FORK)
    assert (found.bucket, found.access) == ("ours", "read-only")
    assert chosen(asked="s3://everybodys", store="out", origin=FORK) == found
    for asked in ("s3://mine", "/shared", "local"):
        assert chosen(asked=asked, origin=FORK).access == "read-only"
    assert chosen(env={"SCCACHE_BUCKET": "mine"}, origin=FORK).access == "read-only"
    assert chosen(kind="ccache", asked="http://host/c", origin=FORK).access == "read-only"
    assert chosen(origin=replace(FORK, repository="some/other"), store="s3://theirs").bucket == "theirs"


def test_a_bucket_that_other_repositories_write_to_is_not_trusted() -> None:
    assert chosen(store="s3://everybodys", origin=OTHER).access == "none"
    assert chosen(asked="s3://ours", store="out", origin=OTHER, read_only=True).access == "none"
    assert chosen(store="s3://theirs", origin=OTHER).access == "read-write", "their own"


def test_asking_can_take_writing_away() -> None:
    assert chosen(read_only=True).access == "read-only"
    assert chosen(read_only=True, origin=FORK, store="s3://everybodys").access == "read-only"


def test_folders_hold_both_caches_and_every_release_type(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    for kind in ("ccache", "sccache"):
        found = chosen(kind=kind, asked="shared", release_type="nightly")
        assert (found.kind, found.where) == ("folder", str(tmp_path / "shared/cc/nightly" / kind))


def test_an_address_is_ccaches_and_shows_no_credentials() -> None:
    found = chosen(kind="ccache", asked="http://me:secret@host:8080/c|layout=flat")
    assert found.where == "http://me:secret@host:8080/c|layout=flat"
    assert str(found) == "http://host:8080/c"


@pytest.mark.parametrize(
    ("kind", "asked", "said"),
    [
        ("ccache", "s3://bucket", "ccache does not speak S3"),
        ("sccache", "s3://", "names no bucket"),
        ("sccache", "http://host/c", "sccache cannot use http: addresses"),
        ("ccache", "https://host/c", "ccache cannot use https: addresses"),
        ("ccache", "redis://host", "is no store"),
    ],
)
def test_what_a_cache_cannot_use_is_refused(kind: str, asked: str, said: str) -> None:
    with pytest.raises(UsageError, match=said) as refused:
        require_usable(kind, asked)
    assert refused.value.hint
    require_usable(kind, "")
    require_usable(kind, "folder")
