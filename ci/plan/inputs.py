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

from ci.plan.data import Data, Families, TestType
from core.cli.options import RELEASE_TYPES
from core.data import Model, data_file
from core.errors import UsageError, nearest
from core.families import families as all_families
from core.families import family
from core.run import PLATFORMS, Platform

ALL, NONE = "all", "none"
BUILD_PYTORCH, SKIP, ALL_FAMILIES = "build:pytorch", "ci:skip", "ci:run-all-archs"
_PREFIXES = ("build:", "ci:", "test:", "test_filter:", "test_runner:", "gfx")
_SUFFIXES = ("linux", "windows", "dcgpu", "dgpu", "igpu", "all")  # of a label, behind the family's own name
_SIMILAR = 0.8
_CHOICES: Mapping[str, tuple[str, ...]] = {"release type": RELEASE_TYPES, "test type": get_args(TestType)}
_PATTERNS = {
    "value": re.compile(r"[A-Za-z0-9][A-Za-z0-9._+/-]*"),
    "store": re.compile(r"(s3://)?[A-Za-z0-9._/][A-Za-z0-9._+/-]*"),
    "address": re.compile(r"https?://[A-Za-z0-9][A-Za-z0-9._~:/?&+,;=%-]*"),
    "runner label": re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*"),
}
_Value = TypeVar("_Value", bound=str)


class _Input(Model):
    about: str
    kind: Literal[
        "value", "store", "address", "runner label", "flag", "names", "families", "release type", "test type"
    ] = "value"
    aliases: tuple[str, ...] = ()


class _Table(Model):
    inputs: dict[str, _Input]


table = data_file(Path(__file__).with_name("inputs.toml"), _Table)


@dataclass(frozen=True, kw_only=True)
class Inputs:
    """Inputs, as `inputs.toml` explains them; None, or nothing, for what was not given."""

    linux_amdgpu_families: tuple[str, ...] | None = None
    windows_amdgpu_families: tuple[str, ...] | None = None
    linux_test_labels: tuple[str, ...] = ()
    windows_test_labels: tuple[str, ...] = ()
    build_variants: tuple[str, ...] = ()
    build_pytorch: bool | None = None
    pytorch_git_refs: tuple[str, ...] = ()
    pytorch_python_versions: tuple[str, ...] = ()
    pytorch_components: tuple[str, ...] = ()
    release_type: str = ""
    test_type: TestType | None = None
    artifact_run_id: str = ""
    artifact_repository: str = ""
    artifact_store: str = ""
    use_prebuilt_artifacts: bool = False
    rocm_package_index_url: str = ""
    rocm_package_version: str = ""
    expect_failure: bool = False
    linux_build_runner: str = ""
    windows_build_runner: str = ""
    linux_test_runner: str = ""
    windows_test_runner: str = ""

    def families(self) -> Mapping[Platform, tuple[str, ...]]:
        """Return the families that were named, by platform."""
        named = {platform: getattr(self, f"{platform}_amdgpu_families") for platform in PLATFORMS}
        return {platform: words for platform, words in named.items() if words is not None}

    def runner(self, platform: Platform, kind: str) -> str:
        """Return the runner label that was named for ``build`` or ``test``."""
        return str(getattr(self, f"{platform}_{kind}_runner"))


@dataclass(frozen=True, kw_only=True)
class Labels:
    """What the labels come to; families and variants to the labels that name them."""

    skip: bool = False
    all_families: bool = False
    build_pytorch: bool = False
    families: Mapping[str, str] = field(default_factory=dict)
    variants: Mapping[str, str] = field(default_factory=dict)
    tests: tuple[str, ...] = ()
    test_filter: TestType | None = None
    kernel: str = ""
    notes: tuple[str, ...] = ()

    @property
    def request(self) -> str:
        """The label that requests a build, whatever has changed; "" for none."""
        named = (*self.families.values(), *self.variants.values(), *(f"test:{name}" for name in self.tests))
        flags = ((self.build_pytorch, BUILD_PYTORCH), (self.all_families, ALL_FAMILIES))
        return next(iter((*(label for wanted, label in flags if wanted), *named)), "")


def read_inputs(given: Mapping[str, Any], *, exact: bool) -> Inputs:
    """Read inputs as GitHub gives them: texts and booleans; an empty text was not given.

    With `exact`, of a dispatch, families that are not named are not built.
    """
    known = table().inputs
    names = {alias: name for name, one in known.items() for alias in (name, *one.aliases)}
    found: dict[str, Any] = {}
    for name, value in sorted(given.items()):
        if name not in names:
            raise UsageError(f"Unknown input {name!r}. {nearest(name, names)}")
        if value is None or (isinstance(value, str) and not value.strip()):
            continue
        for one in value if isinstance(value, list | tuple) else [value]:
            if not isinstance(one, str | bool | int | float):
                raise UsageError(f"The input {name!r} is neither a text nor a list of texts.")
        read = _read(name, value, known[names[name]].kind)
        if found.setdefault(names[name], read) != read:
            raise UsageError(f"The input {name!r} contradicts {names[name]!r}.", hint="Give one of them.")
    unnamed = {f"{platform}_amdgpu_families": () for platform in PLATFORMS if exact}
    return Inputs(**{**unnamed, **found})


