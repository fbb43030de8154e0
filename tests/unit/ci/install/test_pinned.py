"""Requirements of a person, pinned to what a run or an index offers."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from packaging.requirements import Requirement
from packaging.version import Version

from ci.install import parse_requirements, pin_requirement
from core.errors import MissingInputError, UsageError
from tests.kit.offers import make_offer

OFFERS = (
    make_offer("torch", "2.10.0a0+rocm7.1"),
    make_offer("rocm", "7.1", filename="rocm-7.1.tar.gz"),
    make_offer("triton", "3.5"),
    make_offer("triton", "3.6.0.dev1"),
)


def pin(text: str, *, takes_newest: bool = False) -> str:
    (requirement,) = parse_requirements([text])
    return pin_requirement(requirement, OFFERS, takes_newest=takes_newest)


@pytest.mark.parametrize(
    ("requirement", "expected"),
    [
        ("rocm[libraries,devel]", "rocm[devel,libraries]==7.1"),
        ("torch", "torch==2.10.0a0+rocm7.1"),
        ("Torch>=2.10.0a0", "Torch==2.10.0a0+rocm7.1"),
        ("numpy>=2", "numpy>=2"),
    ],
)
def test_pins_what_is_on_offer_and_leaves_others_alone(requirement: str, expected: str) -> None:
    assert pin(requirement) == expected


def test_reads_several_requirements_from_a_word() -> None:
    requirements = parse_requirements(["rocm[libraries,devel] torch numpy>=2"])

    assert [requirement.name for requirement in requirements] == ["rocm", "torch", "numpy"]


def test_asks_which_of_several_versions_is_meant() -> None:
    with pytest.raises(UsageError, match="triton") as caught:
        pin("triton")

    assert "3.5" in caught.value.message
    assert "triton==3.6.0.dev1" in caught.value.hint


def test_takes_the_one_version_that_fits() -> None:
    assert pin("triton<3.6.dev0") == "triton==3.5"


def test_takes_the_newest_of_several_versions_when_that_is_meant() -> None:
    assert pin("triton", takes_newest=True) == "triton==3.6.0.dev1"


@pytest.mark.parametrize(
    ("requirement", "mention"), [("torchvision", "no torchvision"), ("torch>=3", "2.10.0a0+rocm7.1")]
)
def test_does_not_look_elsewhere_for_a_package_of_ours(requirement: str, mention: str) -> None:
    with pytest.raises(MissingInputError) as caught:
        pin(requirement)

    assert mention in caught.value.message


YANKED_OFFERS = (make_offer("torch", "2.9"), make_offer("torch", "2.10", yanked=True))


def test_does_not_take_a_yanked_release_for_the_newest() -> None:
    assert pin_requirement(Requirement("torch"), YANKED_OFFERS, takes_newest=True) == "torch==2.9"


def test_takes_a_yanked_release_by_its_exact_version() -> None:
    assert pin_requirement(Requirement("torch==2.10"), YANKED_OFFERS) == "torch==2.10"


@pytest.mark.parametrize("requirement", ["torch>2.9", "torch==2.10.*"])
def test_names_yanked_releases_where_nothing_else_fits(requirement: str) -> None:
    with pytest.raises(MissingInputError) as caught:
        pin_requirement(Requirement(requirement), YANKED_OFFERS)

    assert "2.10 (yanked)" in caught.value.message


def test_a_package_of_ours_comes_from_no_other_address() -> None:
    with pytest.raises(UsageError, match="torch"):
        pin_requirement(Requirement("torch @ https://elsewhere/torch.whl"), OFFERS)


@pytest.mark.parametrize("options", [(), ("",), ("torch =2",)])
def test_refuses_text_that_is_not_a_requirement(options: tuple[str, ...]) -> None:
    with pytest.raises(UsageError, match="--packages"):
        parse_requirements(options)


@given(st.lists(st.sampled_from(["1.0", "1.0rc1", "2.0.dev3", "1.0+rocm7.1", "0.9", "2!1"]), min_size=1))
def test_the_newest_is_the_highest_by_pep_440(versions: list[str]) -> None:
    offers = [make_offer("torch", version) for version in versions]

    newest = max(map(Version, versions))

    assert pin_requirement(Requirement("torch"), offers, takes_newest=True) == f"torch=={newest}"
