"""The rules of this repository that a reader could break without noticing."""

import argparse
import ast
import fnmatch
import inspect
import re
from collections import Counter
from functools import cache
from importlib import import_module
from pathlib import Path

import pytest

from core import errors, process
from core.cli import Verb, verb_parser
from core.cli.options import ROOT
from docs.command_tables import all_sessions

LAYERS = ("core", "rocm_packaging", "pytorch_build", "ci")
DOORS = ("rocm_packaging", "pytorch_build", "ci")
# what runs elsewhere: in a target environment, or as part of what is packaged
FOREIGN = ("rocm_packaging/templates/", "rocm_packaging/sample/templates/", "pytorch_build/sample/templates/")
MAX_FUNCTION = 60
# written in parts, so that this file holds none of them
SECRETS_OF_THE_PLACE = [
    "".join(parts)
    for parts in (
        ("pypi", ".org"),
        ("pythonhosted", ".org"),
        ("crates", ".io"),
        ("npmjs", ".com"),
        ("/wo", "rk/"),
        ("sha", "red/spec"),
        ("sha", "red/design"),
        ("sha", "red/reference"),
        ("../sha", "red"),
    )
]


# what this project's CI runs on its own machine may say where real sources come from there
NAMES_ITS_MACHINE = {".ci/run"}


