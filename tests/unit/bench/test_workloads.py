import sys

import pytest

from core.errors import CheckError, ProcessError
from tests.bench.workloads import Workload, measure_in_turn

pytestmark = pytest.mark.processes

IDLE_PROGRAM = [sys.executable, "-c", "pass"]


def test_runs_workloads_in_turn_after_a_run_that_does_not_count() -> None:
    started: list[str] = []
    workloads = [
        Workload(name="program", action=IDLE_PROGRAM, prepare=lambda: started.append("program")),
        Workload(name="call", action=lambda: None, prepare=lambda: started.append("call")),
    ]

    program, call = measure_in_turn(workloads, runs=2)

    assert started == ["program", "call"] * 3
    assert len(program.samples) == len(call.samples) == 2


def test_measures_the_time_and_memory_of_a_program() -> None:
    (measurement,) = measure_in_turn([Workload(name="program", action=IDLE_PROGRAM)], runs=1)

    (sample,) = measurement.samples
    assert sample.cpu > 0
    assert sample.memory is not None
    assert sample.memory > 1 << 20


def test_multiplies_the_seconds_of_a_part() -> None:
    factor = 1_000_000
    workload = Workload(name="program", action=IDLE_PROGRAM, scale=factor)

    (measurement,) = measure_in_turn([workload], runs=1)

    assert min(measurement.walls) > factor / 1000


def test_measures_a_call_in_a_fork_and_without_memory() -> None:
    calls: list[str] = []
    workload = Workload(name="call", action=lambda: calls.append("in a fork"))

    (measurement,) = measure_in_turn([workload], runs=1)

    assert [sample.memory for sample in measurement.samples] == [None]
    assert calls == []


def test_a_call_that_fails_is_an_error() -> None:
    with pytest.raises(CheckError):
        measure_in_turn([Workload(name="fails", action=sys.exit)], runs=1)


def test_a_program_that_fails_is_an_error_with_its_output() -> None:
    program = [sys.executable, "-c", "exit('out of luck')"]

    with pytest.raises(ProcessError, match="out of luck"):
        measure_in_turn([Workload(name="fails", action=program)], runs=1)
