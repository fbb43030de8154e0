"""Two torch refs in one run: their wheels of one name are made of the same sources, or refused."""

import pytest

from core.errors import SourceError
from pytorch_build.lock.collisions import refuse_collisions_of_locks
from pytorch_build.lock.source_lock import SourceLock
from tests.kit.locks import locked_project, source_lock

TORCH = "a" * 40
OTHER_TORCH = "b" * 40
VISION = "c" * 40
OTHER_VISION = "d" * 40


def lock_of(
    torch_ref: str,
    *,
    torch: str = TORCH,
    vision: str = VISION,
    vision_version: str = "0.25.0",
    rocm_version: str = "7.1",
) -> SourceLock:
    """Return a lock of a torch and a vision at commits."""
    return source_lock(
        locked_project(
            "torch", commit=torch, rocm_version=f"2.10+rocm{rocm_version}", cpu_version="2.10+cpu"
        ),
        locked_project(
            "vision",
            commit=vision,
            rocm_version=f"{vision_version}+rocm{rocm_version}",
            cpu_version=f"{vision_version}+cpu",
        ),
        torch_ref=torch_ref,
        rocm_version=rocm_version,
    )


def test_refuses_another_wheel_of_a_name_and_names_both_refs_and_commits() -> None:
    first = lock_of("sample")
    second = lock_of("second", vision=OTHER_VISION)

    with pytest.raises(SourceError) as caught:
        refuse_collisions_of_locks(second, [first], run_id="local")

    names = ("sample", "second", "run local", "torchvision 0.25.0+rocm7.1", VISION[:12], OTHER_VISION[:12])
    assert [name for name in names if name not in caught.value.message] == []
    assert "--run-id" in caught.value.hint


def test_refuses_a_wheel_that_is_built_against_another_torch() -> None:
    with pytest.raises(SourceError, match="torchvision"):
        refuse_collisions_of_locks(lock_of("second", torch=OTHER_TORCH), [lock_of("sample")], run_id="local")


def test_accepts_the_same_wheels_of_two_refs() -> None:
    refuse_collisions_of_locks(lock_of("second"), [lock_of("sample")], run_id="local")


def test_accepts_wheels_of_other_names() -> None:
    second = lock_of("second", vision=OTHER_VISION, vision_version="0.26.0")

    refuse_collisions_of_locks(second, [lock_of("sample")], run_id="local")


def test_accepts_the_same_commits_with_another_rocm() -> None:
    # Those for CPUs have one name, and are the same.
    refuse_collisions_of_locks(lock_of("second", rocm_version="7.2"), [lock_of("sample")], run_id="local")


def test_refuses_wheels_for_cpus_where_those_with_rocm_have_other_names() -> None:
    second = lock_of("second", vision=OTHER_VISION, rocm_version="7.2")

    with pytest.raises(SourceError, match=r"torchvision 0\.25\.0\+cpu"):
        refuse_collisions_of_locks(second, [lock_of("sample")], run_id="local")
