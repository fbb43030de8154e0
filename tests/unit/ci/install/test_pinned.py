import re
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from packaging.requirements import Requirement
from packaging.version import Version

from ci.install import parse_requirements, pinned
from core.errors import MissingInputError, UsageError
from tests.unit.core.packages.test_packages import offer

OFFERS = (
    offer("torch", "2.10.0a0+rocm7.1"),
    offer("rocm", "7.1", "rocm-7.1.tar.gz"),
    offer("triton", "3.5"),
    offer("triton", "3.6.0.dev1"),
)


def pins(*words: str, newest: bool = False) -> tuple[str, ...]:
    return tuple(pinned(one, OFFERS, newest=newest) for one in parse_requirements(words))


def test_names_of_the_run_are_pinned_to_its_version_and_others_left_alone() -> None:
    asked = "rocm[libraries,devel] torch numpy>=2 Torch>=2.10.0a0"
    assert pins(asked) == (
        "rocm[devel,libraries]==7.1",
        "torch==2.10.0a0+rocm7.1",
        "numpy>=2",
        "Torch==2.10.0a0+rocm7.1",
    )


def test_one_of_several_versions_must_be_named_unless_the_newest_is_meant() -> None:
    with pytest.raises(UsageError, match=r"several versions of triton: 3\.5, 3\.6\.0\.dev1") as caught:
        pins("triton")
    assert "triton==3.6.0.dev1" in caught.value.hint
    assert pins("triton<3.6.dev0") == ("triton==3.5",)
    assert pins("triton", newest=True) == ("triton==3.6.0.dev1",)


def test_a_name_of_ours_that_the_run_lacks_is_not_looked_for_elsewhere() -> None:
    with pytest.raises(MissingInputError, match="no torchvision for this Python"):
        pins("torchvision")
    with pytest.raises(MissingInputError, match=r"There is no torch>=3, but torch 2\.10\.0a0\+rocm7\.1"):
        pins("torch>=3")


def test_a_yanked_release_is_taken_only_by_its_exact_version() -> None:
    offers = [offer("torch", "2.9"), replace(offer("torch", "2.10"), yanked=True)]
    assert pinned(Requirement("torch"), offers, newest=True) == "torch==2.9"
    assert pinned(Requirement("torch==2.10"), offers) == "torch==2.10"
    for text in ("torch>2.9", "torch==2.10.*"):
        with pytest.raises(MissingInputError, match=re.escape(f"no {text}, but torch 2.9, 2.10 (yanked)")):
            pinned(Requirement(text), offers)


def test_one_of_ours_comes_from_no_other_address() -> None:
    with pytest.raises(UsageError, match="torch is to come from the index"):
        pinned(Requirement("torch @ https://elsewhere/torch.whl"), OFFERS)


@pytest.mark.parametrize("words", [(), ("",), ("torch =2",)])
def test_what_is_no_requirement_is_said(words: tuple[str, ...]) -> None:
    with pytest.raises(UsageError, match="--packages"):
        parse_requirements(words)


@given(st.lists(st.sampled_from(["1.0", "1.0rc1", "2.0.dev3", "1.0+rocm7.1", "0.9", "2!1"]), min_size=1))
def test_the_newest_is_the_highest_by_pep_440(versions: list[str]) -> None:
    offers = [offer("torch", version) for version in versions]
    assert pinned(Requirement("torch"), offers, newest=True) == f"torch=={max(map(Version, versions))}"
