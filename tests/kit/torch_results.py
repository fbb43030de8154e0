"""Results of upstream's tests, as reports have them."""

from pytorch_build.test.junit.document import Case, Document, Outcome


def case_of(
    test: str = "t.py::A::x",
    *,
    outcome: Outcome = "passed",
    line: str = "",
    text: str = "",
    seconds: float = 0.0,
    attempts: int = 1,
    rule: str = "",
) -> Case:
    """Return the result of a test, which is in the file that its id names."""
    return Case(
        test=test,
        file=test.partition("::")[0],
        outcome=outcome,
        line=line,
        text=text,
        seconds=seconds,
        attempts=attempts,
        rule=rule,
    )


def suite_element(content: str, attributes: str = "") -> bytes:
    """Return a report of one suite."""
    return f"<testsuite {attributes}>{content}</testsuite>".encode()


def document_of(*outcomes: Outcome, name: str = "x") -> Document:
    """Return the document of tests with these outcomes: ``t.py::x0``, ``t.py::x1``."""
    cases: list[Case] = []
    for index, outcome in enumerate(outcomes):
        cases.append(case_of(f"t.py::{name}{index}", outcome=outcome))
    return Document(cases=tuple(cases))
