"""What the documentation promises of the server's template."""

from typing import Any

import pytest
import yaml  # type: ignore[import-untyped]

from core.cli.options import ROOT


class CloudFormationLoader(yaml.SafeLoader):  # type: ignore[misc]
    """A loader that reads `!Function value` as the value."""


def _value_of_function(loader: CloudFormationLoader, _function: str, node: yaml.Node) -> object:
    if isinstance(node, yaml.ScalarNode):
        return loader.construct_scalar(node)
    return loader.construct_sequence(node, deep=True)


CloudFormationLoader.add_multi_constructor("!", _value_of_function)


@pytest.fixture(scope="module")
def template() -> dict[str, Any]:
    text = (ROOT / "ci" / "publish" / "server" / "template.yaml").read_text(encoding="utf-8")
    loaded: dict[str, Any] = yaml.load(text, CloudFormationLoader)  # noqa: S506 - a SafeLoader
    return loaded


def test_changes_go_to_the_dead_letter_queue_after_five_attempts(template: dict[str, Any]) -> None:
    policy = template["Resources"]["ChangesQueue"]["Properties"]["RedrivePolicy"]

    assert policy == {"deadLetterTargetArn": "FailedQueue.Arn", "maxReceiveCount": 5}
    assert template["Outputs"]["FailedQueueUrl"]["Value"] == "FailedQueue"


def test_an_alarm_goes_off_when_a_change_is_in_the_dead_letter_queue(template: dict[str, Any]) -> None:
    alarm = template["Resources"]["FailedAlarm"]["Properties"]

    assert alarm["MetricName"] == "ApproximateNumberOfMessagesVisible"
    assert alarm["Dimensions"] == [{"Name": "QueueName", "Value": "FailedQueue.QueueName"}]
    assert (alarm["ComparisonOperator"], alarm["Threshold"]) == ("GreaterThanThreshold", 0)


def test_an_alarm_goes_off_when_pages_are_ten_minutes_behind(template: dict[str, Any]) -> None:
    alarm = template["Resources"]["LateAlarm"]["Properties"]

    assert alarm["MetricName"] == "ApproximateAgeOfOldestMessage"
    assert alarm["Dimensions"] == [{"Name": "QueueName", "Value": "ChangesQueue.QueueName"}]
    assert (alarm["ComparisonOperator"], alarm["Threshold"]) == ("GreaterThanThreshold", 600)
