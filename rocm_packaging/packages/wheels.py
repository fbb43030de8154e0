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
from core.wheel.writer import (
    WheelSpec,
    WrittenFile,
    metadata_text,
    write_sdist,
    write_tar,
    write_wheel,
)
from rocm_packaging.packages import layouts

if TYPE_CHECKING:
    from core.archive.packed import Packing
    from rocm_packaging.packages.payload import Licenses
    from rocm_packaging.packages.plan import (
        BuildRequest,
        DevelPlan,
        DistInfo,
        RuntimePlan,
    )

_PLATFORMS = {"linux": "linux_x86_64", "windows": "win_amd64"}
_REQUIRES_PYTHON = ">=3.10"
_LINKS_FOLDER = ".devel_links"
# On Linux bin/ has links to the compilers and offload-arch; on Windows they are in LLVM's folder alone.
_PROGRAM_FOLDERS = ("bin", "lib/llvm/bin")
LICENSE = ROOT / "LICENSE"


@dataclass(frozen=True, kw_only=True)
class Output:
    """What is the same for all packages, and where and how they are written."""

    dist_info: DistInfo
    request: BuildRequest
    packing: Packing


@dataclass(frozen=True, kw_only=True)
class _WheelContents:
    """What one wheel says of itself besides its files."""

    name: str
    summary: str
    licenses: Licenses
    requires: str | None = None
    console_scripts: Mapping[str, str] | None = None


def runtime_wheel(output: Output, plan: RuntimePlan, members: Sequence[Member]) -> WrittenFile:
    """Write the wheel of a runtime package."""
    if plan.kind == "device":
        return _device_wheel(output, plan, members)

    dist_info = output.dist_info
    summary = _summary(plan)
    module = layouts.identifier(plan.distribution)
    files = {
        f"{module}/__init__.py": _docstring(f"{summary}."),
        f"{module}/_dist_info.py": dist_info_module(dist_info, plan.kind, plan.family),
        f"{plan.folder}/__init__.py": b"",
    }
    programs = _programs(plan)
    script_paths = scripts(programs, [member.name for member in members], dist_info.platform)
    if programs:
        files[f"{module}/_cli.py"] = cli(plan.kind, script_paths, programs, dist_info.suffix)

    contents = _WheelContents(
        name=plan.distribution,
        summary=summary,
        licenses=plan.licenses,
        requires=None if plan.kind == "core" else "rocm-sdk-core",
        console_scripts={script: f"{module}._cli:{function_of(script)}" for script in script_paths},
    )
    return _write(output, contents, _members_of(files, plan.folder, members))


def _summary(plan: RuntimePlan) -> str:
    if plan.kind == "core":
        return "ROCm's runtime, compiler and tools"
    if plan.kind == "profiler":
        return "ROCm's profilers"
    if plan.family:
        return f"ROCm's math libraries for {plan.family}"
    return "ROCm's math libraries, without device code"


def _programs(plan: RuntimePlan) -> Mapping[str, layouts.Program]:
    """Return the programs that a package has console scripts for, if it holds them."""
    if plan.kind == "core":
        return layouts.packages().programs
    if plan.kind == "profiler":
        return layouts.packages().profiler_programs
    return {}


def _device_wheel(output: Output, plan: RuntimePlan, members: Sequence[Member]) -> WrittenFile:
    """Write ``rocm-sdk-device-gfxN``: its files lie over the libraries, and no file is owned by both."""
    device_links = {
        "version": output.dist_info.version,
        "links": _device_links(plan),
    }
    device_links_text = json.dumps(device_links, indent=1) + "\n"
    files = {f"{plan.folder}/{_LINKS_FOLDER}/{plan.family}.json": device_links_text.encode()}
    contents = _WheelContents(
        name=plan.distribution,
        summary=f"Device code of ROCm's math libraries for {plan.family}",
        licenses=plan.licenses,
        requires="rocm-sdk-libraries",
    )
    return _write(output, contents, _members_of(files, plan.folder, members))


