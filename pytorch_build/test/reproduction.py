"""The command that runs a failed test again, on the same wheels."""

from __future__ import annotations

import re
import shlex
from typing import TYPE_CHECKING

from core.run.outputs import LOCAL_RUN
from pytorch_build.test.results import DEFAULT_CONFIG

if TYPE_CHECKING:
    from core.junit import Case
from pytorch_build.test.results import Origin

# what an expression for -k may hold: https://docs.pytest.org/en/stable/how-to/usage.html
_WORD = re.compile(r"[\w:+\-.\\/]+")
_PYTHON = re.compile(r"cp(\d)(\d+t?)")
# the folder of upstream's tests, which its own runner leaves out of their names
_TESTS = "test/"
_STAGES = ("test_torch", "test_smoke", "test_rocm")


def command(origin: Origin, case: Case) -> str:
    """Write the command."""
    if origin.stage not in _STAGES:
        return ""
    python = _PYTHON.fullmatch(origin.python)
    words = ["nox", "-s", origin.stage, *(["-P", f"{python[1]}.{python[2]}"] if python else []), "--"]
    run_id = "" if origin.run_id == LOCAL_RUN else origin.run_id
    named = {"--run-id": run_id, "--torch-ref": origin.torch_ref, "--gpu-family": origin.gpu_family}
    named["--artifact-group"] = origin.group
    for option, value in named.items():
        words += [option, value] if value else []
    if origin.stage == "test_torch":
        words += ["--config", origin.config] if origin.config not in {"", DEFAULT_CONFIG} else []
        if case.file:
            words += ["--include", module(case.file)]
    if origin.stage != "test_rocm" and (chosen := expression(case)):
        words += ["-k", chosen]
    if origin.stage != "test_torch" and origin.run_id:
        words += ["--force"]
    return shlex.join(words)


def module(file: str) -> str:
    """Name a test file as upstream's runner does: ``test/dynamo/test_misc.py`` is ``dynamo/test_misc``.

    Where several architectures were tested, a file's name has the one (``test/test_nn.py@gfx942``).
    """
    return file.partition("@")[0].removeprefix(_TESTS).removesuffix(".py")


def expression(case: Case) -> str:
    """Write pytest's ``-k`` for one test: its class and name, and what parameters it can hold."""
    path, _, names = case.test.partition("::")
    if not names or path == case.test:
        return ""
    plain, bracket, parameters = names.partition("[")
    words = [part for part in plain.split("::") if _WORD.fullmatch(part) and part not in {"and", "or", "not"}]
    whole = parameters.removesuffix("]")
    if words and bracket and _WORD.fullmatch(whole):
        words[-1] += f"[{whole}]"
    return " and ".join(words)
