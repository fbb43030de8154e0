"""What a run is to do: the inputs of a dispatch or a calling workflow, the labels of a pull request.

Labels that begin with ``build:``, ``ci:``, ``test:``, ``test_filter:``, ``test_runner:`` or ``gfx`` are
CI's, in any case of letters. An unknown label of these, input or value is an error; other labels are ignored.
"""

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from difflib import get_close_matches
from pathlib import Path
from typing import Any, Literal, TypeVar, get_args

from ci.plan.data import Families, Names, PlanData, TestType
from core.cli.options import RELEASE_TYPES
from core.data import Model, data_file
from core.errors import UsageError, nearest
from core.families import CPU, family
from core.families import families as all_families
from core.run import PLATFORMS, Platform

ALL = "all"
NONE = "none"

BUILD_PYTORCH = "build:pytorch"
SKIP = "ci:skip"
ALL_FAMILIES = "ci:run-all-archs"
TEST_PREFIX = "test:"

_TEST_FILTER_PREFIX = "test_filter:"
_TEST_RUNNER_PREFIX = "test_runner:"
_FAMILY_PREFIX = "gfx"
_PREFIXES = ("build:", "ci:", TEST_PREFIX, _TEST_FILTER_PREFIX, _TEST_RUNNER_PREFIX, _FAMILY_PREFIX)

# A label may have one of these behind the first part of a family's name.
_SUFFIXES = ("linux", "windows", "dcgpu", "dgpu", "igpu", "all")

# How much a label must look like one of CI's to be noted.
_SIMILARITY = 0.8

Kind = Literal[
    "value",
    "store",
    "address",
    "runner label",
    "flag",
    "names",
    "families",
    "release type",
    "test type",
]

_CHOICES: Mapping[str, Names] = {
    "release type": RELEASE_TYPES,
    "test type": get_args(TestType),
}
_PATTERNS = {
    "value": re.compile(r"[A-Za-z0-9][A-Za-z0-9._+/-]*"),
    "store": re.compile(r"(s3://)?[A-Za-z0-9._/][A-Za-z0-9._+/-]*"),
    "address": re.compile(r"https?://[A-Za-z0-9][A-Za-z0-9._~:/?&+,;=%-]*"),
    "runner label": re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*"),
}
_Value = TypeVar("_Value", bound=str)


class _Input(Model):
    about: str
    kind: Kind = "value"
    aliases: Names = ()


class _Table(Model):
    inputs: dict[str, _Input]


table = data_file(Path(__file__).with_name("inputs.toml"), _Table)


@dataclass(frozen=True, kw_only=True)
class Inputs:
    """Inputs, as `inputs.toml` explains them; None, or nothing, for what was not given."""

    linux_amdgpu_families: Names | None = None
    windows_amdgpu_families: Names | None = None
    linux_test_labels: Names = ()
    windows_test_labels: Names = ()
    build_variants: Names = ()
    build_pytorch: bool | None = None
    pytorch_git_refs: Names = ()
    pytorch_python_versions: Names = ()
    pytorch_components: Names = ()
    release_type: str | None = None
    test_type: TestType | None = None
    artifact_run_id: str | None = None
    artifact_repository: str | None = None
    artifact_store: str | None = None
    use_prebuilt_artifacts: bool = False
    rocm_package_index_url: str | None = None
    rocm_package_version: str | None = None
    expect_failure: bool = False
    linux_build_runner: str | None = None
    windows_build_runner: str | None = None
    linux_test_runner: str | None = None
    windows_test_runner: str | None = None

    @property
    def names_families(self) -> bool:
        """Whether families are requested, or none, on any platform."""
        return any(self.families(platform) is not None for platform in PLATFORMS)

    def families(self, platform: Platform) -> Names | None:
        """Return the families that are requested on a platform."""
        return self.linux_amdgpu_families if platform == "linux" else self.windows_amdgpu_families

    def test_labels(self, platform: Platform) -> Names:
        """Return the tests that are requested on a platform."""
        return self.linux_test_labels if platform == "linux" else self.windows_test_labels

    def build_runner(self, platform: Platform) -> str | None:
        """Return the label of the machines that are to build on a platform."""
        return self.linux_build_runner if platform == "linux" else self.windows_build_runner

    def test_runner(self, platform: Platform) -> str | None:
        """Return the label of the machines that are to test on a platform."""
        return self.linux_test_runner if platform == "linux" else self.windows_test_runner


