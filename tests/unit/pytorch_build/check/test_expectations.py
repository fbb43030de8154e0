from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest
from packaging.tags import parse_tag

from core.errors import DataError, MissingInputError
from pytorch_build.check import Expectation
from pytorch_build.check import expectations as checks
from pytorch_build.check.expectations import expectation, expectations, fits, run_lock

if TYPE_CHECKING:
    from collections.abc import Callable

    from pytorch_build.check import WheelView


ROCM = "torch-2.10.0a0+devrocm7.99.0.dev0.sample-cp312-cp312-linux_x86_64.whl"


def expected(
    distribution: str = "torch",
    version: str = "2.10.0a0+devrocm7.99.0.dev0.sample",
    python_tag: str = "cp312",
    requires: tuple[str, ...] = (),
) -> Expectation:
    return Expectation(distribution=distribution, version=version, python_tag=python_tag, requires=requires)


def found(view: WheelView, expectation: Expectation) -> list[str]:
    findings = list(checks.check_expectation(view, expectation))
    assert all(one.severity == "error" for one in findings)
    return [one.message for one in findings]


def test_everything_as_promised(view: Callable[..., WheelView]) -> None:
    wheel = view(ROCM, requires=["rocm[libraries,devel] ==7.99.0.dev0+sample", "triton==3.6.0", "numpy"])
    requires = ("rocm[libraries]==7.99.0.dev0+sample", "triton==3.6.0")
    assert found(wheel, expected(requires=requires)) == []


def test_versions_are_compared_as_versions(view: Callable[..., WheelView]) -> None:
    assert found(view(ROCM), expected(version="2.10.0a0+devrocm7.99.0.dev0-sample")) == []
    assert found(view(ROCM), expected(version="2.10.0a0")) == [
        "The version is 2.10.0a0+devrocm7.99.0.dev0.sample; 2.10.0a0 is expected."
    ]


def test_another_distribution_or_python(view: Callable[..., WheelView]) -> None:
    assert found(view(ROCM), expected(distribution="Torch_Audio", python_tag="cp313")) == [
        "This is torch; Torch_Audio is expected.",
        "The wheel is for cp312-cp312; cp313 is expected.",
    ]


@pytest.mark.parametrize(
    ("requires", "message"),
    [
        ([], "METADATA does not require rocm[libraries]==7.1."),
        (["rocm==7.1"], "METADATA requires rocm==7.1; rocm[libraries]==7.1 is expected."),
        (["rocm[libraries]==7.1.1"], "METADATA requires rocm[libraries]==7.1.1;"),
        (["rocm[libraries]>=7.1"], "METADATA requires rocm[libraries]>=7.1;"),
        (["rocm[libraries]==7.1; extra == 'gpu'"], "METADATA requires rocm[libraries]==7.1; extra"),
        (["rocm[", "torch"], "METADATA does not require"),
    ],
)
def test_requirements(view: Callable[..., WheelView], requires: list[str], message: str) -> None:
    (text,) = found(view(ROCM, requires=requires), expected(requires=("rocm[libraries]==7.1",)))
    assert text.startswith(message)


def test_a_promise_that_is_nonsense(view: Callable[..., WheelView]) -> None:
    with pytest.raises(DataError, match="Invalid version"):
        found(view(ROCM), expected(version="latest"))
    with pytest.raises(DataError, match="malformed"):
        found(view(ROCM, requires=["a"]), expected(requires=("rocm[",)))


@pytest.mark.parametrize(
    ("tag", "wanted", "fine"),
    [
        ("cp312-cp312-linux_x86_64", "cp312", True),
        ("cp312-cp312-linux_x86_64", "cp312-cp312", True),
        ("cp313-cp313t-linux_x86_64", "cp313-cp313t", True),
        ("cp313-cp313-linux_x86_64", "cp313-cp313t", False),
        ("cp313-cp313t-linux_x86_64", "cp313", False),
        ("cp39-abi3-linux_x86_64", "cp312", True),
        ("cp313-abi3-linux_x86_64", "cp312", False),
        ("cp39-abi3-linux_x86_64", "cp313-cp313t", False),
        ("py3-none-any", "cp312", True),
        ("py2-none-any", "cp312", False),
        ("cp312-none-linux_x86_64", "cp312", True),
    ],
)
def test_python_tags(tag: str, wanted: str, fine: bool) -> None:  # noqa: FBT001 - a parameter
    (one,) = parse_tag(tag)
    assert fits(one, wanted) is fine


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
