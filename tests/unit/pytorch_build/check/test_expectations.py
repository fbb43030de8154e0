from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from packaging.tags import parse_tag

from core.errors import DataError
from pytorch_build.check import Expectation, expectations
from pytorch_build.check.expectations import fits

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
    findings = list(expectations.check(view, expectation))
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
