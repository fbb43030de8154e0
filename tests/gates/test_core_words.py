"""Core knows nothing of PyTorch: what its code says of it is passed in, or stands in data files."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

from core.cli.options import ROOT
from tests.kit import source_code
from tests.kit.source_code import relative

WORDS_OF_PYTORCH = re.compile(r"(?i)torch|triton|\bapex\b")

# A run has torch refs, as it has GPU families: cells, records, keys and options call that axis so.
TORCH_REF = re.compile(r"(?i)torch[_ -]refs?")

# What else core's code may say, and why.
ALLOWED = {
    # The user's one file, whose name people know, and which of the project's files it goes over.
    "core/cli/options.py": ["pytorch-build.toml"],
    "core/data.py": [
        "pytorch_build/build/needs.toml",
        "pytorch_build/check/policy.toml",
        "pytorch_build/refs/refs.toml",
    ],
    # The lock with what upstream's own tests need: a file's name.
    "core/env/locks.py": ["TORCH_TESTS", "torch-tests"],
    # The plan is a document that workflows read: its stages and keys have these names.
    "core/run/plan.py": [
        ", torch ",
        "PyTorch is not built on it then",
        "Whether PyTorch is built for it",
        "build_pytorch",
        "test_pytorch",
        "test_torch",
        "torch",
        "torch_version",
    ],
    # The project's own name, which stands in every wheel.
    "core/wheel/writer.py": ["rocm-pytorch-wheels"],
}


def test_core_knows_nothing_of_pytorch() -> None:
    words: dict[str, list[str]] = {}
    for module in sorted((ROOT / "core").rglob("*.py")):
        words_of_module = sorted(set(words_of_pytorch(module)))
        if words_of_module:
            words[relative(module)] = words_of_module

    assert words == ALLOWED


def words_of_pytorch(module: Path) -> Iterator[str]:
    """Yield the names and texts in a module's code that speak of PyTorch; comments and docstrings may."""
    for word in words_of_code(module):
        if WORDS_OF_PYTORCH.search(TORCH_REF.sub("", word)):
            yield word


def words_of_code(module: Path) -> Iterator[str]:
    docstrings = set(docstrings_of(module))
    for node in source_code.nodes(module):
        match node:
            case ast.Name(id=name) | ast.arg(arg=name) | ast.alias(name=name):
                yield name
            case ast.FunctionDef(name=name) | ast.ClassDef(name=name) | ast.Attribute(attr=name):
                yield name
            case ast.keyword(arg=str(name)):
                yield name
            case ast.Constant(value=str(text)) if node not in docstrings:
                yield text


def docstrings_of(module: Path) -> Iterator[ast.AST]:
    for node in source_code.nodes(module):
        if not isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef) or not node.body:
            continue
        first_statement = node.body[0]
        if isinstance(first_statement, ast.Expr) and isinstance(first_statement.value, ast.Constant):
            yield first_statement.value


def test_data_of_core_names_no_package_above_it() -> None:
    for data in sorted((ROOT / "core").rglob("*.toml")):
        statements = re.sub(r"(?m)^ *#.*$", "", data.read_text(encoding="utf-8"))
        assert not re.search(r"\b(pytorch_build|rocm_packaging)\b", statements), relative(data)
