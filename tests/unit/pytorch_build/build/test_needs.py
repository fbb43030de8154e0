from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from core.errors import UsageError
from pytorch_build.build.machine import load_needs, max_jobs, need_of


def test_every_project_has_its_needs() -> None:
    assert set(load_needs().projects) == {"triton", "torch", "audio", "vision", "apex"}
    for project, need in load_needs().projects.items():
        assert need_of(project, sample=False) == need
        assert need.memory >= need.job, "one compiler must fit"
        assert need_of(project, sample=True).disk < need.disk
    with pytest.raises(UsageError, match="'pytorch'"):
        need_of("pytorch", sample=True)


def test_jobs_fit_cores_and_memory() -> None:
    torch = need_of("torch", sample=False)
    assert max_jobs(torch, cores=32, memory_gib=64) == 16
    assert max_jobs(torch, cores=4, memory_gib=64) == 4
    assert max_jobs(torch, cores=4, memory_gib=1) == 1


def test_a_persons_number_of_jobs_counts() -> None:
    torch = need_of("torch", sample=False)
    assert max_jobs(torch, cores=2, memory_gib=1, wanted="32") == 32
    for wrong in ("0", "-1", "many", "2.5", "²"):
        with pytest.raises(UsageError, match="no number of jobs"):
            max_jobs(torch, cores=2, memory_gib=1, wanted=wrong)


@given(
    st.sampled_from(["triton", "torch", "audio", "vision", "apex"]),
    st.integers(1, 512),
    st.floats(0.1, 4096),
)
def test_jobs_never_take_more_than_there_is(project: str, cores: int, memory: float) -> None:
    need = need_of(project, sample=False)
    jobs = max_jobs(need, cores=cores, memory_gib=memory)
    assert 1 <= jobs <= cores
    assert jobs == 1 or jobs * need.job <= memory
