import pytest

from pytorch_build.test.junit.texts import TEXT_LIMIT, cut, first_line


@pytest.mark.parametrize(
    ("message", "text", "line"),
    [
        ("AssertionError: no\n  more", "", "AssertionError: no"),
        ("\x1b[31mAssertionError\x1b[0m: no", "", "AssertionError: no"),
        ("collection failure", "    import x\nE   ModuleNotFoundError: x", "ModuleNotFoundError: x"),
        ('failed on setup with "E"', "E       RuntimeError: set-up\nE   y", "RuntimeError: set-up"),
        ("", "Traceback (most recent call last):\n  File\nValueError: v\n\n", "ValueError: v"),
        ("failed on teardown with x", "", "failed on teardown with x"),
        ("", "", ""),
        ("x" * 9999, "", "x" * 300),
    ],
    ids=["first line", "colours", "collection", "set-up", "traceback", "vague alone", "nothing", "long"],
)
def test_takes_the_line_that_says_what_happened(message: str, text: str, line: str) -> None:
    assert first_line(message, text) == line


def test_keeps_a_text_within_the_limit() -> None:
    text = "a" * TEXT_LIMIT

    assert cut(text) == text


def test_cuts_a_long_text_in_its_middle() -> None:
    half = TEXT_LIMIT // 2

    text = cut("a" * half + "c" * 90 + "b" * half)

    first, middle, last = text.split("\n")
    assert first == "a" * half
    assert "90" in middle
    assert last == "b" * half
