from typing import Any

import pytest

from pytorch_build.__main__ import VERBS

CPU = ("--torch-ref", "sample", "--gpu-family", "cpu")


@pytest.mark.parametrize("verb", [verb.name for verb in VERBS])
def test_every_verb_has_its_help(front: Any, verb: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        front(verb, "--help")
    assert ended.value.code == 0
    assert "--torch-ref" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("words", "code", "said"),
    [
        (("biuld",), 2, "Did you mean 'build'?"),
        (("build", "touch", *CPU), 2, "Did you mean 'torch'?"),
        (("build", "torch", *CPU), 2, "--python PATH"),
        (("build", "torch", *CPU, "--gpu-family", "gfx110X-all"), 2, "cannot be 'gfx110X-all' too"),
        (("build", "torch", "--torch-ref", "a", "--torch-ref", "b"), 2, "--torch-ref is 'a' here"),
        (("build", "torch", *CPU, "--release-type", "weekly"), 2, "weekly"),
        (("resolve", *CPU, "--run-id", "../x"), 2, "is not a run id"),
        (("resolve", "--torch-ref", "nightyl"), 2, "Did you mean 'nightly'?"),
        (("resolve", "--torch-ref", "sample", "--gpu-family", "gfx94x"), 2, "Unknown GPU family 'gfx94x'"),
        (("resolve", *CPU, "--at", "torch"), 2, "is not PROJECT=REF"),
        (("resolve", *CPU, "--at", "fbgemm=main"), 2, "Projects: triton"),
        (("resolve", *CPU, "--at", "torch="), 2, "is not PROJECT=REF"),
        (("resolve", *CPU, "--git-mirror", "x"), 2, "PREFIX=MIRROR"),
        (("resolve", *CPU, "--config-file", "nowhere.toml"), 4, "nowhere.toml does not exist"),
        (("resolve", *CPU, "--store", "ftp://x"), 2, "ftp://x"),
        (("checkout", *CPU, "--components", "torhc"), 2, "Did you mean 'torch'?"),
        (("checkout", *CPU, "--checkout-dir", "x"), 2, "--checkout-dir, --gitrepo-origin and"),
        (("checkout", *CPU, "--repo-hashtag", "main"), 2, "are for one project"),
        (("install-rocm", *CPU, "--python", "/usr/bin/nowhere"), 13, "not a working Python interpreter"),
        (("check-wheels", *CPU), 4, "has no wheel of sample"),
        (("check-wheels", "nowhere"), 4, "nowhere"),
        (("check-wheels", "tests/unit/pytorch_build/verbs"), 4, "tests/unit/pytorch_build/verbs"),
        (("test-smoke", *CPU), 2, "--python PATH"),
    ],
)
@pytest.mark.processes
def test_mistakes_have_a_message_and_code(front: Any, words: tuple[str, ...], code: int, said: str) -> None:
    answer = front(*words)
    assert (answer.code, len(answer.errors)) == (code, 1), answer.said
    assert said in answer.said
    assert "Traceback" not in answer.said


def test_a_debugged_error_keeps_its_traceback(front: Any) -> None:
    with pytest.raises(Exception, match="no verb") as caught:
        front("biuld", "--debug")
    assert type(caught.value).__name__ == "UsageError"
