"""What the documentation promises of flows, which run a chain of sessions."""

from pathlib import Path

import pytest

from ci import flow
from ci.jobs import Call, Job
from core.errors import ProcessError
from tests.kit import machines
from tests.kit.machines import Answer, answer_processes

CHAIN = Job(
    name="sample",
    stage="build_pytorch",
    calls=(
        Call(sessions=("resolve", "checkout"), posargs=("--torch-ref=sample",)),
        Call(sessions=("build_torch",), python="3.12"),
        Call(sessions=("upload",)),
    ),
)


def called_sessions(call: machines.Call) -> tuple[str, ...]:
    """Return the sessions that a call of nox names."""
    first = call.words.index("-s") + 1
    return tuple(word for word in call.words[first : call.words.index("--")] if word not in {"-P", "3.12"})


def test_a_flow_runs_every_call_of_its_chain_in_order(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls = answer_processes(monkeypatch, lambda _call: Answer())

    flow.runner(tmp_path, together=True)(CHAIN)

    assert [called_sessions(call) for call in calls] == [
        ("resolve", "checkout"),
        ("build_torch",),
        ("upload",),
    ]


def test_a_flow_ends_at_the_first_call_that_fails(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    calls = answer_processes(
        monkeypatch, lambda call: Answer(status=int("build_torch" in called_sessions(call)))
    )

    with pytest.raises(ProcessError):
        flow.runner(tmp_path, together=True)(CHAIN)

    assert [called_sessions(call) for call in calls] == [("resolve", "checkout"), ("build_torch",)]
