from collections.abc import Mapping

import pytest
from hypothesis import given
from hypothesis import strategies as st

from core.errors import RocmError, UsageError
from pytorch_build.build.request import choose_gpu_targets
from tests.kit.builds import SampleBuild


def with_targets(build: SampleBuild, *, option: str = "", variable: str = "") -> SampleBuild:
    """Return a build whose GPU targets a user named."""
    user_env: Mapping[str, str] = {"PYTORCH_ROCM_ARCH": variable} if variable else {}
    return build.requested(user_env=user_env, requested_targets=option)


@pytest.mark.parametrize(
    ("option", "variable", "targets"),
    [
        ("gfx90a;gfx942", "gfx950", ("gfx90a", "gfx942")),
        ("", "gfx950", ("gfx950",)),
    ],
    ids=["option", "variable"],
)
def test_takes_targets_from_the_option_before_the_variable(
    build: SampleBuild, option: str, variable: str, targets: tuple[str, ...]
) -> None:
    assert with_targets(build, option=option, variable=variable).request.gpu_targets == targets


def test_takes_the_familys_targets_by_default(build: SampleBuild) -> None:
    assert "gfx942" in build.request.gpu_targets


def test_takes_each_of_the_sdks_targets_once() -> None:
    targets = choose_gpu_targets(option="", variable="", family_targets=("gfx942", "gfx942", "gfx950"))

    assert targets == ("gfx942", "gfx950")


def test_keeps_the_features_of_a_target() -> None:
    targets = choose_gpu_targets(option="gfx90a:xnack+", variable="gfx1100", family_targets=())

    assert targets == ("gfx90a:xnack+",)


@pytest.mark.parametrize(
    ("option", "variable", "names"),
    [
        ("gfx942,gfx94X", "", ["'gfx94X'", "--pytorch-rocm-arch"]),
        ("gfx94X", "gfx950", ["'gfx94X'", "--pytorch-rocm-arch"]),
        ("", "native", ["'native'", "PYTORCH_ROCM_ARCH"]),
    ],
)
def test_rejects_a_name_that_is_not_a_target(option: str, variable: str, names: list[str]) -> None:
    with pytest.raises(UsageError) as caught:
        choose_gpu_targets(option=option, variable=variable, family_targets=())

    assert [name for name in names if name not in caught.value.message] == []


def test_rejects_an_sdk_without_targets_where_none_are_named() -> None:
    with pytest.raises(RocmError):
        choose_gpu_targets(option=" ", variable=";", family_targets=())


# Sampled rather than matched to a pattern: thousands of candidates, and each is drawn at once.
TARGETS = st.lists(
    st.sampled_from([f"gfx9{number:02x}" for number in range(256)])
    | st.integers(1000, 1999).map("gfx{}".format),
    min_size=1,
    max_size=20,
    unique=True,
)


@given(targets=TARGETS, separator=st.sampled_from([",", ";", " ", ", "]))
def test_keeps_the_order_of_targets_through_any_separator(targets: list[str], separator: str) -> None:
    assert choose_gpu_targets(option=separator.join(targets), variable="", family_targets=()) == tuple(
        targets
    )
