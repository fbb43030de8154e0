"""The texts of a stand-alone wheel: version, requirements, licences, and the Python that loads ROCm."""

from __future__ import annotations

import ast
import contextlib
import re
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from packaging.licenses import InvalidLicenseExpression, canonicalize_license_expression
from packaging.requirements import InvalidRequirement, Requirement
from packaging.utils import canonicalize_name

from core.data import read_text
from core.errors import WheelError
from core.wheel import parse_wheel_name, read_metadata
from pytorch_build.standalone.libraries import listing_of
from rocm_packaging.packages.layouts import device_target, is_rocm
from rocm_packaging.packages.payload import joined

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from packaging.version import Version

FOLDER = "lib/rocm"
"""Where ROCm lies in torch's package, on both platforms."""
_EXTRA = re.compile(r"provides-extra:\s*(device-\S+)", re.IGNORECASE)
_DLL_INSERT = 'dll_paths.insert(0, os.path.join(th_dll_path, "rocm", "bin"))'


@dataclass(frozen=True, kw_only=True)
class Licenses:
    """The licences of some wheels: member -> path below ``licenses`` of the new wheel."""

    expression: str
    files: Mapping[Path, Mapping[str, str]]

    @property
    def paths(self) -> list[str]:
        """The paths of all of them, sorted."""
        return sorted(path for names in self.files.values() for path in names.values())


@dataclass(frozen=True, kw_only=True)
class Loader:
    """What a wheel's ``_rocm_init.py`` loads by `rocm_sdk`: libraries by short names, of a version."""

    names: tuple[str, ...]
    version: str


def standalone_version(version: Version, label: str) -> str:
    """Mark a version: ``2.10.0+rocm7.10.0`` becomes ``2.10.0+rocm7.10.0.standalone``.

    PEP 440 lets a local version have letters, digits and dots, and sorts the longer one later.
    """
    if version.local and label in version.local.split("."):
        raise WheelError(f"Version {version} is that of a stand-alone wheel already.")
    return f"{version}.{label}" if version.local else f"{version}+{label}"


def standalone_metadata(content: bytes, version: str, licenses: Licenses) -> bytes:
    """Edit METADATA: the version and licences, without requirements on ROCm's or device packages."""
    head, gap, body = content.decode().partition("\n\n")
    lines: list[str] = []
    # a field goes on in the lines that are indented
    for field in re.findall(r"^\S.*(?:\n[ \t].*)*", head, re.MULTILINE):
        name, _, value = field.partition(":")
        match name.lower():
            case "version":
                lines.append(f"Version: {version}")
            case "license-expression" if licenses.expression:
                own, more = value.strip(), licenses.expression
                both = f"({own}) AND {more}" if " OR " in own else joined([own, more])
                lines.append(f"License-Expression: {both}")
                lines += [f"License-File: {path}" for path in licenses.paths]
            case "requires-dist" if _needs_rocm(value):
                pass
            case _ if not device_extras([field]):
                lines.append(field)
    return ("\n".join(lines) + (gap + body if gap else "\n")).encode()


def device_extras(fields: Iterable[str]) -> list[str]:
    """List the extras of METADATA's fields that name device packages: a host wheel has such."""
    return [found[1] for one in fields if (found := _EXTRA.fullmatch(one.strip()))]


def _needs_rocm(requirement: str) -> bool:
    try:
        name = canonicalize_name(Requirement(" ".join(requirement.split())).name)
    except InvalidRequirement:
        return False
    return is_rocm(name) or bool(device_target(name))


def licenses_of(wheels: Iterable[Path]) -> Licenses:
    """Gather the licences of ROCm's wheels, with their files (PEP 639)."""
    expressions: list[str] = []
    files: dict[Path, Mapping[str, str]] = {}
    for wheel in sorted(wheels):
        listing, name = listing_of(wheel), parse_wheel_name(wheel.name).distribution
        prefix = f"{listing.folder}/licenses/"
        names = (info.filename for info, _ in listing.files if info.filename.startswith(prefix))
        files[wheel] = {one: f"{name}/{one.removeprefix(prefix)}" for one in names}
        with contextlib.suppress(InvalidLicenseExpression):  # older metadata names licences in words
            expressions.append(canonicalize_license_expression(read_metadata(wheel).license))
    return Licenses(expression=joined(expressions), files=files)


def standalone_module(content: bytes, old: Version, new: str) -> bytes:
    """Edit ``version.py``: every quoted text that is the old version becomes the new one."""
    return re.sub(rf"(['\"]){re.escape(str(old))}\1", rf"\g<1>{new}\g<1>", content.decode()).encode()


def read_rocm_init(text: str, where: str) -> Loader:
    """Read ``_rocm_init.py``: the arguments of its one call of ``initialize_process``."""
    try:
        given = _arguments(text)
    except (SyntaxError, ValueError) as problem:
        raise WheelError(
            f"{where} cannot be made stand-alone: it has {problem}.",
            hint="Build the wheel with nox -s build_torch, or take one that loads ROCm so.",
        ) from problem
    names, version = given.get("preload_shortnames", ()), given.get("check_version", "")
    if not isinstance(names, (list, tuple)) or not all(isinstance(name, str) for name in names):
        raise WheelError(f"{where} cannot be made stand-alone: preload_shortnames is not a list of names.")
    return Loader(names=tuple(names), version=version if isinstance(version, str) else "")


def _arguments(text: str) -> dict[str, object]:
    """Read the keyword arguments of the one call of ``initialize_process``, which are literals."""
    calls = [
        node
        for node in ast.walk(ast.parse(text))
        if isinstance(node, ast.Call)
        and isinstance(node.func, ast.Attribute)
        and node.func.attr == "initialize_process"
    ]
    if len(calls) != 1:
        raise ValueError(f"{len(calls)} calls of rocm_sdk.initialize_process")
    return {one.arg: ast.literal_eval(one.value) for one in calls[0].keywords if one.arg}


def standalone_init(paths: Sequence[str], *, windows: bool) -> str:
    """Write a ``_rocm_init.py`` that loads ROCm out of the wheel itself.

    Libraries are loaded with global symbols, as `rocm_sdk` does, so that torch's own find them by
    their SONAMEs; these need no search path into ROCm's folders, and stay as they are.
    """
    text = read_text(Path(__file__).with_name("rocm_init.template"))
    text = text.replace("@LIBRARIES@", "".join(f'    "{path}",\n' for path in paths))
    text = text.replace("@GLOBAL@", "_added = None\n" if windows else "")
    added = '    global _added\n    _added = os.add_dll_directory(os.path.join(_ROOT, "bin"))\n'
    return text.replace("@DLL_FOLDER@", added if windows else "")


def patched_torch_init(text: str, where: str) -> str:
    """Let torch's ``__init__.py`` look for DLLs in the wheel's ROCm first."""
    if _DLL_INSERT in text:
        raise WheelError(f"{where} looks into the wheel's own ROCm already: it is stand-alone.")
    loop = r"(?m)^(?P<indent>[ \t]*)for dll_path in dll_paths:"
    patched, count = re.subn(loop, rf"\g<indent>{_DLL_INSERT}\n\g<0>", text)
    if not count:
        raise WheelError(
            f"{where} has no line 'for dll_path in dll_paths:', so nothing would look for ROCm's DLLs.",
            hint="This torch loads its DLLs in another way than the versions that this stage supports.",
        )
    return patched