def _device_links(plan: RuntimePlan) -> list[dict[str, str]]:
    """Return the links that a device package brings into the development tree."""
    targets: dict[str, str] = {}
    for path in plan.payload.files:
        to_site_packages = "../" * (path.count("/") + 1)
        targets[path] = f"{to_site_packages}{plan.folder}/{path}"
    targets.update(plan.payload.aliases)

    links: list[dict[str, str]] = []
    for path, target in sorted(targets.items()):
        links.append({"relpath": path, "target": target})
    return links


def devel_wheel(output: Output, plan: DevelPlan, members: Sequence[Member]) -> WrittenFile:
    """Write ``rocm-sdk-devel``: its files, and a tar of the links that `rocm_sdk` makes on first use."""
    root = layouts.payload_folder("devel", suffix=output.dist_info.suffix)
    links = {f"{root}/{path}": target for path, target in plan.links.items()}
    archive_of_links = io.BytesIO()
    write_tar(archive_of_links, [], links=links, epoch=output.request.epoch)

    files = {
        f"{root}/__init__.py": _docstring("ROCm's development tree."),
        "rocm_sdk_devel/__init__.py": _docstring("Holds the links of ROCm's development tree."),
        "rocm_sdk_devel/_devel.tar": archive_of_links.getvalue(),
        "rocm_sdk_devel/_dist_info.py": dist_info_module(output.dist_info, "devel"),
    }
    contents = _WheelContents(
        name="rocm-sdk-devel",
        summary="ROCm's headers, CMake packages and development tools",
        licenses=plan.licenses,
        requires="rocm-sdk-core",
    )
    return _write(output, contents, _members_of(files, root, members))


def rocm_sdist(output: Output) -> WrittenFile:
    """Write the `rocm` sdist, whose requirements are made where it is installed."""
    version = output.dist_info.version
    fields = [
        ("Name", "rocm"),
        ("Version", version),
        ("Summary", "ROCm in a Python environment"),
        ("Requires-Python", _REQUIRES_PYTHON),
        ("Dynamic", "Requires-Dist"),
        ("Dynamic", "Provides-Extra"),
        *_license_fields("MIT", [LICENSE.name]),
    ]
    members = [Member(name=name, source=path) for name, path in rocm_sdist_sources()]
    members.append(
        Member(
            name="src/rocm_sdk/_dist_info.py",
            source=dist_info_module(output.dist_info, ""),
        )
    )
    members.append(Member(name=LICENSE.name, source=LICENSE))
    metadata = metadata_text(fields)
    return write_sdist(
        output.request.output_dir,
        "rocm",
        version,
        members,
        metadata=metadata,
        epoch=output.request.epoch,
    )


def rocm_sdist_sources() -> list[tuple[str, Path]]:
    """List the files of the `rocm` source distribution, except ``_dist_info.py``: name and path."""
    root = layouts.TEMPLATES / "rocm"
    paths = [path for path in root.rglob("*") if path.is_file() and "__pycache__" not in path.parts]
    return [(path.relative_to(root).as_posix(), path) for path in sorted(paths)]


def _docstring(text: str) -> bytes:
    return f'"""{text}"""\n'.encode()


def _members_of(files: Mapping[str, bytes], folder: str, members: Sequence[Member]) -> list[Member]:
    """Put generated files before the members of a payload's folder."""
    generated_members = [Member(name=name, source=content) for name, content in files.items()]
    payload_members = [replace(member, name=f"{folder}/{member.name}") for member in members]
    return [*generated_members, *payload_members]


def _license_fields(expression: str, files: Iterable[str]) -> list[tuple[str, str]]:
    """List the fields of PEP 639."""
    fields = [("License-Expression", expression)]
    fields += [("License-File", path) for path in sorted(files)]
    return fields


