from collections.abc import Callable

import pytest

from core.errors import UsageError
from pytorch_build.__main__ import VERBS
from tests.kit.front_doors import FrontDoorResult

Front = Callable[..., FrontDoorResult]

CPU = ("--torch-ref", "sample", "--gpu-family", "cpu")


@pytest.mark.parametrize("verb", [verb.name for verb in VERBS])
def test_every_verb_has_its_help(front: Front, verb: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        front(verb, "--help")

    assert ended.value.code == 0
    assert "--config-file" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("words", "exit_code", "name"),
    [
        (("biuld",), 2, "'build'"),
        (("build", "touch", *CPU), 2, "'torch'"),
        (("build", "torch", *CPU), 2, "--python PATH"),
        (("build", "torch", *CPU, "--gpu-family", "gfx110X-all"), 2, "gfx110X-all"),
        (("build", "torch", "--torch-ref", "a", "--torch-ref", "b"), 2, "--torch-ref"),
        (("build", "torch", *CPU, "--release-type", "weekly"), 2, "weekly"),
        (("resolve", *CPU, "--run-id", "../x"), 2, "../x"),
        (("resolve", "--torch-ref", "nightyl"), 2, "'nightly'"),
        (("resolve", "--torch-ref", "sample", "--gpu-family", "gfx94x"), 2, "gfx94x"),
        (("resolve", *CPU, "--at", "torch"), 2, "PROJECT=REF"),
        (("resolve", *CPU, "--at", "fbgemm=main"), 2, "triton"),
        (("resolve", *CPU, "--at", "torch="), 2, "PROJECT=REF"),
        (("resolve", *CPU, "--git-mirror", "x"), 2, "PREFIX=MIRROR"),
        (("resolve", *CPU, "--config-file", "nowhere.toml"), 4, "nowhere.toml"),
        (("resolve", *CPU, "--store", "ftp://x"), 2, "ftp://x"),
        (("checkout", *CPU, "--components", "torhc"), 2, "'torch'"),
        (("checkout", *CPU, "--checkout-dir", "x"), 2, "--checkout-dir"),
        (("checkout", *CPU, "--repo-hashtag", "main"), 2, "--repo-hashtag"),
        (("install-rocm", *CPU, "--python", "/usr/bin/nowhere"), 13, "/usr/bin/nowhere"),
        (("check-wheels", *CPU), 4, "sample"),
        (("check-wheels", "nowhere"), 4, "nowhere"),
        (("check-wheels", "tests/unit/pytorch_build/verbs"), 4, "tests/unit/pytorch_build/verbs"),
        (("test-smoke", *CPU), 2, "--python PATH"),
    ],
)
@pytest.mark.processes
def test_a_mistake_has_one_error_and_its_exit_code(
    front: Front, words: tuple[str, ...], exit_code: int, name: str
) -> None:
    result = front(*words)

    assert result.exit_code == exit_code, result.report
    assert len(result.errors) == 1
    assert name in result.report
    assert "Traceback" not in result.report


def test_a_debugged_error_keeps_its_traceback(front: Front) -> None:
    with pytest.raises(UsageError, match="biuld"):
        front("biuld", "--debug")
