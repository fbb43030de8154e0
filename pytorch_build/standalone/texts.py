"""The texts of a stand-alone wheel: its version, METADATA, licences, and the Python that loads ROCm."""

from __future__ import annotations

import ast
import contextlib
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from packaging.licenses import InvalidLicenseExpression, canonicalize_license_expression

from core.data import read_text
from core.errors import WheelError
from core.wheel import parse_wheel_name, read_metadata
from core.wheel.record import require_listing
from pytorch_build.check.policy import required_name
from rocm_packaging.packages.layouts import device_target, is_rocm
from rocm_packaging.packages.payload import join_expressions

if TYPE_CHECKING:
    from packaging.version import Version

_DLL_INSERT = 'dll_paths.insert(0, os.path.join(th_dll_path, "rocm", "bin"))'
_DLL_LOOP = re.compile(r"(?m)^(?P<indent>[ \t]*)for dll_path in dll_paths:")
# A field of METADATA goes on in the lines that are indented.
_METADATA_FIELD = re.compile(r"^\S.*(?:\n[ \t].*)*", re.MULTILINE)


@dataclass(frozen=True, kw_only=True)
class Licenses:
    """The licences of ROCm's wheels: their expression, and the files with new paths."""

    expression: str
    files: Mapping[Path, Mapping[str, str]]


@dataclass(frozen=True, kw_only=True)
class Loader:
    """What a torch wheel's ``_rocm_init.py`` loads: ROCm's libraries by short names, of a version."""

    names: tuple[str, ...]
    version: str


# Version and METADATA


def standalone_version(version: Version, label: str) -> str:
    """Return a version with the label behind its local part: ``2.10.0+rocm7`` gets ``.standalone``.

    PEP 440 lets a local version have letters, digits and dots, and sorts the longer one later.
    """
    if version.local is None:
        return f"{version}+{label}"
    if label in version.local.split("."):
        raise WheelError(f"Version {version} is that of a stand-alone wheel already.")
    return f"{version}.{label}"


def standalone_version_module(
    content: bytes,
    old_version: Version,
    new_version: str,
) -> bytes:
    """Return the content of ``version.py`` with the new version wherever it quotes the old one."""
    text = re.sub(
        rf"(['\"]){re.escape(str(old_version))}\1",
        rf"\g<1>{new_version}\g<1>",
        content.decode(),
    )
    return text.encode()


def standalone_metadata(
    content: bytes,
    version: str,
    licenses: Licenses,
) -> bytes:
    """Return METADATA with the new version and licences, and no requirement on ROCm's packages."""
    head, gap, description = content.decode().partition("\n\n")
    fields: list[str] = []
    for field in _METADATA_FIELD.findall(head):
        fields += _standalone_fields(field, version, licenses)

    text = "\n".join(fields)
    text += f"{gap}{description}" if gap else "\n"
    return text.encode()


def _standalone_fields(
    field: str,
    version: str,
    licenses: Licenses,
) -> list[str]:
    """Return the METADATA fields in place of one of the torch wheel's; none where it is dropped."""
    name, _colon, value = field.partition(":")
    match name.lower():
        case "version":
            return [f"Version: {version}"]
        case "license-expression" if licenses.expression:
            return _license_fields(value.strip(), licenses)
        case "requires-dist":
            distribution = required_name(" ".join(value.split()))
            is_dropped = is_rocm(distribution) or device_target(distribution)
            return [] if is_dropped else [field]
        case "provides-extra" if value.strip().startswith("device-"):
            return []
    return [field]


def _license_fields(expression: str, licenses: Licenses) -> list[str]:
    """Return the METADATA fields of the joined licence expression and of each licence file."""
    if " OR " in expression:
        # AND binds closer than OR
        expression = f"({expression}) AND {licenses.expression}"
    else:
        expression = join_expressions([expression, licenses.expression])
    paths: list[str] = []
    for names in licenses.files.values():
        paths += names.values()
    file_fields = [f"License-File: {path}" for path in sorted(paths)]
    return [f"License-Expression: {expression}", *file_fields]


