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

# ci/publish/server/template.yaml looks for it there.
OUTPUT = Path("dist", "pages.zip")
HANDLER = "ci.publish.server"
_VENDORED = "packaging"
_DATA_FILES = ("ci/publish/index/page.html",)
_OUR_PACKAGES = frozenset({"ci", "core"})
# The runtime of python3.13 has boto3, and with it what boto3 needs.
_AVAILABLE_PACKAGES = {*sys.stdlib_module_names, "boto3", "botocore", "urllib3", _VENDORED}

COMMON_OPTIONS = ("dry-run",)


def add_options(parser: argparse.ArgumentParser) -> None:
    """Declare the verb's own options."""
    parser.add_argument(
        "--output",
        type=Path,
        metavar="FILE",
        help=f"where to write the zip (default: {OUTPUT.as_posix()})",
    )


def run(arguments: argparse.Namespace) -> None:
    """Collect the function's files and write the zip."""
    common = common_from(arguments)
    sources = collect_files(common.root)
    output: Path = arguments.output or common.root / OUTPUT
    version = importlib.metadata.version(_VENDORED)
    summary = f"{len(sources)} files (with {_VENDORED} {version})"
    if common.dry_run:
        console.table(("file",), [(name,) for name in sources])
        console.done(f"lambda-zip: {summary} would be written to {output}")
        return

    sha256 = write_zip(sources, output)
    size = console.size(output.stat().st_size)
    console.table(("file", "size", "sha256"), [(str(output), size, sha256)])
    console.done(f"lambda-zip: {summary} are in {output}")


def write_zip(sources: Mapping[str, Path], output: Path) -> str:
    """Write files by their names in the zip, and return its SHA-256."""
    members = [Member(name=name, source=path) for name, path in sources.items()]
    with files.atomic_file(output) as stream:
        hashing_stream = HashingStream(stream)
        writer = ZipWriter(hashing_stream)
        writer.add(members)
        writer.finish()
        return hashing_stream.sha256


def collect_files(root: Path, handler: str = HANDLER) -> Mapping[str, Path]:
    """Return the function's files, by their names in the zip."""
    sources: dict[str, Path] = {}
    for path in imported_modules(root, handler).values():
        sources[path.relative_to(root).as_posix()] = path
    for name in _DATA_FILES:
        if (root / name).is_file():
            sources[name] = root / name
    sources |= _vendored_files()
    return dict(sorted(sources.items()))


def _vendored_files() -> Mapping[str, Path]:
    """Return the modules and licences of the package that the runtime does not have."""
    distribution = importlib.metadata.distribution(_VENDORED)
    sources: dict[str, Path] = {}
    for name in distribution.files or ():
        path = PurePosixPath(name)
        folder = path.parts[0]
        is_module = folder == _VENDORED and path.suffix == ".py"
        is_licence = ".dist-info" in folder and "licenses" in path.parts
        if is_module or is_licence:
            sources[str(path)] = Path(str(distribution.locate_file(name)))
    return sources


def imported_modules(root: Path, handler: str) -> Mapping[str, Path]:
    """Return the handler's module and ours that it imports, with their files.

    Raises:
        BuildError: A module is missing, or a package is imported that the runtime does not have.
    """
    paths: dict[str, Path] = {}
    waiting = [handler]
    while waiting:
        module = waiting.pop()
        if module in paths:
            continue
        path = _file_of_module(root, module)
        if path is None:
            raise BuildError(f"{handler} needs the module {module}, which is not in {root}.")
        paths[module] = path

        package, _, _ = module.rpartition(".")
        if package:
            waiting.append(package)
        tree = ast.parse(path.read_bytes())
        for name in _imported_names(tree):
            top_package, _, _ = name.partition(".")
            if top_package in _OUR_PACKAGES:
                waiting.append(_module_of_name(root, name))
            elif top_package not in _AVAILABLE_PACKAGES:
                raise BuildError(
                    f"{path.relative_to(root)} imports {name}, which the function's runtime does not have.",
                    hint="Import it where it is used, if the function does not come there.",
                )
    return paths


def _module_of_name(root: Path, name: str) -> str:
    """Return the module that a name is, or that it is defined in."""
    if _file_of_module(root, name) is not None:
        return name
    module, _, _ = name.rpartition(".")
    return module


def _file_of_module(root: Path, module: str) -> Path | None:
    base = root.joinpath(*module.split("."))
    for path in (base.with_suffix(".py"), base / "__init__.py"):
        if path.is_file():
            return path
    return None


def _imported_names(tree: ast.Module) -> Iterator[str]:
    """Yield what a module imports when it is imported itself: modules, and names that may be some."""
    for node in _nodes_that_run(tree.body):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def _nodes_that_run(nodes: Iterable[ast.AST]) -> Iterator[ast.AST]:
    """Walk what runs at import: not the bodies of functions, nor what is for type checkers alone."""
    for node in nodes:
        yield node
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            continue
        children = ast.iter_child_nodes(node)
        if isinstance(node, ast.If) and ast.unparse(node.test).endswith("TYPE_CHECKING"):
            children = iter(node.orelse)
        yield from _nodes_that_run(children)