def _read(name: str, value: Any, kind: str) -> Any:  # noqa: ANN401 - of a payload
    if reader := {"flag": _flag, "names": _names, "families": _families}.get(kind):
        return reader(name, value)
    text = str(value).strip()
    if kind in _CHOICES and text not in _CHOICES[kind]:
        raise UsageError(f"The input {name!r} is {text!r}. {nearest(text, _CHOICES[kind])}")
    if kind in _PATTERNS and not _PATTERNS[kind].fullmatch(text):
        raise UsageError(f"The input {name!r} is {text!r}: not a valid {kind}.")
    return text


def _flag(name: str, value: Any) -> bool:  # noqa: ANN401 - of a payload
    text = str(value).strip().lower()
    if text not in {"true", "false"}:
        raise UsageError(f"The input {name!r} is {value!r}.", hint="Give true or false.")
    return text == "true"


def _names(name: str, value: Any) -> tuple[str, ...]:  # noqa: ANN401 - of a payload
    texts = [str(one) for one in value] if isinstance(value, list | tuple) else [str(value)]
    words = [word for text in texts for word in re.split(r"[,;\s]+", text) if word]
    for word in (one.removeprefix("test:") for one in words):
        if not _PATTERNS["value"].fullmatch(word):
            raise UsageError(f"The input {name!r} is {word!r}: not a valid name.")
    return tuple(dict.fromkeys(words))


def _families(name: str, value: Any) -> tuple[str, ...]:  # noqa: ANN401 - of a payload
    words = _names(name, value)
    special = [word for word in words if word.lower() in {ALL, NONE}]
    if special and len(words) > 1:
        raise UsageError(f"The input {name!r} has {special[0]!r} beside other families.")
    return () if special and special[0].lower() == NONE else words


def read_labels(labels: Iterable[str], data: Data) -> Labels:
    """Read the labels of a pull request."""
    given = sorted({label.lower(): label for label in labels})
    known = known_labels(data)
    variants = {one.label: name for name, one in data.families.variants.items() if one.label}
    ours = [label for label in given if label.startswith(_PREFIXES)]
    families: dict[str, str] = {}
    for label in ours:
        if label.startswith("gfx"):
            families.setdefault(named_family(label, data.families, what="label"), label)
        elif label not in known:
            raise UsageError(f"Unknown label {label!r}. {nearest(label, known)}")
    return Labels(
        skip=SKIP in ours,
        all_families=ALL_FAMILIES in ours,
        build_pytorch=BUILD_PYTORCH in ours,
        families=families,
        variants={variants[label]: label for label in ours if label in variants},
        tests=tuple(name for name in data.triggers.tests if f"test:{name}" in ours),
        test_filter=_only(ours, "test_filter:", get_args(TestType)),
        kernel=_only(ours, "test_runner:", sorted(kernels(data))) or "",
        notes=tuple(filter(None, (_similar(label, known) for label in given if label not in ours))),
    )


def known_labels(data: Data) -> Sequence[str]:
    """List every label that CI knows, those of families last."""
    return [
        *(BUILD_PYTORCH, SKIP, ALL_FAMILIES),
        *(one.label for one in data.families.variants.values() if one.label),
        *(f"test:{name}" for name in data.triggers.tests),
        *(f"test_filter:{name}" for name in get_args(TestType)),
        *(f"test_runner:{name}" for name in sorted(kernels(data))),
        *sorted({name.partition("-")[0].lower() for name in data.families.families if name != "cpu"}),
    ]


def kernels(data: Data) -> set[str]:
    """Return the kernels that some machine has."""
    runners = data.runners.families.values()
    return {kernel for platforms in runners for one in platforms.values() for kernel in one.kernels}


def _only(ours: Sequence[str], prefix: str, values: Sequence[_Value]) -> _Value | None:
    found = [value for value in values if f"{prefix}{value}" in ours]
    if len(found) > 1:
        named = " and ".join(f"{prefix}{value}" for value in found)
        raise UsageError(f"The labels {named} contradict each other.", hint="Leave one of them.")
    return found[0] if found else None


def _similar(label: str, known: Sequence[str]) -> str:
    """Note that another label looks like one of ours."""
    close = get_close_matches("".join(label.split()), known, n=1, cutoff=_SIMILAR)
    return f"the label {label!r} means nothing to CI; {close[0]!r} would" if close else ""


def named_family(word: str, data: Families, *, what: str) -> str:
    """Find a family by its name, the name's first part, or a gfx target of it."""
    named = word.lower()
    names = {name.lower(): name for name in data.families}
    if named in names:
        return names[named]
    first, dash, suffix = named.partition("-")
    shorts = {name.partition("-")[0]: full for name, full in names.items()}
    if not dash or suffix in _SUFFIXES:
        if first in shorts:
            return shorts[first]
        for name in data.families:
            if first in family(name).targets:
                return name
    if named in {name.lower() for name in all_families()}:
        raise UsageError(f"CI does not build the {what} {word!r}. {nearest(word, data.families)}")
    raise UsageError(f"Unknown {what} {word!r}. {nearest(word, {*names.values(), *shorts})}")
