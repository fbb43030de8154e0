from __future__ import annotations

from typing import Any

import pytest

from ci.cleanup.plan import Policy, Retention, retention
from ci.publish.buckets import buckets
from core.data import validated
from core.errors import DataError, UsageError


def test_the_data_says_what_was_agreed() -> None:
    kept = {name: policy.days for name, policy in retention().policies.items()}
    assert kept == {
        "ci": 30,
        "dev": 30,
        "nightly": 120,
        "dev-bkc": 30,
        "nightly-bkc": 120,
        "weekly": 7 * 52,
        "prerelease": 2 * 365,
        "rc": 2 * 365,
        "release": None,
    }
    assert retention().policies["release"].forever


def test_every_release_type_with_a_bucket_has_a_policy() -> None:
    for name in buckets().release_types:
        assert retention().policy(name).newest > 0


def test_an_unknown_policy_names_the_nearest() -> None:
    with pytest.raises(UsageError, match="nightly"):
        retention().policy("nigthly")


@pytest.mark.parametrize(
    ("policy", "says"),
    [
        ({}, "either days or forever"),
        ({"days": 3, "forever": True}, "either days or forever"),
        ({"days": 0}, "greater than or equal to 1"),
        ({"days": 3, "newest": 0}, "greater than or equal to 1"),
        ({"days": 30, "expire_days": 20}, "must not be before days"),
        ({"forever": True, "expire_days": 20}, "must not be before days"),
        ({"day": 3}, "unknown key"),
    ],
)
def test_a_policy_that_cannot_be_meant_is_refused(policy: dict[str, Any], says: str) -> None:
    with pytest.raises(DataError, match=says):
        validated(policy, Policy, where="x")


def test_run_ids_must_be_an_expression() -> None:
    data = {"run_ids": "[", "at_most_percent": 5, "abort_uploads_days": 1, "policies": {}}
    with pytest.raises(DataError, match="is not a regular expression"):
        validated(data, Retention, where="x")
