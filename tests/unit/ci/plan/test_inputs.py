from dataclasses import fields

import pytest

from ci.plan.inputs import Inputs, Labels, known_labels, read_labels, table
from core.errors import UsageError
from tests.unit.ci.plan.planning import known


def test_every_input_is_explained() -> None:
    assert list(table().inputs) == [one.name for one in fields(Inputs)]


def test_labels_of_ours_are_taken_in_any_case() -> None:
    found = read_labels(
        ["Build:PyTorch", "GFX94X-dcgpu", "CI:run-all-archs", "test_filter:Full", "test_runner:oem"], known()
    )
    assert found.build_pytorch
    assert found.all_families
    assert found.families == {"gfx94X-dcgpu": "gfx94x-dcgpu"}
    assert (found.test_filter, found.kernel) == ("full", "oem")
    assert found.request == "build:pytorch"
    with pytest.raises(UsageError, match="test_filter:quick and test_filter:full contradict"):
        read_labels(["test_filter:quick", "test_filter:full"], known())


@pytest.mark.parametrize(
    ("label", "family"),
    [
        ("gfx94x", "gfx94X-dcgpu"),
        ("gfx94X-linux", "gfx94X-dcgpu"),
        ("gfx942", "gfx94X-dcgpu"),
        ("gfx1100", "gfx110X-all"),
        ("gfx110X-all", "gfx110X-all"),
        ("gfx1151", "gfx1151"),
        ("gfx1151-windows", "gfx1151"),
        ("gfx90a-dcgpu", "gfx90a"),
        ("gfx1036", "gfx103X-all"),
    ],
)
def test_a_family_is_named_by_its_first_part_or_a_target(label: str, family: str) -> None:
    assert list(read_labels([label], known()).families) == [family]


@pytest.mark.parametrize(
    ("label", "meant"),
    [
        ("build:pytorhc", "build:pytorch"),
        ("build: pytorch", "build:pytorch"),
        ("build:pytorch ", "build:pytorch"),
        ("ci:skp", "ci:skip"),
        ("test_filter:quik", "test_filter:quick"),
        ("test:smok", "test:smoke"),
        ("test_runner:omg", "test_runner:oem"),
        ("gfx115", "gfx115"),
        ("gfx1151-lnux", "gfx1151"),
        ("gfx99", "gfx9"),
        ("gfx94X-linux'; rm -rf /", "gfx94x"),
    ],
)
def test_a_label_of_ours_that_is_not_known_is_an_error(label: str, meant: str) -> None:
    with pytest.raises(UsageError) as caught:
        read_labels([label], known())
    assert meant in str(caught.value)


def test_somebody_elses_label_that_looks_like_ours_is_told() -> None:
    (note,) = read_labels(["build-pytorch", "buildpytorch "], known()).notes[:1]
    assert "'build:pytorch' would" in note
    assert read_labels([], known()) == Labels()
    assert read_labels(["bug", "good first issue", "🚀", "", "documentation", "ready"], known()) == Labels()


def test_every_known_label_is_known() -> None:
    listed = known_labels(known())
    assert {"build:pytorch", "ci:skip", "ci:run-all-archs", "ci:asan", "test:rocm", "gfx1151"} <= set(listed)
    for label in listed:
        assert read_labels([label], known()) != Labels()
