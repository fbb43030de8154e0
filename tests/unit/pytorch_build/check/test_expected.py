from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from core.errors import MissingInputError
from pytorch_build.check.expectations import expectation, expectations, run_lock

SUFFIX = "+devrocm7.99.0.dev0.sample"


def test_a_run_without_a_lock_is_told_how_to_get_one(run: Any) -> None:
    run.put_lock(run_id="77")
    with pytest.raises(MissingInputError, match="Run local has no source lock of sample") as caught:
        run_lock(run.context())
    assert "nox -s build_torch -- --torch-ref sample" in caught.value.hint
    assert run_lock(run.context(run_id="77")) == run.lock()


def test_every_component_has_its_version_and_requirements(run: Any) -> None:
    run.put_lock()
    run.built("triton")
    found = expectations(run.context())
    assert set(found) == {"triton", "torch", "torchaudio", "torchvision", "apex"}
    assert found["torch"].version == f"2.10.0a0{SUFFIX}"
    assert found["torch"].requires == (
        "rocm[libraries]==7.99.0.dev0+sample",
        f"triton==3.6.0{SUFFIX}",
    )
    assert found["torchaudio"].requires == (f"torch==2.10.0a0{SUFFIX}",)
    assert found["torchvision"].requires == (f"torch==2.10.0a0{SUFFIX}",)
    assert found["apex"].requires == ()
    assert found["torch"].local_label == "sample"
    assert "gfx942" in found["torch"].gpu_targets


def test_torch_built_alone_requires_no_triton(run: Any) -> None:
    run.put_lock()
    assert expectations(run.context())["torch"].requires == ("rocm[libraries]==7.99.0.dev0+sample",)


def test_family_cpu_requires_no_rocm(run: Any) -> None:
    run.put_lock()
    found = expectations(run.context("cpu"))
    assert found["torch"].requires == ()
    assert found["torchaudio"].requires == ("torch==2.10.0a0+cpu.sample",)
    assert found["torch"].gpu_targets == ()


def test_what_is_not_built_is_not_expected(run: Any) -> None:
    chosen = run.context()
    narrow = replace(chosen, ref=chosen.ref.only({"torch", "audio"}))
    run.put_lock()
    assert set(expectations(narrow)) == {"torch", "torchaudio"}
    # triton is locked all the same, but this torch was built without it
    assert expectation(narrow, run.lock(), "torch").requires == ("rocm[libraries]==7.99.0.dev0+sample",)


def test_wheels_on_a_prebuilt_torch_are_pinned_to_none_of_ours(run: Any) -> None:
    lock = run.lock()
    torch = lock.project("torch").model_copy(update={"prebuilt": "torch==2.13.0"})
    run.put_lock(lock.model_copy(update={"projects": {**lock.projects, "torch": torch}}))
    found = expectations(run.context("cpu"))
    assert "torch" not in found
    assert found["torchaudio"].requires == ()
