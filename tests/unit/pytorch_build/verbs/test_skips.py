import json
from collections.abc import Callable
from pathlib import Path

import pytest

from core.cli import main
from pytorch_build.__main__ import VERBS
from pytorch_build.test import skip_rules

Front = Callable[..., tuple[int, str, str]]

RULES = """\
[rules.one]
tests = [
    "test/a.py::TestA::test_x",
    "test/a.py::TestA::test_gone",
]
reason = "It fails on a full moon."

# long ago
[rules.old]
patterns = ["TestOld::*"]
os = ["windows"]
reason = "It failed last year."
expires = 2026-01-31
"""
OWN = '[rules.own]\ngpu = ["any"]\npatterns = ["TestC::*"]\nreason = "It fails on GPUs."\n'
SESSION = {"kind": "session", "schema": 1, "time": 1.5, "python": "3.12.7", "torch": "2.10.0+cpu"}


@pytest.fixture
def skips(tmp_path: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Front:
    (tmp_path / "own").mkdir()
    (tmp_path / "own" / "gpu.toml").write_text(OWN)
    monkeypatch.setattr(skip_rules, "FOLDER", tmp_path / "own")  # prune writes
    (tmp_path / "mine.toml").write_text(RULES)
    lines = [SESSION, {"kind": "collected", "tests": ["test/a.py::TestA::test_x"], "deselected": 0}]
    (tmp_path / "j").mkdir()
    (tmp_path / "j" / "a.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))

    def call(*words: str) -> tuple[int, str, str]:
        common = ["--gpu-family=cpu", "--torch-ref=release/2.10", f"--skips={tmp_path}/mine.toml"]
        code = main("pytorch_build", "", VERBS, ["skips", *words, *common])
        said = capfd.readouterr()
        return code, said.out, said.err

    return call


def test_list_says_which_rules_apply(skips: Front) -> None:
    code, out, err = skips("list")
    assert code == 0
    assert out.startswith("mine.one: skip: It fails on a full moon.\n    test/a.py::TestA::test_x\n")
    assert "torch 2.10 (release/2.10)" in err
    assert "1 of 3 rules apply, with 2 tests and patterns." in err
    assert "mine.old" in skips("list", "--os=windows")[1]
    every = skips("list", "--all")[1].splitlines()
    assert [line.partition(":")[0] for line in every if line[0] != " "] == ["gpu.own", "mine.one", "mine.old"]


def test_explain_takes_tests_before_and_after_options(skips: Front) -> None:
    code, out, _ = skips("explain", "test/a.py::TestA::test_x", "--os=linux", "test/a.py::test_x")
    assert code == 0
    assert "test/a.py::TestA::test_x: skipped, by mine.one\n" in out
    assert "test/a.py::test_x: runs, no rule applies to it\n  mine.one nearly takes it" in out


def test_check_names_what_is_stale_and_fails_for_what_has_expired(skips: Front, tmp_path: Path) -> None:
    code, _, err = skips("check", "--journal", str(tmp_path / "j"))
    assert code == 9
    assert "mine.one: test/a.py::TestA::test_gone matches no test." in err
    assert "Python 3.12.7, torch 2.10.0+cpu" in err  # as the journal has it
    assert "mine.old expired on 2026-01-31: It failed last year." in err


def test_prune_shows_then_does(skips: Front, tmp_path: Path) -> None:
    file, journal = tmp_path / "mine.toml", str(tmp_path / "j")
    code, out, err = skips("prune", "--dry-run", "--journal", journal)
    assert code == 0
    assert '-    "test/a.py::TestA::test_gone",\n' in out
    assert "-# long ago\n-[rules.old]\n" in out
    assert "Rules that would go: 1; tests of other rules: 1; changed files: 1." in err
    assert file.read_text() == RULES
    assert skips("prune", "--journal", journal)[0] == 0
    assert file.read_text() == (
        '[rules.one]\ntests = [\n    "test/a.py::TestA::test_x",\n]\nreason = "It fails on a full moon."\n'
    )
    assert skips("check", "--journal", journal)[0] == 0
    # a file without rules left goes
    file.write_text(RULES[RULES.index("# long ago") :])
    assert skips("prune")[0] == 0
    assert not file.exists()


@pytest.mark.parametrize(
    ("words", "code", "said"),
    [
        (["explain"], 2, "Which test?"),
        (["explain", "test_x"], 2, "'test_x' is not a test id"),
        (["explain", "--al", "test/a.py::test_x"], 2, "unrecognized arguments: --al"),
        (["list", "test/a.py::test_x"], 2, "list takes no test ids"),
        (["lst"], 2, "invalid choice: 'lst'"),
        (["check", "--try"], 2, "Where are the tests?"),
        (["check", "--pytorch-dir", "up"], 2, "--python PATH"),
    ],
)
def test_what_cannot_be_meant_is_refused(skips: Front, words: list[str], code: int, said: str) -> None:
    found, _, err = skips(*words)
    assert found == code
    assert said in err


def test_journals_of_another_torch_prove_nothing(skips: Front, tmp_path: Path) -> None:
    code, _, err = skips("prune", "--journal", str(tmp_path / "j"), "--torch-version", "2.11")
    assert code == 2
    assert "A journal is of torch 2.10.0+cpu, and this is about torch 2.11" in err
    (tmp_path / "empty").mkdir()
    assert skips("check", "--journal", str(tmp_path / "empty"))[0] == 4
