"""Which stores are kept in order, and by whom."""

from collections.abc import Iterable
from operator import itemgetter
from typing import Any

import pytest

from ci.cleanup.plan import retention
from ci.cleanup.stores import matrices
from ci.plan.data import OwnStore
from ci.publish.buckets import Maintenance, buckets

Rows = list[dict[str, str]]


def matrices_of(repository: str, store: OwnStore | None = None, release_type: str = "ci") -> Any:
    return matrices(buckets(), store or OwnStore(), repository=repository, release_type=release_type)


@pytest.fixture
def mirrored() -> Rows:
    """The stores of the project's repository whose mirrors are kept."""
    rows: Rows = matrices_of("ROCm/TheRock")["mirror_matrix"]
    return rows


@pytest.fixture
def retained() -> Rows:
    """The stores of the project's repository in which old files are deleted."""
    rows: Rows = matrices_of("ROCm/TheRock")["retention_matrix"]
    return rows


def column(rows: Rows, name: str) -> list[str]:
    """Return a value of each row."""
    return list(map(itemgetter(name), rows))


def values_of(values: Iterable[object], *names: str) -> set[str]:
    """Return what release types or distributions have under these names, without what is empty."""
    found_values: set[str] = set()
    for value in values:
        found_values.update(getattr(value, name) for name in names)
    return found_values - {""}


def stores_of_runs() -> set[str]:
    buckets_of_runs = values_of(buckets().release_types.values(), "bucket", "external_bucket")
    return set(map("s3://{}".format, buckets_of_runs))


def stores_of_releases() -> set[str]:
    return set(map("s3://{}".format, values_of(buckets().distributions.values(), "bucket")))


def test_every_bucket_of_runs_has_a_mirror_once(mirrored: Rows) -> None:
    assert sorted(column(mirrored, "store")) == sorted(stores_of_runs())


def test_every_bucket_is_cleaned_up_once(retained: Rows) -> None:
    assert sorted(column(retained, "store")) == sorted(stores_of_runs() | stores_of_releases())


def test_mirrors_and_cleanups_have_roles_of_their_own(mirrored: Rows, retained: Rows) -> None:
    writers = values_of(buckets().release_types.values(), "role", "external_role")
    roles_of_mirrors = set(column(mirrored, "aws_role"))
    roles_of_cleanups = set(column(retained, "aws_role"))

    assert not roles_of_mirrors & roles_of_cleanups
    assert not (roles_of_mirrors | roles_of_cleanups) & writers


def test_every_cleanup_has_a_policy(retained: Rows) -> None:
    for row in retained:
        retention().policy(row["release_type"])


def test_only_buckets_of_our_own_runs_have_a_history(retained: Rows) -> None:
    with_history = [row for row in retained if row["history"]]

    own_buckets = values_of(buckets().release_types.values(), "bucket")
    assert set(column(with_history, "store")) == set(map("s3://{}".format, own_buckets))


@pytest.mark.parametrize("release_type", ["dev", "nightly"])
def test_a_shared_bucket_belongs_to_the_type_that_it_is_named_after(
    retained: Rows, release_type: str
) -> None:
    types = dict(map(itemgetter("store", "release_type"), retained))

    assert types[f"s3://therock-{release_type}-artifacts"] == release_type


def test_a_downstream_keeps_its_own_store_alone() -> None:
    store = OwnStore(store="s3://mine", region="eu-west-1", mirror_role="a", retention_role="b")

    rows = matrices_of("example/wheels", store, release_type="dev")

    common = {"store": "s3://mine", "release_type": "dev", "aws_region": "eu-west-1"}
    assert rows["mirror_matrix"] == [{**common, "aws_role": "a"}]
    assert rows["retention_matrix"] == [{**common, "aws_role": "b", "history": "yes"}]


def test_buckets_without_a_role_are_left_to_others() -> None:
    without_roles = buckets().model_copy(update={"maintenance": Maintenance()})

    rows = matrices(without_roles, OwnStore(), repository="ROCm/TheRock", release_type="ci")

    assert rows == {"mirror_matrix": [], "retention_matrix": []}


def test_a_fork_without_settings_keeps_nothing() -> None:
    rows = matrices_of("somebody/TheRock")

    assert rows == {"mirror_matrix": [], "retention_matrix": []}
