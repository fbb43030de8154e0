"""The kit evaluates expressions of workflows as GitHub does."""

from typing import Any

import pytest

from tests.kit.github_expressions import STATUS, evaluate, expand, expand_text

CONTEXTS = {
    "inputs": {"cell": '{"rocm": {"run_id": "17"}, "minutes": 30}', "flag": False, "platform": "linux"},
    "vars": {"SCHEDULES": '["CI", "drift"]', "STORE": ""},
    "needs": {"build-torch": {"outputs": {"linux_matrix": "[]"}}},
    "matrix": {"cells": [{"name": "a"}]},
}


@pytest.mark.parametrize(
    ("expression", "value"),
    [
        pytest.param("fromJSON(inputs.cell).rocm.run_id", "17", id="a member"),
        pytest.param("fromJSON(inputs.cell).rocm.index", None, id="an absent member"),
        pytest.param("inputs.flag || 'no'", "no", id="or gives the last value"),
        pytest.param("inputs.platform == 'Linux' && 'yes' || 'no'", "yes", id="case does not matter"),
        pytest.param("!(inputs.flag || vars.STORE)", True, id="not"),
        pytest.param("contains(fromJSON(vars.SCHEDULES), 'ci')", True, id="a list contains a whole member"),
        pytest.param("contains(fromJSON(vars.SCHEDULES), 'dri')", False, id="a list contains no part"),
        pytest.param("contains('build_rocm x', 'rocm')", True, id="a text contains a part"),
        pytest.param("fromJSON(vars.ABSENT || '[]')", [], id="a default"),
        pytest.param(
            "needs.build-torch.outputs[format('{0}_matrix', inputs.platform)] != '[]'", False, id="an index"
        ),
        pytest.param("toJSON(matrix.cells[0].name)", '"a"', id="JSON"),
        pytest.param("'it''s'", "it's", id="a quote"),
        pytest.param("vars.ABSENT == ''", True, id="null is an empty text"),
    ],
)
def test_evaluates_an_expression(expression: str, value: Any) -> None:
    assert evaluate(expression, CONTEXTS) == value


def test_an_expression_alone_keeps_its_type() -> None:
    assert expand("${{ fromJSON(inputs.cell).minutes }}", CONTEXTS) == 30


def test_expressions_in_a_text_become_texts() -> None:
    template = '{"upload": ${{ inputs.flag }}, "x": "${{ vars.ABSENT }}"}'

    assert expand_text(template, CONTEXTS) == '{"upload": false, "x": ""}'


@pytest.mark.parametrize(
    "expression",
    ["unknown.member", "inputs.flag ==", "inputs flag"],
    ids=["an unknown context", "a comparison with nothing", "two names beside each other"],
)
def test_refuses_what_github_would_refuse(expression: str) -> None:
    with pytest.raises((AssertionError, KeyError)):
        evaluate(expression, CONTEXTS)


@pytest.mark.parametrize(
    ("expression", "is_true_after_failure"),
    [
        pytest.param("success()", False, id="success"),
        pytest.param("!cancelled()", True, id="not cancelled"),
        pytest.param("failure()", True, id="failure"),
    ],
)
def test_status_functions_tell_how_earlier_jobs_ended(
    expression: str, *, is_true_after_failure: bool
) -> None:
    status = {"success": False, "failure": True, "cancelled": False, "always": True}

    assert evaluate(expression, {STATUS: status}) is is_true_after_failure


def test_jobs_of_a_run_without_a_status_have_all_succeeded() -> None:
    assert evaluate("success() && !failure()", {}) is True
