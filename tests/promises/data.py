"""The sentences of the documentation that promise behaviour, and the tests that fail when one is broken."""

import ast
import hashlib
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cache
from pathlib import Path

from core.cli.options import ROOT
from core.data import Model, load_toml

# Blocks of code, comments, and what `nox -s docs` generates between them.
_NO_PROSE = re.compile(
    r"^```.*?^```$|<!-- generated: (?P<part>[\w-]+) -->.*?<!-- end of (?P=part) -->", re.MULTILINE | re.DOTALL
)

_NIGHTLY = "pytest.mark.nightly"

DATA_FILE = Path(__file__).with_name("promises.toml")


class Promise(Model):
    """A sentence of a page, verbatim but for line breaks.

    `broken_by` says how the product was changed to break it, and `tests` which tests failed then.
    """

    page: str
    sentence: str
    tests: tuple[str, ...] = ()
    broken_by: str = ""


class Promises(Model):
    """Every promise, page by page."""

    promise: tuple[Promise, ...]


def load_promises(path: Path = DATA_FILE) -> Sequence[Promise]:
    """Read the promises from their data file."""
    return load_toml(path, Promises).promise


def read_sentences(root: Path = ROOT) -> Iterator[Promise]:
    """Yield the sentences of README.md and docs/, without code, headings and generated parts."""
    pages = [root / "README.md", *sorted((root / "docs").glob("*.md"))]
    for page in pages:
        for sentence in _sentences_in(page.read_text(encoding="utf-8")):
            yield Promise(page=page.relative_to(root).as_posix(), sentence=sentence)


def _sentences_in(text: str) -> Iterator[str]:
    prose = _NO_PROSE.sub("\n\n", text)
    for paragraph in re.split(r"\n\s*\n|\n(?=[-*|#] ?)", prose):
        joined = re.sub(r"\s+", " ", paragraph).strip()
        if not joined.startswith(("#", "|", "!", "<")):
            yield from re.findall(r"[A-Z`\[].*?[.:](?= |$)", joined)


def drawn_promises(promises: Iterable[Promise], *, seed: str, count: int) -> Sequence[Promise]:
    """Draw promises by the digest of the seed and each sentence: the same seed draws the same."""

    def lot(promise: Promise) -> str:
        return hashlib.sha256(f"{seed}{promise.sentence}".encode()).hexdigest()

    return sorted(promises, key=lot)[:count]


def find_problems(promises: Iterable[Promise], root: Path = ROOT) -> Iterator[str]:
    """Yield each sentence that its page no longer has, or whose tests are gone or run at night only."""
    listed_sentences: set[tuple[str, str]] = set()
    for promise in promises:
        page = promise.page
        sentence = promise.sentence

        if (page, sentence) in listed_sentences:
            yield f"{page} is listed twice with: {sentence}"
        listed_sentences.add((page, sentence))

        if sentence not in _page_text(root / page):
            yield f"{page} no longer says: {sentence}"

        for test in promise.tests:
            if not _has_test(root, test):
                yield f"{test} does not exist; it holds: {sentence}"

        if promise.tests and all(_is_nightly(root, test) for test in promise.tests):
            yield f"nightly tests alone, which .ci/run leaves out, hold: {sentence}"


@cache
def _page_text(path: Path) -> str:
    """Return a page with every run of white space as one space."""
    if not path.is_file():
        return ""
    return re.sub(r"\s+", " ", path.read_text(encoding="utf-8"))


def _has_test(root: Path, node_id: str) -> bool:
    """Return whether a file has a test function, by its syntax; parameters in brackets are not looked at."""
    path, name = _split_node_id(node_id)
    return name in _tests(root / path)


def _is_nightly(root: Path, node_id: str) -> bool:
    """Return whether a test has the mark of those that ``.ci/run`` leaves out, or its file has."""
    path, name = _split_node_id(node_id)
    return _tests(root / path).get(name, False)


def _split_node_id(node_id: str) -> tuple[str, str]:
    """Return the path and the function that pytest's name of a test names."""
    function_id, _, _parameters = node_id.partition("[")
    path, _, name = function_id.partition("::")
    return path, name


@cache
def _tests(path: Path) -> Mapping[str, bool]:
    """Return the names of a file's tests, with whether each is nightly."""
    if not path.is_file():
        return {}
    tree = ast.parse(path.read_text(encoding="utf-8"))
    assignments = [ast.unparse(node) for node in tree.body if isinstance(node, ast.Assign)]
    is_nightly_file = any(_NIGHTLY in assignment for assignment in assignments)

    tests: dict[str, bool] = {}
    for node in tree.body:
        if isinstance(node, ast.FunctionDef) and node.name.startswith("test_"):
            marks = [ast.unparse(decorator) for decorator in node.decorator_list]
            tests[node.name] = is_nightly_file or _NIGHTLY in marks
    return tests
