"""What a dispatch or a calling workflow was given, as types; a name or value that is not known is refused."""

from __future__ import annotations

import re
from dataclasses import dataclass, fields, replace
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, get_args

from ci.plan.data import TestType
from ci.plan.families import ALL, NONE
from core.cli.options import RELEASE_TYPES
from core.errors import UsageError, nearest
from core.run.outputs import Platform  # noqa: TC001 - a dataclass's field

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

_ALIASES = MappingProxyType(
    {
        "linux_gpu_families": "linux_amdgpu_families",
        "windows_gpu_families": "windows_amdgpu_families",
        "pytorch_git_ref": "pytorch_git_refs",
        "pytorch_python_version": "pytorch_python_versions",
        "python_version": "pytorch_python_versions",
        "python_versions": "pytorch_python_versions",
    }
)
_KNOWN_VALUES: Mapping[str, tuple[str, ...]] = MappingProxyType(
    {"release_type": RELEASE_TYPES, "test_type": get_args(TestType)}
)
_WORD = re.compile(r"[A-Za-z0-9][A-Za-z0-9._+/-]*")
_STORE = re.compile(r"(s3://)?[A-Za-z0-9._/][A-Za-z0-9._+/-]*")
_URL = re.compile(r"https?://[A-Za-z0-9][A-Za-z0-9._~:/?&+,;=%-]*")
_LABEL = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")


@dataclass(frozen=True, kw_only=True)
class Inputs:
    """Inputs; None, or nothing, for what was not given.

    Attributes:
        linux_amdgpu_families: GPU families on Linux: names, ``all``, or ``none``; an empty list is none.
        windows_amdgpu_families: The same on Windows.
        linux_test_labels: Names of tests on Linux.
        windows_test_labels: The same on Windows.
        build_variants: Build variants, in the place of ``release``.
        build_pytorch: Whether PyTorch is built.
        pytorch_git_refs: Torch refs.
        pytorch_python_versions: Python series.
        pytorch_components: Of ``triton``, ``torch``, ``audio``, ``vision``, ``apex``.
        release_type: The release type.
        test_type: The test type.
        artifact_run_id: The artifact run, whose artifacts ROCm's packages are made of.
        artifact_repository: Its repository, where it is another than the data names.
        artifact_store: The store that has its outputs, where it is another than the data names.
        use_prebuilt_artifacts: Whether ROCm's packages are made of a run's artifacts in any case.
        rocm_package_index_url: The index that has ROCm's packages, in the place of an artifact run.
        rocm_package_version: The version of ROCm's packages.
        expect_failure: Whether every family's failure is expected.
        linux_build_runner: The machines that build on Linux.
        windows_build_runner: The same on Windows.
        linux_test_runner: The machines that test on Linux.
        windows_test_runner: The same on Windows.
    """

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
        """Give the families that were named, by platform."""
        named: dict[Platform, tuple[str, ...] | None] = {
            "linux": self.linux_amdgpu_families,
            "windows": self.windows_amdgpu_families,
        }
        return {platform: words for platform, words in named.items() if words is not None}

    def runner(self, platform: Platform, kind: str) -> str:
        """Give the runner label that was named for ``build`` or ``test``."""
        return str(getattr(self, f"{platform}_{kind}_runner"))


def read_inputs(given: Mapping[str, Any], *, exact: bool) -> Inputs:
    """Read inputs.

    Args:
        given: Names to values, as GitHub gives them: texts and booleans. An empty text was not given.
        exact: Families that are not named are not built: the event is a dispatch.

    Raises:
        UsageError: An input, a release type or a test type that is not known, with the nearest; a value
            that cannot be meant; an input under two names with two values.
    """
    known = {one.name for one in fields(Inputs)}
    read_as: dict[str, Any] = {}
    for name, value in sorted(given.items()):
        field_name = _ALIASES.get(name, name)
        if field_name not in known:
            raise UsageError(f"The input {name!r} is not known. {nearest(name, known | _ALIASES.keys())}")
        if value is None or (isinstance(value, str) and not value.strip()):
            continue
        _refuse_shape(name, value)
        found = _reader(field_name)(name, value)
        if read_as.setdefault(field_name, found) != found:
            raise UsageError(f"The input {name!r} contradicts {field_name!r}.", hint="Give one of them.")
    inputs = Inputs(**read_as)
    if not exact:
        return inputs
    return replace(
        inputs,
        linux_amdgpu_families=inputs.linux_amdgpu_families or (),
        windows_amdgpu_families=inputs.windows_amdgpu_families or (),
    )


def _reader(name: str) -> Callable[[str, Any], Any]:
    if name in {"build_pytorch", "use_prebuilt_artifacts", "expect_failure"}:
        return _flag
    if name in _KNOWN_VALUES:
        return lambda given, value: _of(given, value, _KNOWN_VALUES[name])
    if name.endswith("_amdgpu_families"):
        return _families
    if name.endswith(("_labels", "_variants", "_refs", "_versions", "_components")):
        return _words
    kinds = {"runner": (_LABEL, "runner label"), "store": (_STORE, "store"), "url": (_URL, "address")}
    pattern, what = kinds.get(name.rpartition("_")[2], (_WORD, "value"))
    return lambda given, value: _matching(given, value, pattern, what)


def _refuse_shape(name: str, value: Any) -> None:  # noqa: ANN401 - of a payload
    """Refuse what no input of GitHub is: an object, or a list of more than words."""
    for one in value if isinstance(value, list | tuple) else [value]:
        if not isinstance(one, str | bool | int | float):
            raise UsageError(f"The input {name!r} is neither a text nor a list of texts.")


def _flag(name: str, value: Any) -> bool:  # noqa: ANN401 - of a payload
    text = str(value).strip().lower()
    if text not in {"true", "false"}:
        raise UsageError(f"The input {name!r} is {value!r}.", hint="Give true or false.")
    return text == "true"


def _words(name: str, value: Any) -> tuple[str, ...]:  # noqa: ANN401 - of a payload
    texts = [str(one) for one in value] if isinstance(value, list | tuple) else [str(value)]
    words = [word for text in texts for word in re.split(r"[,;\s]+", text) if word]
    for word in words:
        _matching(name, word.removeprefix("test:"), _WORD, "name")
    return tuple(dict.fromkeys(words))


def _families(name: str, value: Any) -> tuple[str, ...]:  # noqa: ANN401 - of a payload
    words = _words(name, value)
    special = [word for word in words if word.lower() in {ALL, NONE}]
    if special and len(words) > 1:
        raise UsageError(f"The input {name!r} has {special[0]!r} beside other families.")
    return () if special and special[0].lower() == NONE else words


def _of(name: str, value: Any, known: tuple[str, ...]) -> str:  # noqa: ANN401 - of a payload
    if str(value) not in known:
        raise UsageError(f"The input {name!r} is {str(value)!r}. {nearest(str(value), known)}")
    return str(value)


def _matching(name: str, value: Any, pattern: re.Pattern[str], what: str) -> str:  # noqa: ANN401 - of a payload
    text = str(value).strip()
    if not pattern.fullmatch(text):
        raise UsageError(f"The input {name!r} is {text!r}, which is no {what}.")
    return text
