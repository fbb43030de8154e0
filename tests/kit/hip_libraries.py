"""Libraries that hipcc compiles of several files, and wheels of torch around libraries."""

from collections.abc import Mapping
from pathlib import Path

from core.archive import Member
from core.wheel.writer import WheelSpec, write_wheel

TORCH_VERSION = "2.10.0+rocm7.2.4"
METADATA = f"""\
Metadata-Version: 2.1
Name: torch
Version: {TORCH_VERSION}
Requires-Dist: rocm[libraries]==7.2.4
"""
# Files of one library, each with three kernels.
SOURCE_NAMES = ("one", "two", "three")
SOURCE = Path(__file__).with_name("texts").joinpath("template.hip").read_text()


def write_sources(folder: Path) -> list[str]:
    """Write the files of a library; return their names."""
    for name in SOURCE_NAMES:
        (folder / f"{name}.hip").write_text(SOURCE.replace("NAME", name))
    return [f"{name}.hip" for name in SOURCE_NAMES]


def write_wheel_of(files: Mapping[str, Path | bytes], folder: Path) -> Path:
    """Write a torch wheel of files, by member; libraries may be too large for memory."""
    spec = WheelSpec(
        distribution="torch",
        version=TORCH_VERSION,
        tag="py3-none-linux_x86_64",
        metadata=METADATA,
        purelib=False,
    )
    members = [Member(name=name, source=source) for name, source in files.items()]
    return write_wheel(folder, spec, members).path


def write_wheel_around(library: Path, folder: Path) -> Path:
    """Write a torch wheel with a library as libtorch_hip.so."""
    files: dict[str, Path | bytes] = {
        "torch/_rocm_init.py": b"def initialize(): ...\n",
        "torch/lib/libtorch_hip.so": library,
    }
    return write_wheel_of(files, folder)
