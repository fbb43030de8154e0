"""The packages themselves: from planned payloads to wheels and the `rocm` sdist."""

from __future__ import annotations

import io
import json
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from core.archive import Member
from core.cli.options import ROOT
from core.wheel.writer import WheelSpec, WrittenFile, metadata_text, write_sdist, write_tar, write_wheel
from rocm_packaging.packages import layouts

if TYPE_CHECKING:
    from core.archive.packed import Packing
    from rocm_packaging.packages.payload import Licenses
    from rocm_packaging.packages.plan import BuildRequest, DevelPlan, Distribution, RuntimePlan

_PLATFORMS = {"linux": "linux_x86_64", "windows": "win_amd64"}
_REQUIRES_PYTHON = ">=3.10"
_LINKS_FOLDER = ".devel_links"
LICENSE = ROOT / "LICENSE"


@dataclass(frozen=True, kw_only=True)
class Output:
    """What is the same for all packages, and where and how they are written."""

    distribution: Distribution
    request: BuildRequest
    packing: Packing


def runtime_wheel(output: Output, plan: RuntimePlan, members: Sequence[Member]) -> WrittenFile:
    """Write the wheel of a runtime package."""
    if plan.kind == "device":
        return _device_wheel(output, plan, members)
    made = output.distribution
    programs: Mapping[str, layouts.Program] = {}
    match plan.kind:
        case "core":
            summary, programs = "ROCm's runtime, compiler and tools", layouts.packages().programs
        case "profiler":
            summary, programs = "ROCm's profilers", layouts.packages().profiler_programs
        case _ if plan.family:
            summary = f"ROCm's math libraries for {plan.family}"
        case _:
            summary = "ROCm's math libraries, without device code"
    module = layouts.identifier(plan.distribution)
    found = scripts(programs, [member.name for member in members], made.platform)
    files = {
        f"{module}/__init__.py": _docstring(f"{summary}."),
        f"{module}/_dist_info.py": dist_info(made, plan.kind, plan.family),
        f"{plan.folder}/__init__.py": b"",
    }
    if programs:
        files[f"{module}/_cli.py"] = cli(plan.kind, found, programs, made.suffix)
    return _write(
        output,
        plan.distribution,
        summary,
        plan.licenses,
        _content(files, plan.folder, members),
        requires="" if plan.kind == "core" else "rocm-sdk-core",
        console_scripts={script: f"{module}._cli:{function_of(script)}" for script in found},
    )


def _device_wheel(output: Output, plan: RuntimePlan, members: Sequence[Member]) -> WrittenFile:
    """Write ``rocm-sdk-device-gfxN``: its files lie over the libraries, and no file is owned by both."""
    targets = {path: f"{'../' * (path.count('/') + 1)}{plan.folder}/{path}" for path in plan.payload.files}
    targets.update(plan.payload.aliases)
    links = [{"relpath": path, "target": target} for path, target in sorted(targets.items())]
    text = json.dumps({"version": output.distribution.version, "links": links}, indent=1) + "\n"
    return _write(
        output,
        plan.distribution,
        f"Device code of ROCm's math libraries for {plan.family}",
        plan.licenses,
        _content({f"{plan.folder}/{_LINKS_FOLDER}/{plan.family}.json": text.encode()}, plan.folder, members),
        requires="rocm-sdk-libraries",
    )


def devel_wheel(output: Output, plan: DevelPlan) -> WrittenFile:
    """Write ``rocm-sdk-devel``: its files, and a tar of the links that `rocm_sdk` makes on first use."""
    root = layouts.payload_folder("devel", suffix=output.distribution.suffix)
    links = io.BytesIO()
    write_tar(
        links, [], links={f"{root}/{path}": to for path, to in plan.links.items()}, epoch=output.request.epoch
    )
    files = {
        f"{root}/__init__.py": _docstring("ROCm's development tree."),
        "rocm_sdk_devel/__init__.py": _docstring("Holds the links of ROCm's development tree."),
        "rocm_sdk_devel/_devel.tar": links.getvalue(),
        "rocm_sdk_devel/_dist_info.py": dist_info(output.distribution, "devel"),
    }
    members = [
        Member(name=path, source=entry.source, executable=entry.executable)
        for path, entry in plan.files.items()
    ]
    return _write(
        output,
        "rocm-sdk-devel",
        "ROCm's headers, CMake packages and development tools",
        plan.licenses,
        _content(files, root, members),
        requires="rocm-sdk-core",
    )


def rocm_sdist(output: Output) -> WrittenFile:
    """Write the `rocm` sdist, whose requirements are made where it is installed."""
    version = output.distribution.version
    fields = [
        ("Name", "rocm"),
        ("Version", version),
        ("Summary", "ROCm in a Python environment"),
        ("Requires-Python", _REQUIRES_PYTHON),
        ("Dynamic", "Requires-Dist"),
        ("Dynamic", "Provides-Extra"),
        *_licensed("MIT", [LICENSE.name]),
    ]
    members = [
        *(Member(name=name, source=path) for name, path in runtime_sources()),
        Member(name="src/rocm_sdk/_dist_info.py", source=dist_info(output.distribution, "")),
        Member(name=LICENSE.name, source=LICENSE),
    ]
    metadata = metadata_text(fields)
    return write_sdist(
        output.request.output_dir, "rocm", version, members, metadata=metadata, epoch=output.request.epoch
    )


