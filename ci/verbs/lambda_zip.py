"""`lambda-zip`: the zip of the function that writes pages behind a bucket's events.

The same sources give the same bytes: nothing is compiled, and every member has one date.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING

from ci.publish.server.bundle import bundle
from core import console, files
from core.archive import Member
from core.archive.zip_writer import HashingStream, ZipWriter
from core.cli.options import common_from

if TYPE_CHECKING:
    import argparse

    from ci.publish.server.bundle import Bundle

# where ci/publish/server/template.yaml looks for it
OUTPUT = Path("dist", "pages.zip")


def add_options(parser: argparse.ArgumentParser) -> None:
    """Declare the verb's own options."""
    parser.add_argument(
        "--output", type=Path, metavar="FILE", help=f"where to write the zip (default: {OUTPUT.as_posix()})"
    )


def run(arguments: argparse.Namespace) -> None:
    """Collect the function's files and write the zip."""
    common = common_from(arguments)
    found = bundle(common.root, stdlib=frozenset(sys.stdlib_module_names))
    output: Path = arguments.output or common.root / OUTPUT
    what = f"{len(found.modules)} modules and {found.vendored}"
    if common.dry_run:
        console.table(("file",), [(name,) for name in found.files])
        console.done(f"lambda-zip: {what} would be written to {output}")
        return
    sha256 = write(found, output)
    size = console.size(output.stat().st_size)
    console.table(("file", "size", "sha256"), [(str(output), size, sha256)])
    console.done(f"lambda-zip: {what} are in {output}")


def write(found: Bundle, output: Path) -> str:
    """Write the zip."""
    with files.atomic(output) as stream:
        hashing = HashingStream(stream)
        writer = ZipWriter(hashing)
        writer.add([Member(name=name, source=path) for name, path in found.files.items()])
        writer.finish()
        return hashing.sha256