@dataclass(frozen=True, kw_only=True)
class Labels:
    """What the labels request; families and variants come with the label that names them."""

    skip: bool = False
    all_families: bool = False
    build_pytorch: bool = False
    families: Mapping[str, str] = field(default_factory=dict)
    variants: Mapping[str, str] = field(default_factory=dict)
    tests: Names = ()
    test_filter: TestType | None = None
    kernel: str | None = None
    notes: Names = ()

    @property
    def request(self) -> str | None:
        """The first label that requests a build, whatever has changed."""
        if self.build_pytorch:
            return BUILD_PYTORCH
        if self.all_families:
            return ALL_FAMILIES

        labels = [
            *self.families.values(),
            *self.variants.values(),
            *(f"{TEST_PREFIX}{name}" for name in self.tests),
        ]
        return labels[0] if labels else None


def read_inputs(values: Mapping[str, Any], *, exact: bool) -> Inputs:
    """Read inputs as GitHub gives them: texts and booleans; an empty text was not given.

    With `exact`, of a dispatch, families of one platform leave out the other one's.
    """
    names: dict[str, str] = {}
    for name, declaration in table().inputs.items():
        for alias in (name, *declaration.aliases):
            names[alias] = name

    read_values: dict[str, Any] = {}
    for alias, value in sorted(values.items()):
        if alias not in names:
            raise UsageError(f"Unknown input {alias!r}. {nearest(alias, names)}")
        if value is None or (isinstance(value, str) and not value.strip()):
            continue

        name = names[alias]
        _refuse_other_than_texts(alias, value)
        read_value = _read(alias, value, table().inputs[name].kind)
        if read_values.setdefault(name, read_value) != read_value:
            raise UsageError(f"The input {alias!r} contradicts {name!r}.", hint="Give one of them.")

    inputs = Inputs(**read_values)
    if not exact or not inputs.names_families:
        return inputs
    for platform in PLATFORMS:
        read_values.setdefault(f"{platform}_amdgpu_families", ())
    return Inputs(**read_values)


def _refuse_other_than_texts(alias: str, value: Any) -> None:  # noqa: ANN401 - of a payload
    members = value if isinstance(value, list | tuple) else [value]
    for member in members:
        # YAML and JSON read 3.10 without quotes as 3.1, and nobody can tell them apart afterwards.
        if isinstance(member, float):
            raise UsageError(
                f"The input {alias!r} is the number {member}, which may have lost zeros.",
                hint=f'Write it as a text: "{member}".',
            )
        if not isinstance(member, str | bool | int):
            raise UsageError(f"The input {alias!r} is neither a text nor a list of texts.")


def _read(alias: str, value: Any, kind: Kind) -> Any:  # noqa: ANN401 - of a payload
    if kind == "flag":
        return _read_flag(alias, value)
    if kind == "names":
        return _read_names(alias, value)
    if kind == "families":
        return _read_families(alias, value)

    text = str(value).strip()
    if kind in _CHOICES and text not in _CHOICES[kind]:
        raise UsageError(f"The input {alias!r} is {text!r}. {nearest(text, _CHOICES[kind])}")
    if kind in _PATTERNS and not _PATTERNS[kind].fullmatch(text):
        raise UsageError(f"The input {alias!r} is {text!r}: not a valid {kind}.")
    return text


def _read_flag(alias: str, value: Any) -> bool:  # noqa: ANN401 - of a payload
    text = str(value).strip().lower()
    if text not in {"true", "false"}:
        raise UsageError(f"The input {alias!r} is {value!r}.", hint="Give true or false.")
    return text == "true"


def _read_names(alias: str, value: Any) -> Names:  # noqa: ANN401 - of a payload
    """Return names without duplicates, of a list or of a text that separates them."""
    texts = value if isinstance(value, list | tuple) else [value]
    names: list[str] = []
    for text in texts:
        for name in re.split(r"[,;\s]+", str(text)):
            if name and name not in names:
                names.append(name)

    for name in names:
        # A test may be named by its label, too: test:torch.
        bare_name = name.removeprefix(TEST_PREFIX)
        if not _PATTERNS["value"].fullmatch(bare_name):
            raise UsageError(f"The input {alias!r} is {bare_name!r}: not a valid name.")
    return tuple(names)


def _read_families(alias: str, value: Any) -> Names:  # noqa: ANN401 - of a payload
    names = _read_names(alias, value)
    if len(names) == 1:
        return () if names[0].lower() == NONE else names

    for name in names:
        if name.lower() in {ALL, NONE}:
            raise UsageError(f"The input {alias!r} has {name!r} beside other families.")
    return names


