import pytest

from pytorch_build.test.junit import testcase
from pytorch_build.test.junit.reader import read_junit
from tests.kit.torch_results import suite_element


@pytest.mark.parametrize(
    ("element", "outcome"),
    [
        ('<error type="crashed" message="signal 11"/>', "crashed"),
        ('<error type="timeout" message="600 s"/>', "timeout"),
        ("<failure message=\"worker 'gw0' crashed while running 't.py::t'\"/>", "crashed"),
        ('<failure message="Failed: Timeout (&gt;1.0s) from pytest-timeout."/>', "timeout"),
        ('<skipped type="pytest.xfail" message="known"/>', "xfailed"),
        ('<skipped message="no GPU"/>', "skipped"),
        ('<rerun message="first"/>', "flaky"),
        ('<flakyFailure message="first"/>', "flaky"),
        ('<properties><property name="attempts" value="3"/></properties>', "flaky"),
        ('<rerun message="first"/><failure message="second"/>', "failed"),
        ('<failure message="call"/><error message="teardown"/>', "failed"),
    ],
)
def test_reads_outcomes_as_other_programs_write_them(element: str, outcome: str) -> None:
    document = read_junit(suite_element(f'<testcase classname="t" name="t">{element}</testcase>'))

    assert [result.outcome for result in document.cases] == [outcome]


@pytest.mark.parametrize(
    ("attributes", "node_id"),
    [
        ({"classname": "test_nn.TestNN", "name": "test_a"}, "test_nn.py::TestNN::test_a"),
        ({"classname": "dynamo.test_misc.TestA", "name": "t"}, "dynamo/test_misc.py::TestA::t"),
        ({"classname": "test_nn", "name": "t[a.b]"}, "test_nn.py::t[a.b]"),
        ({"classname": "a.checks.TestA", "name": "t", "file": "a/checks.py"}, "a/checks.py::TestA::t"),
        # An inherited test: the file is where the function stands, which is not the test's.
        ({"classname": "test_a.TestA", "name": "t", "file": "lib/common.py"}, "test_a.py::TestA::t"),
        ({"classname": "rocm_sdk.core", "name": "files are there"}, "rocm_sdk.core::files are there"),
        ({"classname": "", "name": "a.test_b", "file": "a/test_b.py"}, "a/test_b.py"),
        ({"classname": "", "name": "test_b", "file": "test_b.py"}, "test_b.py"),
        ({"name": "alone"}, "alone"),
        ({}, "?"),
    ],
)
def test_names_a_test_by_its_node_id(attributes: dict[str, str], node_id: str) -> None:
    assert testcase.node_id(attributes) == node_id


def test_shortens_long_names_so_that_they_stay_different() -> None:
    long_name = "x" * 5000
    document = read_junit(suite_element(f'<testcase name="{long_name}0"/><testcase name="{long_name}1"/>'))

    first, second = [result.test for result in document.cases]
    assert first != second
    assert max(len(first), len(second)) < 2100
