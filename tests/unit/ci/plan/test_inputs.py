"""Labels of a pull request, and the inputs of a dispatch."""

from dataclasses import fields

import pytest

from ci.plan.inputs import Inputs, Labels, known_labels, read_inputs, read_labels, table
from core.errors import UsageError
from tests.kit.planning import ci_data


def test_every_input_is_explained() -> None:
    assert list(table().inputs) == [field.name for field in fields(Inputs)]


@pytest.mark.parametrize("value", [3.1, ["3.12", 3.1]], ids=["number", "number in a list"])
def test_refuses_a_number_that_may_have_lost_zeros(value: object) -> None:
    with pytest.raises(UsageError) as raised:
        read_inputs({"pytorch_python_versions": value}, exact=True)

    assert "pytorch_python_versions" in raised.value.message
    assert '"3.1"' in raised.value.hint


def test_takes_a_run_id_that_is_a_number() -> None:
    assert read_inputs({"artifact_run_id": 17123441166}, exact=True).artifact_run_id == "17123441166"


def test_reads_labels_in_any_case() -> None:
    labels_in_any_case = [
        "Build:PyTorch",
        "GFX94X-dcgpu",
        "CI:run-all-archs",
        "test_filter:Full",
        "test_runner:oem",
    ]

    labels = read_labels(labels_in_any_case, ci_data())

    assert labels.build_pytorch
    assert labels.all_families
    assert labels.families == {"gfx94X-dcgpu": "gfx94x-dcgpu"}
    assert labels.test_filter == "full"
    assert labels.kernel == "oem"
    assert labels.request == "build:pytorch"


def test_refuses_labels_that_contradict_each_other() -> None:
    with pytest.raises(UsageError) as caught:
        read_labels(["test_filter:quick", "test_filter:full"], ci_data())

    assert "test_filter:quick" in str(caught.value)
    assert "test_filter:full" in str(caught.value)


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
def test_a_label_names_a_family_by_its_first_part_or_a_target(label: str, family: str) -> None:
    assert list(read_labels([label], ci_data()).families) == [family]


@pytest.mark.parametrize(
    ("label", "suggestion"),
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
def test_refuses_an_unknown_label_of_ours_with_the_closest_one(label: str, suggestion: str) -> None:
    with pytest.raises(UsageError) as caught:
        read_labels([label], ci_data())

    assert suggestion in str(caught.value)


def test_notes_a_label_that_looks_like_one_of_ours() -> None:
    notes = read_labels(["build-pytorch", "buildpytorch "], ci_data()).notes

    assert "'build-pytorch'" in notes[0]
    assert "'build:pytorch'" in notes[0]


@pytest.mark.parametrize(
    "labels", [[], ["bug", "good first issue", "🚀", "", "documentation", "ready"]], ids=["none", "of others"]
)
def test_labels_of_others_mean_nothing(labels: list[str]) -> None:
    assert read_labels(labels, ci_data()) == Labels()


def test_lists_labels_of_every_kind() -> None:
    labels = set(known_labels(ci_data()))

    assert {"build:pytorch", "ci:skip", "ci:run-all-archs", "ci:asan", "test:rocm", "gfx1151"} <= labels


def test_every_listed_label_means_something() -> None:
    for label in known_labels(ci_data()):
        assert read_labels([label], ci_data()) != Labels()
