"""The packages themselves: from planned payloads to wheels and the `rocm` sdist."""

from __future__ import annotations

import io
import json
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

from core.cli.options import ROOT
from core.wheel.wheel_writer import (
    LEVEL,
    Member,
    WheelSpec,
    Workers,
    metadata_text,
    write_sdist,
    write_tar,
    write_wheel,
)
from rocm_packaging.packages.layouts import DIST_INFO, TEMPLATES, identifier, packages, payload_folder

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence
    from pathlib import Path

    from core.wheel.wheel_writer import WrittenFile
    from rocm_packaging.packages.layouts import Program
    from rocm_packaging.packages.payload import Licenses
    from rocm_packaging.packages.plan import DevelPlan, Distribution, RuntimePlan


_PLATFORMS = {"linux": "linux_x86_64", "windows": "win_amd64"}
_REQUIRES_PYTHON = ">=3.10"
LINKS_FOLDER = ".devel_links"
LICENSE = ROOT / "LICENSE"


@dataclass(frozen=True, kw_only=True)
class Output:
    """Where packages go, and how."""

    folder: Path
    epoch: int | None
    workers: Workers
    level: int | None = None
    platform_tag: str = ""


def runtime_wheel(
    distribution: Distribution, plan: RuntimePlan, members: Sequence[Member], output: Output
) -> WrittenFile:
    """Write the wheel of a runtime package."""
    if plan.kind == "device":
        return _device_wheel(distribution, plan, members, output)
    name, summary, programs = _described(plan)
    module = re.sub(r"\W", "_", name) if not plan.family else f"rocm_sdk_libraries_{identifier(plan.family)}"
    found = scripts(programs, [member.name for member in members], distribution.platform)
    files = {
        f"{module}/__init__.py": _docstring(f"{summary}."),
        f"{module}/_dist_info.py": dist_info(distribution, plan.kind, plan.family),
    }
    if programs:
        files[f"{module}/_cli.py"] = cli(plan.kind, found, programs, distribution.suffix)
    spec = _spec(
        distribution,
        output,
        name,
        summary,
        plan.licenses,
        requires=() if plan.kind == "core" else (f"rocm-sdk-core=={distribution.version}",),
        scripts={script: f"{module}._cli:{function_of(script)}" for script in found},
    )
    marker = Member(name=f"{plan.folder}/__init__.py", source=b"")
    return _write(output, spec, files, [*_rooted(plan.folder, members), marker])


def _described(plan: RuntimePlan) -> tuple[str, str, Mapping[str, Program]]:
    if plan.kind == "core":
        return "rocm-sdk-core", "ROCm's runtime, compiler and tools", packages().programs
    if plan.kind == "profiler":
        return "rocm-profiler", "ROCm's profilers", packages().profiler_programs
    if plan.family:
        return f"rocm-sdk-libraries-{plan.family}", f"ROCm's math libraries for {plan.family}", {}
    return "rocm-sdk-libraries", "ROCm's math libraries, without device code", {}


def _device_wheel(
    distribution: Distribution, plan: RuntimePlan, members: Sequence[Member], output: Output
) -> WrittenFile:
    """Write ``rocm-sdk-device-gfxN``: its files lie over the libraries, and no file is owned by both."""
    spec = _spec(
        distribution,
        output,
        f"rocm-sdk-device-{plan.family}",
        f"Device code of ROCm's math libraries for {plan.family}",
        plan.licenses,
        requires=(f"rocm-sdk-libraries=={distribution.version}",),
    )
    links = {"version": distribution.version, "links": devel_links(plan)}
    text = json.dumps(links, indent=1) + "\n"
    listed = Member(name=f"{plan.folder}/{LINKS_FOLDER}/{plan.family}.json", source=text.encode())
    return _write(output, spec, {}, [*_rooted(plan.folder, members), listed])


def devel_links(plan: RuntimePlan) -> list[dict[str, str]]:
    """List what a device package adds to the development tree."""
    found = {}
    for path in plan.payload.files:
        up = "../" * (path.count("/") + 1)
        found[path] = f"{up}{plan.folder}/{path}"
    found.update(plan.payload.aliases)
    return [{"relpath": path, "target": target} for path, target in sorted(found.items())]


def devel_wheel(distribution: Distribution, plan: DevelPlan, output: Output) -> WrittenFile:
    """Write ``rocm-sdk-devel``: its files, and a tar of the links that `rocm_sdk` makes on first use."""
    root = payload_folder("devel", suffix=distribution.suffix)
    members = [
        Member(name=f"{root}/{path}", source=entry.source, executable=entry.executable)
        for path, entry in plan.files.items()
    ]
    links = io.BytesIO()
    rooted = {f"{root}/{path}": link for path, link in plan.links.items()}
    write_tar(links, [], links=rooted, epoch=output.epoch)
    module = {
        f"{root}/__init__.py": _docstring("ROCm's development tree."),
        "rocm_sdk_devel/__init__.py": _docstring("Holds the links of ROCm's development tree."),
        "rocm_sdk_devel/_devel.tar": links.getvalue(),
        "rocm_sdk_devel/_dist_info.py": dist_info(distribution, "devel"),
    }
    spec = _spec(
        distribution,
        output,
        "rocm-sdk-devel",
        "ROCm's headers, CMake packages and development tools",
        plan.licenses,
        requires=(f"rocm-sdk-core=={distribution.version}",),
    )
    return _write(output, spec, module, members)


