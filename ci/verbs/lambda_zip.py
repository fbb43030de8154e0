"""`lambda-zip`: the zip of the function that writes pages behind a bucket's events.

It holds our modules that the function imports, their data, and `packaging` as it is installed. Imports
are read and not run, and only those that run when the function starts count: what a function imports when it
is called is for tools on users' machines (`filelock`). The same sources give the same bytes: nothing
is compiled, and every member has one date.
"""

from __future__ import annotations

import argparse
import ast
import importlib.metadata
import sys
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path, PurePosixPath

from core import console, files
from core.archive import Member
from core.archive.zip_writer import HashingStream, ZipWriter
from core.cli.options import common_from
from core.errors import BuildError

# where ci/publish/server/template.yaml looks for it
OUTPUT = Path("dist", "pages.zip")
HANDLER = "ci.publish.server"
_VENDORED = "packaging"
_DATA = ("ci/publish/index/page.html",)
_OURS = frozenset({"ci", "core"})
# the runtime of python3.13 has boto3, and with it what boto3 needs
_AVAILABLE = {*sys.stdlib_module_names, "boto3", "botocore", "urllib3", _VENDORED}


def add_options(parser: argparse.ArgumentParser) -> None:
    """Declare the verb's own options."""
    what = f"where to write the zip (default: {OUTPUT.as_posix()})"
    parser.add_argument("--output", type=Path, metavar="FILE", help=what)


def run(arguments: argparse.Namespace) -> None:
    """Collect the function's files and write the zip."""
    common = common_from(arguments)
    found = bundle(common.root)
    output: Path = arguments.output or common.root / OUTPUT
    what = f"{len(found)} files (with {_VENDORED} {importlib.metadata.version(_VENDORED)})"
    if common.dry_run:
        console.table(("file",), [(name,) for name in found])
        console.done(f"lambda-zip: {what} would be written to {output}")
        return
    sha256 = write(found, output)
    console.table(("file", "size", "sha256"), [(str(output), console.size(output.stat().st_size), sha256)])
    console.done(f"lambda-zip: {what} are in {output}")


def write(found: Mapping[str, Path], output: Path) -> str:
    """Write the zip; return its SHA-256."""
    with files.atomic(output) as stream:
        hashing = HashingStream(stream)
        writer = ZipWriter(hashing)
        writer.add([Member(name=name, source=path) for name, path in found.items()])
        writer.finish()
        return hashing.sha256


def bundle(root: Path, handler: str = HANDLER) -> Mapping[str, Path]:
    """Collect the function's files, by their names in the zip."""
    modules = _closure(root, handler)
    beside = (root / one for one in _DATA if (root / one).is_file())
    found = {path.relative_to(root).as_posix(): path for path in (*modules.values(), *beside)}
    vendored = importlib.metadata.distribution(_VENDORED)
    for file in map(PurePosixPath, vendored.files or ()):
        licence = ".dist-info" in file.parts[0] and "licenses" in file.parts
        if licence or (file.parts[0] == _VENDORED and file.suffix == ".py"):
            found[str(file)] = Path(str(vendored.locate_file(file)))
    return dict(sorted(found.items()))


def _closure(root: Path, handler: str) -> dict[str, Path]:
    """Follow imports from the handler's module: modules and their files."""
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
        if "." in module:
            waiting.append(module.rpartition(".")[0])
        for name in _imported(ast.parse(path.read_bytes())):
            top = name.partition(".")[0]
            if top in _OURS:
                waiting.append(name if _path_of(root, name) else name.rpartition(".")[0])
            elif top not in _AVAILABLE:
                raise BuildError(
                    f"{path.relative_to(root)} imports {name}, which the function's runtime does not have.",
                    hint="Import it where it is used, if the function does not come there.",
                )
    return found


def _path_of(root: Path, module: str) -> Path | None:
    base = root.joinpath(*module.split("."))
    return next((path for path in (base.with_suffix(".py"), base / "__init__.py") if path.is_file()), None)


def _imported(tree: ast.Module) -> Iterator[str]:
    """Yield what a module imports when it is imported itself: modules, and names that may be some."""
    for node in _running(tree.body):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def _running(nodes: Iterable[ast.AST]) -> Iterator[ast.AST]:
    """Walk what runs at import: not the bodies of functions, nor what is for type checkers alone."""
    for node in nodes:
        yield node
        if isinstance(node, ast.If) and ast.unparse(node.test).endswith("TYPE_CHECKING"):
            yield from _running(node.orelse)
        elif not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            yield from _running(ast.iter_child_nodes(node))