def _write(output: Output, contents: _WheelContents, members: Sequence[Member]) -> WrittenFile:
    """Write a wheel."""
    dist_info = output.dist_info
    request = output.request
    fields = [
        ("Name", contents.name),
        ("Version", dist_info.version),
        ("Summary", contents.summary),
        ("Requires-Python", _REQUIRES_PYTHON),
    ]
    if contents.requires is not None:
        fields.append(("Requires-Dist", f"{contents.requires}=={dist_info.version}"))
    fields += _license_fields(contents.licenses.expression, contents.licenses.files)

    if dist_info.platform == "windows":
        # Windows has no such permission: with it, wheels would differ by the machine that makes them.
        members = [replace(member, executable=False) for member in members]

    platform_tag = request.platform_tag or _PLATFORMS[dist_info.platform]
    license_files = contents.licenses.files.items()
    spec = WheelSpec(
        distribution=contents.name,
        version=dist_info.version,
        tag=f"py3-none-{platform_tag}",
        metadata=metadata_text(fields),
        console_scripts=contents.console_scripts,
        license_files=[Member(name=path, source=entry.source) for path, entry in license_files],
    )
    return write_wheel(
        request.output_dir,
        spec,
        members,
        epoch=request.epoch,
        packing=output.packing,
    )


def dist_info_module(dist_info: DistInfo, package: str, family: str = "") -> bytes:
    """Write ``_dist_info.py`` for one package; every value is a literal."""
    names = list(dist_info.families)
    targets = {**dist_info.aliases, **dist_info.families}
    values = {
        "__version__": dist_info.version,
        "PY_PACKAGE_SUFFIX_NONCE": dist_info.suffix,
        "SPLIT": dist_info.split,
        "DEFAULT_TARGET_FAMILY": names[0],
        "AVAILABLE_TARGET_FAMILIES": names,
        "LINUX_TARGET_FAMILIES": list(dist_info.linux_families),
        "WINDOWS_TARGET_FAMILIES": list(dist_info.windows_families),
        "FAMILY_TARGETS": {name: list(each) for name, each in targets.items()},
        "DISTRIBUTED_LIBRARIES": sorted(dist_info.libraries),
        "PROMISED_FILES": {kind: list(paths) for kind, paths in dist_info.promised_files.items()},
        "THIS_TARGET_FAMILY": family or None,
    }
    lines = [f"{name} = {value!r}\n" for name, value in values.items()]
    arguments = f"split={dist_info.split}, profiler={dist_info.profiler}"
    lines.append(f"ALL_PACKAGES = packages_of({arguments})\n")
    lines.append(f"THIS_PACKAGE_ENTRY = ALL_PACKAGES.get({package!r})\n")
    return (layouts.DIST_INFO.read_text(encoding="utf-8") + "".join(lines)).encode()


def scripts(programs: Mapping[str, layouts.Program], paths: Iterable[str], platform: str) -> dict[str, str]:
    """Return the console scripts of a package, for programs that its payload holds, with their paths."""
    suffix = ".exe" if platform == "windows" else ""
    payload_paths = set(paths)
    paths_of_scripts: dict[str, str] = {}
    for name in sorted(programs):
        for folder in _PROGRAM_FOLDERS:
            path = f"{folder}/{name}{suffix}"
            if path in payload_paths:
                paths_of_scripts[name] = path
                break
    return paths_of_scripts


def function_of(script: str) -> str:
    """Return the Python function behind a console script: ``amdclang++`` is ``amdclangxx``."""
    return re.sub(r"\W", "_", script.replace("+", "x"))


def cli(
    package: str,
    paths: Mapping[str, str],
    programs: Mapping[str, layouts.Program],
    suffix: str = "",
) -> bytes:
    """Write the ``_cli.py`` of a package: a function a console script, which runs the program at its path."""
    text = (layouts.TEMPLATES / package / "_cli.py").read_text(encoding="utf-8")
    for name in ("core", "profiler"):
        text = text.replace(
            f"@{name.upper()}_PAYLOAD@",
            layouts.payload_folder(name, suffix=suffix),
        )

    parts = [text, "\n\nPROGRAMS = ", repr(dict(paths)), "\n"]
    for name, path in paths.items():
        parts.append(f"\n\ndef {function_of(name)}():\n    _run({path!r}, {programs[name].expand})\n")
    return "".join(parts).encode()
