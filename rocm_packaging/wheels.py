"""The packages themselves: from planned payloads to wheels and the `rocm` sdist."""

from __future__ import annotations

import re
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from core.wheel_writer import Member, WheelSpec, metadata_text, write_sdist, write_tar, write_wheel
from rocm_packaging import rendering
from rocm_packaging.packages import CORE_PAYLOAD, DEVEL_PAYLOAD, packages

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from core.wheel_writer import WrittenFile
    from rocm_packaging.artifacts import Entry
    from rocm_packaging.rendering import Distribution

_TAGS = {"linux": "py3-none-linux_x86_64", "windows": "py3-none-win_amd64"}
_REQUIRES_PYTHON = ">=3.10"


@dataclass(frozen=True, kw_only=True)
class Output:
    """Where packages go, and how.

    Attributes:
        folder: The folder for wheels and the sdist.
        epoch: SOURCE_DATE_EPOCH, or None.
        jobs: How many threads compress; None for one a core.
    """

    folder: Path
    epoch: int | None
    jobs: int | None


def payload_name(family: str) -> str:
    """Name the folder of a family's libraries in site-packages: ``_rocm_sdk_libraries_gfx94X_dcgpu``."""
    return f"_rocm_sdk_libraries_{_identifier(family)}"


def _identifier(family: str) -> str:
    return re.sub(r"\W", "_", family)


def core_wheel(distribution: Distribution, members: Sequence[Member], output: Output) -> WrittenFile:
    """Write ``rocm-sdk-core``; `members` are its payload, by path below the payload folder."""
    programs = packages().programs
    found = rendering.scripts(programs, [member.name for member in members], distribution.platform)
    module = {
        "rocm_sdk_core/__init__.py": _docstring("Console scripts of ROCm's programs."),
        "rocm_sdk_core/_cli.py": rendering.cli(found, programs, CORE_PAYLOAD),
        "rocm_sdk_core/_dist_info.py": rendering.dist_info(distribution, "core"),
    }
    spec = _spec(
        distribution,
        "rocm-sdk-core",
        "ROCm's runtime, compiler and tools",
        scripts={name: f"rocm_sdk_core._cli:{rendering.function_of(name)}" for name in found},
    )
    return _write(output, spec, module, _payload(CORE_PAYLOAD, members))


def libraries_wheel(
    distribution: Distribution, family: str, members: Sequence[Member], output: Output
) -> WrittenFile:
    """Write ``rocm-sdk-libraries-{family}``."""
    name = f"rocm_sdk_libraries_{_identifier(family)}"
    module = {
        f"{name}/__init__.py": _docstring(f"ROCm's math libraries for {family}."),
        f"{name}/_dist_info.py": rendering.dist_info(distribution, "libraries", family),
    }
    spec = _spec(
        distribution,
        f"rocm-sdk-libraries-{family}",
        f"ROCm's math libraries for {family}",
        requires=(f"rocm-sdk-core=={distribution.version}",),
    )
    return _write(output, spec, module, _payload(payload_name(family), members))


def devel_wheel(
    distribution: Distribution, files: Mapping[str, Entry], links: Mapping[str, str], output: Output
) -> WrittenFile:
    """Write ``rocm-sdk-devel``: a tar that `rocm_sdk` expands beside the runtime packages."""
    members = [
        Member(name=f"{DEVEL_PAYLOAD}/{path}", source=entry.source, executable=entry.executable)
        for path, entry in files.items()
    ]
    members.append(Member(name=f"{DEVEL_PAYLOAD}/__init__.py", source=_docstring("ROCm's development tree.")))
    rooted = {f"{DEVEL_PAYLOAD}/{path}": link for path, link in links.items()}
    module = {
        "rocm_sdk_devel/__init__.py": _docstring("Holds ROCm's development tree until it is expanded."),
        "rocm_sdk_devel/_dist_info.py": rendering.dist_info(distribution, "devel"),
    }
    spec = _spec(
        distribution,
        "rocm-sdk-devel",
        "ROCm's headers, CMake packages and development tools",
        requires=(f"rocm-sdk-core=={distribution.version}",),
    )
    output.folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=output.folder, prefix=".devel.") as folder:
        tar = Path(folder) / "_devel.tar"
        with tar.open("wb") as stream:
            write_tar(stream, members, links=rooted, epoch=output.epoch)
        return _write(output, spec, module, [Member(name="rocm_sdk_devel/_devel.tar", source=tar)])


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
        ]
    )
    members = [Member(name=name, source=path) for name, path in rendering.runtime_sources()]
    info = rendering.dist_info(distribution, "")
    members.append(Member(name="src/rocm_sdk/_dist_info.py", source=info))
    return write_sdist(
        output.folder, "rocm", distribution.version, members, metadata=metadata, epoch=output.epoch
    )


def _docstring(text: str) -> bytes:
    return f'"""{text}"""\n'.encode()


def _payload(folder: str, members: Sequence[Member]) -> list[Member]:
    rooted = [
        Member(name=f"{folder}/{member.name}", source=member.source, executable=member.executable)
        for member in members
    ]
    return [*rooted, Member(name=f"{folder}/__init__.py", source=b"")]


def _spec(
    distribution: Distribution,
    name: str,
    summary: str,
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
    ]
    return WheelSpec(
        distribution=name,
        version=distribution.version,
        tag=_TAGS[distribution.platform],
        metadata=metadata_text(fields),
        console_scripts=scripts,
    )


def _write(
    output: Output, spec: WheelSpec, module: Mapping[str, bytes], members: Sequence[Member]
) -> WrittenFile:
    pure = [Member(name=name, source=content) for name, content in module.items()]
    return write_wheel(output.folder, spec, [*pure, *members], epoch=output.epoch, jobs=output.jobs)
