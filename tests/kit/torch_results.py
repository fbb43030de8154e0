"""Results of upstream's tests, as reports have them."""

from pytorch_build.test.junit import Case, Outcome


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
