"""What the documentation promises of a pull request from a fork."""

import pytest

from ci.plan import decisions
from core.run.plan import Decision
from tests.kit.planning import changed_data, pull_request, question


@pytest.mark.parametrize("head", ["somebody/TheRock", None], ids=["fork", "deleted fork"])
def test_a_fork_gets_no_role_of_a_store_that_the_repository_configured(head: str | None) -> None:
    own_store = {"store": "s3://my-wheels", "role": "writer", "region": "here"}
    question_of_fork = question("pull_request", pull_request(head=head), data=changed_data(upload=own_store))

    decision, place = decisions.decide_upload(question_of_fork, Decision(value=False, reason="a fork"))

    assert decision.value is False
    assert place.store is None
    assert place.role is None