def read_labels(labels: Iterable[str], plan_data: PlanData) -> Labels:
    """Read the labels of a pull request."""
    all_labels = sorted({label.lower() for label in labels})
    our_labels = [label for label in all_labels if label.startswith(_PREFIXES)]
    ci_labels = known_labels(plan_data)

    families: dict[str, str] = {}
    for label in our_labels:
        if label.startswith(_FAMILY_PREFIX):
            families.setdefault(named_family(label, plan_data.families, noun="label"), label)
        elif label not in ci_labels:
            raise UsageError(f"Unknown label {label!r}. {nearest(label, ci_labels)}")

    variants: dict[str, str] = {}
    for label in our_labels:
        for name, variant in plan_data.families.variants.items():
            if variant.label == label:
                variants[name] = label

    notes: list[str] = []
    for label in all_labels:
        similar_label = _similar_label(label, ci_labels)
        if label not in our_labels and similar_label is not None:
            notes.append(f"the label {label!r} means nothing to CI; {similar_label!r} would")

    return Labels(
        skip=SKIP in our_labels,
        all_families=ALL_FAMILIES in our_labels,
        build_pytorch=BUILD_PYTORCH in our_labels,
        families=families,
        variants=variants,
        tests=tuple(name for name in plan_data.triggers.tests if f"{TEST_PREFIX}{name}" in our_labels),
        test_filter=_value_of(_TEST_FILTER_PREFIX, get_args(TestType), our_labels),
        kernel=_value_of(_TEST_RUNNER_PREFIX, sorted(kernels(plan_data)), our_labels),
        notes=tuple(notes),
    )


def known_labels(plan_data: PlanData) -> Sequence[str]:
    """Return every label that CI knows, those of families last."""
    variants = plan_data.families.variants.values()
    labels = [BUILD_PYTORCH, SKIP, ALL_FAMILIES]
    labels += [variant.label for variant in variants if variant.label is not None]
    labels += [f"{TEST_PREFIX}{name}" for name in plan_data.triggers.tests]
    labels += [f"{_TEST_FILTER_PREFIX}{test_type}" for test_type in get_args(TestType)]
    labels += [f"{_TEST_RUNNER_PREFIX}{kernel}" for kernel in sorted(kernels(plan_data))]

    families = set(plan_data.families.families) - {CPU}
    labels += sorted({_first_part(gpu_family) for gpu_family in families})
    return labels


def kernels(plan_data: PlanData) -> set[str]:
    """Return the kernels that some machine has."""
    names: set[str] = set()
    for platforms in plan_data.runners.families.values():
        for runner in platforms.values():
            names.update(runner.kernels)
    return names


def _value_of(
    prefix: str,
    values: Sequence[_Value],
    labels: Sequence[str],
) -> _Value | None:
    """Return which of some values a label names behind a prefix."""
    named_values = [value for value in values if f"{prefix}{value}" in labels]
    if len(named_values) > 1:
        contradiction = " and ".join(f"{prefix}{value}" for value in named_values)
        raise UsageError(
            f"The labels {contradiction} contradict each other.",
            hint="Leave one of them.",
        )
    return named_values[0] if named_values else None


def _similar_label(label: str, ci_labels: Sequence[str]) -> str | None:
    """Return the label of CI that another label looks like."""
    label_without_spaces = "".join(label.split())
    matches = get_close_matches(label_without_spaces, ci_labels, n=1, cutoff=_SIMILARITY)
    return matches[0] if matches else None


def named_family(text: str, families: Families, *, noun: str) -> str:
    """Return a family by its name, the name's first part, or a gfx target of it.

    A text that names none is refused as an unknown `noun`.
    """
    lower_text = text.lower()
    names = {gpu_family.lower(): gpu_family for gpu_family in families.families}
    if lower_text in names:
        return names[lower_text]

    short_names = {_first_part(gpu_family): gpu_family for gpu_family in families.families}
    first_part, dash, suffix = lower_text.partition("-")
    if not dash or suffix in _SUFFIXES:
        if first_part in short_names:
            return short_names[first_part]
        for gpu_family in families.families:
            if first_part in family(gpu_family).targets:
                return gpu_family

    if lower_text in {gpu_family.lower() for gpu_family in all_families()}:
        raise UsageError(f"CI does not build the {noun} {text!r}. {nearest(text, families.families)}")
    suggestion = nearest(text, {*families.families, *short_names})
    raise UsageError(f"Unknown {noun} {text!r}. {suggestion}")


def _first_part(gpu_family: str) -> str:
    """Return what labels call a family: ``gfx94x`` for gfx94X-dcgpu."""
    return gpu_family.partition("-")[0].lower()