def read_licenses(wheels: Iterable[Path]) -> Licenses:
    """Return the licences of ROCm's wheels, with their files (PEP 639)."""
    expressions: list[str] = []
    files: dict[Path, Mapping[str, str]] = {}
    for wheel in sorted(wheels):
        listing = require_listing(wheel)
        distribution = parse_wheel_name(wheel.name).distribution
        prefix = f"{listing.folder}/licenses/"
        files[wheel] = {
            member.name: f"{distribution}/{member.name.removeprefix(prefix)}"
            for member in listing.members
            if member.name.startswith(prefix)
        }
        # Older metadata names licences in words, which cannot be joined.
        with contextlib.suppress(InvalidLicenseExpression):
            expressions.append(canonicalize_license_expression(read_metadata(wheel).license))
    return Licenses(
        expression=join_expressions(expressions),
        files=files,
    )


# The Python that loads ROCm


def read_rocm_init(text: str, where: str) -> Loader:
    """Return what a ``_rocm_init.py`` loads, by the one call of ``initialize_process`` in its text."""
    try:
        arguments = _initialize_process_arguments(text)
    except (SyntaxError, ValueError) as problem:
        raise WheelError(
            f"{where} cannot be made stand-alone: it has {problem}.",
            hint="Build the wheel with nox -s build_torch, or take one that loads ROCm so.",
        ) from problem

    names = arguments.get("preload_shortnames", ())
    if not isinstance(names, (list, tuple)) or not all(isinstance(name, str) for name in names):
        raise WheelError(f"{where} cannot be made stand-alone: preload_shortnames is not a list of names.")
    version = arguments.get("check_version")
    if not isinstance(version, str):
        version = ""
    return Loader(
        names=tuple(names),
        version=version,
    )


def _initialize_process_arguments(text: str) -> dict[str, object]:
    """Return the keyword arguments of the one call of ``initialize_process`` in a module's text."""
    nodes = ast.walk(ast.parse(text))
    every_call = [node for node in nodes if isinstance(node, ast.Call)]
    calls = [call for call in every_call if ast.unparse(call.func).endswith(".initialize_process")]
    if len(calls) != 1:
        raise ValueError(f"{len(calls)} calls of rocm_sdk.initialize_process")

    return {
        keyword.arg: ast.literal_eval(keyword.value)
        for keyword in calls[0].keywords
        if keyword.arg is not None
    }


def render_rocm_init(paths: Sequence[str], *, windows: bool) -> str:
    """Return the text of a ``_rocm_init.py`` that loads ROCm's libraries out of the wheel itself.

    Libraries are loaded with global symbols, as `rocm_sdk` does, so that torch's own find them by
    their SONAMEs; these need no search path into ROCm's folders, and stay as they are.
    """
    global_statement = ""
    dll_folder_statements = ""
    if windows:
        global_statement = "_added = None\n"
        dll_folder_statements = (
            '    global _added\n    _added = os.add_dll_directory(os.path.join(_ROOT, "bin"))\n'
        )

    text = read_text(Path(__file__).with_name("rocm_init.template"))
    lines = [f'    "{path}",\n' for path in paths]
    text = text.replace("@LIBRARIES@", "".join(lines))
    text = text.replace("@GLOBAL@", global_statement)
    return text.replace("@DLL_FOLDER@", dll_folder_statements)


def patched_torch_init(text: str, where: str) -> str:
    """Return the text of torch's ``__init__.py``, changed to look for DLLs in the wheel's ROCm first."""
    if _DLL_INSERT in text:
        raise WheelError(f"{where} looks into the wheel's own ROCm already: it is stand-alone.")
    patched_text, loops = _DLL_LOOP.subn(rf"\g<indent>{_DLL_INSERT}\n\g<0>", text)
    if not loops:
        raise WheelError(
            f"{where} has no line 'for dll_path in dll_paths:', so nothing would look for ROCm's DLLs.",
            hint="This torch loads its DLLs in another way than the versions that this stage supports.",
        )
    return patched_text
