"""The list of the documentation's promises is kept up to date."""

from pathlib import Path

from tests.promises.data import Promise, drawn_promises, find_problems, load_promises, read_sentences


def write_page(root: Path, text: str) -> None:
    (root / "README.md").write_text(text, encoding="utf-8")


def test_every_promise_stands_in_its_page_and_its_tests_exist() -> None:
    assert list(find_problems(load_promises())) == []


def test_finds_a_sentence_across_lines(tmp_path: Path) -> None:
    write_page(tmp_path, "It builds\nwheels. It tests them.\n")

    assert list(find_problems([Promise(page="README.md", sentence="It builds wheels.")], tmp_path)) == []


def test_reports_a_sentence_that_its_page_no_longer_has(tmp_path: Path) -> None:
    write_page(tmp_path, "It builds wheels.\n")

    (problem,) = find_problems([Promise(page="README.md", sentence="It builds sdists.")], tmp_path)

    assert "README.md" in problem
    assert "It builds sdists." in problem


def test_reports_a_test_that_does_not_exist(tmp_path: Path) -> None:
    write_page(tmp_path, "It builds wheels.\n")
    (tmp_path / "test_wheels.py").write_text("def test_builds_wheels(): ...\n", encoding="utf-8")
    tests = ("test_wheels.py::test_builds_wheels[linux]", "test_wheels.py::test_builds_nothing")
    promise = Promise(page="README.md", sentence="It builds wheels.", tests=tests)

    (problem,) = find_problems([promise], tmp_path)

    assert "test_builds_nothing" in problem


def test_reports_a_promise_that_is_listed_twice(tmp_path: Path) -> None:
    write_page(tmp_path, "It builds wheels.\n")
    promise = Promise(page="README.md", sentence="It builds wheels.")

    (problem,) = find_problems([promise, promise], tmp_path)

    assert "twice" in problem


def test_draws_the_same_promises_for_the_same_seed() -> None:
    promises = [Promise(page="README.md", sentence=f"Sentence {number}.") for number in range(50)]

    drawn = drawn_promises(promises, seed="a" * 40, count=10)

    assert len(drawn) == 10
    assert drawn == drawn_promises(reversed(promises), seed="a" * 40, count=10)
    assert drawn != drawn_promises(promises, seed="b" * 40, count=10)


def test_draws_from_prose_alone(tmp_path: Path) -> None:
    prose = "# Heading\n\nIt builds\nwheels. It tests\nthem:\n\n"
    write_page(tmp_path, f"{prose}```bash\nnox -s tests.\n```\n\n| a cell. |\n")

    sentences = [promise.sentence for promise in read_sentences(tmp_path)]

    assert sentences == ["It builds wheels.", "It tests them:"]


def test_says_which_promise_no_test_of_a_change_holds(tmp_path: Path) -> None:
    write_page(tmp_path, "It builds wheels.\n")
    (tmp_path / "test_build.py").write_text(
        "@pytest.mark.nightly\ndef test_builds_wheels(): ...\n", encoding="utf-8"
    )
    promise = Promise(
        page="README.md", sentence="It builds wheels.", tests=("test_build.py::test_builds_wheels",)
    )

    (problem,) = find_problems([promise], tmp_path)

    assert "It builds wheels." in problem