def rocm_sdist(distribution: Distribution, output: Output) -> WrittenFile:
    """Write the `rocm` sdist, whose requirements are made where it is installed."""
    metadata = metadata_text(
        [
            ("Name", "rocm"),
            ("Version", distribution.version),
            ("Summary", "ROCm in a Python environment"),
            ("Requires-Python", _REQUIRES_PYTHON),
            ("Dynamic", "Requires-Dist"),
            ("Dynamic", "Provides-Extra"),
            *_licensed("MIT", [LICENSE.name]),
        ]
    )
    members = [Member(name=name, source=path) for name, path in runtime_sources()]
    info = dist_info(distribution, "")
    members.append(Member(name="src/rocm_sdk/_dist_info.py", source=info))
    members.append(Member(name=LICENSE.name, source=LICENSE))
    return write_sdist(
        output.folder, "rocm", distribution.version, members, metadata=metadata, epoch=output.epoch
    )


def _docstring(text: str) -> bytes:
    return f'"""{text}"""\n'.encode()


def _rooted(folder: str, members: Sequence[Member]) -> list[Member]:
    return [
        Member(name=f"{folder}/{member.name}", source=member.source, executable=member.executable)
        for member in members
    ]


def _spec(
    distribution: Distribution,
    output: Output,
    name: str,
    summary: str,
    licenses: Licenses,
    *,
    requires: Sequence[str] = (),
    scripts: Mapping[str, str] | None = None,
) -> WheelSpec:
    fields = [
        ("Name", name),
        ("Version", distribution.version),
        ("Summary", summary),
        ("Requires-Python", _REQUIRES_PYTHON),
        *(("Requires-Dist", requirement) for requirement in requires),
        *_licensed(licenses.expression, licenses.files),
    ]
    return WheelSpec(
        distribution=name,
        version=distribution.version,
        tag=f"py3-none-{output.platform_tag or _PLATFORMS[distribution.platform]}",
        metadata=metadata_text(fields),
        console_scripts=scripts,
        license_files=[Member(name=path, source=entry.source) for path, entry in licenses.files.items()],
    )


def _licensed(expression: str, files: Iterable[str]) -> list[tuple[str, str]]:
    """List the fields of PEP 639."""
    return [("License-Expression", expression), *(("License-File", path) for path in sorted(files))]


def _write(
    output: Output, spec: WheelSpec, module: Mapping[str, bytes], members: Sequence[Member]
) -> WrittenFile:
    pure = [Member(name=name, source=content) for name, content in module.items()]
    level = LEVEL if output.level is None else output.level
    return write_wheel(
        output.folder,
        spec,
        [*pure, *members],
        epoch=output.epoch,
        workers=output.workers,
        level=level,
    )


def dist_info(distribution: Distribution, package: str, family: str = "") -> bytes:
    """Write ``_dist_info.py`` for one package; every value is a literal."""
    names = list(distribution.families)
    offered = {"linux": list(distribution.linux), "windows": list(distribution.windows)}
    if not any(offered.values()):
        offered[distribution.platform] = names
    targets = {**distribution.aliases, **distribution.families}
    values = {
        "__version__": distribution.version,
        "PY_PACKAGE_SUFFIX_NONCE": distribution.suffix,
        "SPLIT": distribution.split,
        "DEFAULT_TARGET_FAMILY": names[0],
        "AVAILABLE_TARGET_FAMILIES": names,
        "LINUX_TARGET_FAMILIES": offered["linux"],
        "WINDOWS_TARGET_FAMILIES": offered["windows"],
        "FAMILY_TARGETS": {name: list(of) for name, of in targets.items()},
        "DISTRIBUTED_LIBRARIES": sorted(distribution.libraries),
        "THIS_TARGET_FAMILY": family or None,
    }
    lines = [f"{name} = {value!r}\n" for name, value in values.items()]
    lines.append(
        f"ALL_PACKAGES = packages_of(split={distribution.split}, profiler={distribution.profiler})\n"
    )
    lines.append(f"THIS_PACKAGE_ENTRY = ALL_PACKAGES.get({package!r})\n")
    return (DIST_INFO.read_text(encoding="utf-8") + "".join(lines)).encode()


def scripts(programs: Mapping[str, Program], paths: Iterable[str], platform: str) -> dict[str, str]:
    """Choose the console scripts of core: programs that the payload really holds."""
    suffix = ".exe" if platform == "windows" else ""
    known = set(paths)
    return {name: f"bin/{name}{suffix}" for name in sorted(programs) if f"bin/{name}{suffix}" in known}


def function_of(script: str) -> str:
    """Name the Python function behind a console script: ``amdclang++`` is ``amdclangxx``."""
    return re.sub(r"\W", "_", script.replace("+", "x"))


def cli(package: str, found: Mapping[str, str], programs: Mapping[str, Program], suffix: str = "") -> bytes:
    """Write the ``_cli.py`` of a package: one function a console script."""
    text = (TEMPLATES / package / "_cli.py").read_text(encoding="utf-8")
    for name in ("core", "profiler"):
        text = text.replace(f"@{name.upper()}_PAYLOAD@", payload_folder(name, suffix=suffix))
    parts = [text, "\n\nPROGRAMS = ", repr(dict(found)), "\n"]
    for name, relative in found.items():
        parts.append(f"\n\ndef {function_of(name)}():\n    _run({relative!r}, {programs[name].expand})\n")
    return "".join(parts).encode()


def runtime_sources() -> Sequence[tuple[str, Path]]:
    """List the files of the `rocm` source distribution, except ``_dist_info.py``."""
    root = TEMPLATES / "rocm"
    files = sorted(path for path in root.rglob("*") if path.is_file() and "__pycache__" not in path.parts)
    return [(path.relative_to(root).as_posix(), path) for path in files]