def runtime_sources() -> list[tuple[str, Path]]:
    """List the files of the `rocm` source distribution, except ``_dist_info.py``."""
    root = layouts.TEMPLATES / "rocm"
    files = sorted(path for path in root.rglob("*") if path.is_file() and "__pycache__" not in path.parts)
    return [(path.relative_to(root).as_posix(), path) for path in files]


def _docstring(text: str) -> bytes:
    return f'"""{text}"""\n'.encode()


def _content(files: Mapping[str, bytes], folder: str, members: Sequence[Member]) -> list[Member]:
    """Put generated files before the members of a payload's folder."""
    generated = [Member(name=name, source=content) for name, content in files.items()]
    return [*generated, *(replace(member, name=f"{folder}/{member.name}") for member in members)]


def _licensed(expression: str, files: Iterable[str]) -> list[tuple[str, str]]:
    """List the fields of PEP 639."""
    return [("License-Expression", expression), *(("License-File", path) for path in sorted(files))]


def _write(
    output: Output,
    name: str,
    summary: str,
    licenses: Licenses,
    members: Sequence[Member],
    *,
    requires: str,
    console_scripts: Mapping[str, str] | None = None,
) -> WrittenFile:
    made = output.distribution
    fields = [
        ("Name", name),
        ("Version", made.version),
        ("Summary", summary),
        ("Requires-Python", _REQUIRES_PYTHON),
        *([("Requires-Dist", f"{requires}=={made.version}")] if requires else []),
        *_licensed(licenses.expression, licenses.files),
    ]
    spec = WheelSpec(
        distribution=name,
        version=made.version,
        tag=f"py3-none-{output.request.platform_tag or _PLATFORMS[made.platform]}",
        metadata=metadata_text(fields),
        console_scripts=console_scripts,
        license_files=[Member(name=path, source=entry.source) for path, entry in licenses.files.items()],
    )
    return write_wheel(
        output.request.output_dir, spec, members, epoch=output.request.epoch, packing=output.packing
    )


def dist_info(distribution: Distribution, package: str, family: str = "") -> bytes:
    """Write ``_dist_info.py`` for one package; every value is a literal."""
    names = list(distribution.families)
    values = {
        "__version__": distribution.version,
        "PY_PACKAGE_SUFFIX_NONCE": distribution.suffix,
        "SPLIT": distribution.split,
        "DEFAULT_TARGET_FAMILY": names[0],
        "AVAILABLE_TARGET_FAMILIES": names,
        "LINUX_TARGET_FAMILIES": list(distribution.linux),
        "WINDOWS_TARGET_FAMILIES": list(distribution.windows),
        "FAMILY_TARGETS": {
            name: list(targets) for name, targets in {**distribution.aliases, **distribution.families}.items()
        },
        "DISTRIBUTED_LIBRARIES": sorted(distribution.libraries),
        "PROMISED_FILES": {kind: list(paths) for kind, paths in distribution.promised.items()},
        "THIS_TARGET_FAMILY": family or None,
    }
    lines = [
        *(f"{name} = {value!r}\n" for name, value in values.items()),
        f"ALL_PACKAGES = packages_of(split={distribution.split}, profiler={distribution.profiler})\n",
        f"THIS_PACKAGE_ENTRY = ALL_PACKAGES.get({package!r})\n",
    ]
    return (layouts.DIST_INFO.read_text(encoding="utf-8") + "".join(lines)).encode()


def scripts(programs: Mapping[str, layouts.Program], paths: Iterable[str], platform: str) -> dict[str, str]:
    """Choose the console scripts of a package: programs that the payload really holds."""
    suffix = ".exe" if platform == "windows" else ""
    known = set(paths)
    return {name: f"bin/{name}{suffix}" for name in sorted(programs) if f"bin/{name}{suffix}" in known}


def function_of(script: str) -> str:
    """Return the Python function behind a console script: ``amdclang++`` is ``amdclangxx``."""
    return re.sub(r"\W", "_", script.replace("+", "x"))


def cli(
    package: str, found: Mapping[str, str], programs: Mapping[str, layouts.Program], suffix: str = ""
) -> bytes:
    """Write the ``_cli.py`` of a package: one function a console script."""
    text = (layouts.TEMPLATES / package / "_cli.py").read_text(encoding="utf-8")
    for name in ("core", "profiler"):
        text = text.replace(f"@{name.upper()}_PAYLOAD@", layouts.payload_folder(name, suffix=suffix))
    parts = [text, "\n\nPROGRAMS = ", repr(dict(found)), "\n"]
    for name, relative in found.items():
        parts.append(f"\n\ndef {function_of(name)}():\n    _run({relative!r}, {programs[name].expand})\n")
    return "".join(parts).encode()