def relative(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


def test_no_folder_of_tests_is_passed_over(pytestconfig: pytest.Config) -> None:
    passed_over = pytestconfig.getini("norecursedirs")
    parts = {
        part for path in (ROOT / "tests").rglob("test_*.py") for part in path.relative_to(ROOT).parts[:-1]
    }
    assert not [(part, one) for part in parts for one in passed_over if fnmatch.fnmatch(part, one)]


@cache
def modules() -> tuple[Path, ...]:
    """List our own modules: what is built from templates, and what runs elsewhere, is not."""
    found = [ROOT / "noxfile.py", ROOT / "tasks.py", *(ROOT / "requirements").glob("*.py")]
    for layer in LAYERS:
        found += (ROOT / layer).rglob("*.py")
    ours = [path for path in found if not relative(path).startswith(FOREIGN)]
    assert len(ours) > 50
    return tuple(sorted(ours))


@cache
def tree(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"))


def imports(path: Path) -> set[str]:
    """List every module that a file imports, at its top or anywhere in it."""
    found: set[str] = set()
    for node in ast.walk(tree(path)):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path} has a relative import"
            found |= {f"{node.module}.{alias.name}" for alias in node.names} | {str(node.module)}
        elif isinstance(node, ast.Call) and ast.unparse(node.func).endswith("import_module"):
            found |= {str(argument.value) for argument in node.args if isinstance(argument, ast.Constant)}
    return found


def names(path: Path) -> Counter[str]:
    """Count the dotted names that a file uses."""
    nodes = (node for node in ast.walk(tree(path)) if isinstance(node, ast.Attribute | ast.Name))
    return Counter(ast.unparse(node) for node in nodes)


def within(path: Path, allowed: set[str]) -> bool:
    return any(
        relative(path) == one or (one.endswith("/") and relative(path).startswith(one)) for one in allowed
    )


@pytest.mark.parametrize("layer", LAYERS)
def test_imports_go_one_way(layer: str) -> None:
    above = set(LAYERS[LAYERS.index(layer) + 1 :]) | {"tests", "docs", "tasks", "noxfile"}
    upwards = {
        f"{relative(path)} imports {name}"
        for path in modules()
        if relative(path).startswith(f"{layer}/")
        for name in imports(path)
        if name.split(".")[0] in above
    }
    assert upwards == set()


@pytest.mark.parametrize(
    ("what", "doors"),
    [
        (
            {"subprocess", "multiprocessing", "pty", "os.system", "os.popen", "os.execv", "os.fork"},
            {"core/process.py", "noxfile.py", "pytorch_build/test/smoke/"},
        ),
        ({"print", "sys.stdout.write", "sys.stderr.write", "pprint.pprint"}, {"core/console.py"}),
        (
            {"os.environ", "os.getenv", "os.putenv"},
            {
                *("core/cli/options.py", "core/process.py", "core/console.py", "noxfile.py"),
                "pytorch_build/test/smoke/",
            },
        ),
    ],
    ids=["processes", "printing", "environment"],
)
def test_processes_output_and_the_environment_have_their_doors(what: set[str], doors: set[str]) -> None:
    found = {
        relative(path)
        for path in modules()
        if not within(path, doors) and (what & imports(path) or what & set(names(path)))
    }
    assert found == set()


# nox, git, engines, pip's configuration, settings of AWS, sccache; execution.py allows a build less
RIGHTS = {
    *("ci/flow.py", "ci/verbs/build_image.py", "ci/verbs/in_image.py", "core/env/engines.py"),
    *("core/env/installer.py", "core/stores/s3_client.py", "pytorch_build/build/forecast.py"),
    *("pytorch_build/sample/__init__.py", "pytorch_build/sources/git.py", "pytorch_build/verbs/build.py"),
    *("pytorch_build/verbs/test_torch.py", "requirements/lock.py"),
}


def test_nothing_but_the_tools_own_programs_gets_its_rights() -> None:
    inherits, handed = (
        {"process.inherited", "core.process.inherited"},
        re.compile(r"env=.*\benvironment\(\)"),
    )
    found = {
        relative(path)
        for path in modules()
        if inherits & (set(names(path)) | imports(path)) or handed.search(path.read_text(encoding="utf-8"))
    }
    assert found == RIGHTS


def test_nobody_edits_the_import_path() -> None:
    found = {relative(path) for path in modules() if "sys.path" in names(path) or "site" in imports(path)}
    assert found == set()


def test_every_error_has_an_exit_code_of_its_own() -> None:
    classes = [
        one for _, one in inspect.getmembers(errors, inspect.isclass) if issubclass(one, errors.FatalError)
    ]
    elsewhere = {
        f"{relative(path)}: {node.name}"
        for path in modules()
        if relative(path) != "core/errors.py"
        for node in ast.walk(tree(path))
        if isinstance(node, ast.ClassDef)
        and any(ast.unparse(base).endswith("FatalError") for base in node.bases)
    }
    assert elsewhere == set()
    assert len({one.exit_code for one in classes}) == len(classes) > 10
    assert all("exit_code" in vars(one) and 0 < one.exit_code < 256 for one in classes)


def verbs() -> list[tuple[str, Verb]]:
    return [(door, verb) for door in DOORS for verb in import_module(f"{door}.__main__").VERBS]


@pytest.mark.parametrize(("door", "verb"), verbs(), ids=lambda one: one if isinstance(one, str) else one.name)
def test_every_verb_imports_and_takes_the_common_options(door: str, verb: Verb) -> None:
    module, parser = verb_parser(door, verb)
    assert callable(module.run)
    assert isinstance(parser, argparse.ArgumentParser)
    assert "--gpu-family" in parser.format_help()
    assert verb.summary
    assert len(verb.summary) < 90


def test_every_session_calls_a_verb_that_there_is() -> None:
    known = {(door, verb.name) for door, verb in verbs()}
    called = {(one.calls[0], one.calls[1]) for one in all_sessions() if one.calls}
    assert called <= known
    assert len(called) > 10
    assert known - called <= {("ci", "cells")}, "a verb that no session calls"
    for function in (one for one in tree(ROOT / "noxfile.py").body if isinstance(one, ast.FunctionDef)):
        if function.decorator_list:
            calls = [node for node in ast.walk(function) if isinstance(node, ast.Call)]
            (words,) = (node.args for node in calls if ast.unparse(node.func) == "tool")
            assert (ROOT / ast.literal_eval(words[1])).is_file(), f"{function.name} has no lock"


def test_every_session_says_what_it_does_in_one_line() -> None:
    for one in all_sessions():
        assert one.summary, f"{one.name} has no line for nox -l"
        assert len(one.summary) <= 100, one.name


def test_functions_fit_a_reader() -> None:
    long_functions = {
        f"{relative(path)}:{node.name}": lines
        for path in modules()
        for node in ast.walk(tree(path))
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
        and (lines := (node.end_lineno or 0) - node.lineno + 1) > MAX_FUNCTION
    }
    assert long_functions == {}


@pytest.mark.parametrize(
    "lock",
    [ROOT / "requirements.txt", *sorted((ROOT / "requirements").glob("*.txt"))],
    ids=lambda one: one.name,
)
def test_a_lock_holds_nothing_of_the_machine_that_compiled_it(lock: Path) -> None:
    text = lock.read_text(encoding="utf-8")
    settings = re.findall(r"^\s*(?:--|-[if] )(?!hash=).*", text, re.MULTILINE)
    assert settings == []
    assert "://" not in text
    header = "".join(line for line in text.splitlines() if line.startswith("#"))
    assert not re.search(r"\s/\w|/tmp|/home|/root", header)
    requirements = re.findall(r"^[A-Za-z0-9].*", text, re.MULTILINE)
    assert requirements
    assert all(re.match(r"[A-Za-z0-9._-]+(\[.*\])?==[^ ]+( ;.*)? \\$", line) for line in requirements)


@cache
def tracked() -> tuple[Path, ...]:
    listed = process.capture(["git", "ls-files", "-z"], cwd=ROOT).stdout
    return tuple(path for name in listed.split("\0") if name and (path := ROOT / name).is_file())


@pytest.mark.processes
def test_no_file_names_registries_or_the_place_where_it_was_written() -> None:
    if not (ROOT / ".git").exists():
        pytest.skip("an unpacked archive has no list of its files")
    found = {
        f"{relative(path)}: {needle}"
        for path in tracked()
        for needle in SECRETS_OF_THE_PLACE
        if needle.encode() in path.read_bytes() and relative(path) not in NAMES_ITS_MACHINE
    }
    assert found == set()


@pytest.mark.processes
def test_test_folders_are_no_packages_and_test_names_are_found() -> None:
    if not (ROOT / ".git").exists():
        pytest.skip("an unpacked archive has no list of its files")
    tests = [path for path in tracked() if relative(path).startswith("tests/unit/") and path.suffix == ".py"]
    assert [relative(path) for path in tests if path.name == "__init__.py"] == []
    helpers = {"conftest.py"}
    lost = {
        relative(path)
        for path in tests
        if path.name not in helpers
        and not path.name.startswith("test_")
        and any(
            isinstance(node, ast.FunctionDef) and node.name.startswith("test_") for node in tree(path).body
        )
    }
    assert lost == set()
