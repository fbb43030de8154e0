"""`lambda-zip`: the zip of the function that writes pages behind a bucket's events.

The same sources give the same bytes: nothing is compiled, and every member has one date.
"""

from __future__ import annotations

import ast
import importlib.metadata
import sys
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING

from core import console, files
from core.archive.zip_writer import HashingStream, Member, ZipWriter
from core.cli.options import common_from
from core.errors import BuildError

if TYPE_CHECKING:
    import argparse
    from collections.abc import Iterable, Iterator, Mapping


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


HANDLER = "ci.publish.server"
VENDORED = "packaging"
# the runtime of python3.13 has boto3, and with it what boto3 needs
RUNTIME = frozenset({"boto3", "botocore", "urllib3"})
OURS = frozenset({"ci", "core"})


@dataclass(frozen=True, kw_only=True)
class Bundle:
    """What the zip holds."""

    files: Mapping[str, Path]
    modules: tuple[str, ...]
    vendored: str


def bundle(root: Path, *, stdlib: frozenset[str], handler: str = HANDLER) -> Bundle:
    """Collect the function's files."""
    modules = _closure(root, handler, stdlib)
    files = {path.relative_to(root).as_posix(): path for path in modules.values()}
    vendored = importlib.metadata.distribution(VENDORED)
    for file in vendored.files or ():
        if _belongs(PurePosixPath(file)):
            files[file.as_posix()] = Path(str(file.locate()))
    return Bundle(
        files=dict(sorted(files.items())),
        modules=tuple(sorted(modules)),
        vendored=f"{VENDORED} {vendored.version}",
    )


def _belongs(file: PurePosixPath) -> bool:
    licence = ".dist-info" in file.parts[0] and "licenses" in file.parts
    return licence or (file.parts[0] == VENDORED and file.suffix == ".py")


def _closure(root: Path, handler: str, stdlib: frozenset[str]) -> dict[str, Path]:
    found: dict[str, Path] = {}
    waiting = [handler]
    while waiting:
        module = waiting.pop()
        if module in found:
            continue
        path = _path_of(root, module)
        if path is None:
            raise BuildError(f"{handler} needs the module {module}, which is not in {root}.")
        found[module] = path
        waiting += [parent for parent in _parents(module) if parent not in found]
        for name in _imported(ast.parse(path.read_bytes())):
            top = name.partition(".")[0]
            if top in OURS:
                waiting += [name] if _path_of(root, name) else [name.rpartition(".")[0]]
            elif top not in {*stdlib, *RUNTIME, VENDORED}:
                raise BuildError(
                    f"{path.relative_to(root)} imports {name}, which the function's runtime does not have.",
                    hint="Import it where it is used, if the function does not come there.",
                )
    return found


def _path_of(root: Path, module: str) -> Path | None:
    base = root.joinpath(*module.split("."))
    return next((path for path in (base.with_suffix(".py"), base / "__init__.py") if path.is_file()), None)


def _parents(module: str) -> Iterator[str]:
    while "." in module:
        module = module.rpartition(".")[0]
        yield module


def _imported(tree: ast.Module) -> Iterator[str]:
    """Give what a module imports when it is imported itself: modules, and names that may be some."""
    for node in _running(tree.body):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def _running(body: Iterable[ast.stmt]) -> Iterator[ast.stmt]:
    """Walk statements that run at import: not those of functions, nor for type checkers alone."""
    for node in body:
        yield node
        if isinstance(node, ast.If) and ast.unparse(node.test).endswith("TYPE_CHECKING"):
            yield from _running(node.orelse)
        elif isinstance(node, ast.If | ast.Try | ast.With | ast.ClassDef):
            for part in ("body", "orelse", "finalbody"):
                yield from _running(getattr(node, part, ()))
            for handler in getattr(node, "handlers", ()):
                yield from _running(handler.body)
