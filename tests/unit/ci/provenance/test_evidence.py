"""Statements from elsewhere may hold anything: what is wrong is said, and nothing else happens."""

import json
import threading
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ci.provenance import evidence
from ci.provenance.facts import RunFile, run_files
from ci.provenance.statements import statement
from core import data
from core.cli.options import Common
from core.errors import DataError, FatalError, MissingInputError, ProvenanceError, ServiceError, UsageError
from core.http_server import answering
from core.run.records import FileRecord
from core.stores.directory import DirectoryStore
from tests.kit import provenance as samples
from tests.kit.servers import Quiet, served

RUN = samples.run_records()
TORCH = next(run_file for run_file in run_files(RUN) if run_file.file == samples.TORCH)
STATEMENT = statement(RUN, TORCH)
STATEMENT_NAME = "x.intoto.json"

# Where a value stands in a document: keys and numbers of list members, from the outermost inwards.
Place = tuple[str | int, ...]


def check_statement(content: object) -> None:
    """Hold a statement's document against torch's file and record."""
    parsed = data.parse_json(json.dumps(content), evidence.Statement, where=STATEMENT_NAME)
    evidence.check_statement(parsed, STATEMENT_NAME, samples.TORCH, TORCH)


def places_in(value: Any) -> list[Place]:
    """Return every place of a document, its own included."""
    children: dict[str | int, Any] = {}
    if isinstance(value, dict):
        children = value
    elif isinstance(value, list):
        children = dict(enumerate(value))

    places: list[Place] = [()]
    for key, child in children.items():
        places += [(key, *place) for place in places_in(child)]
    return places


def replace_at(value: Any, place: Place, new_value: object) -> Any:
    """Return a document with another value at a place."""
    if not place:
        return new_value
    copy: Any = dict(value) if isinstance(value, dict) else list(value)
    copy[place[0]] = replace_at(value[place[0]], place[1:], new_value)
    return copy


# Statements


SCALARS = st.none() | st.booleans() | st.integers() | st.text("aé0\x1b\n", max_size=8)
JSON_VALUES = st.recursive(
    SCALARS,
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text("aé0\x1b\n", max_size=8), inner, max_size=3)
    ),
    max_leaves=8,
)


@given(place=st.sampled_from(places_in(STATEMENT)), value=JSON_VALUES)
def test_any_value_in_a_statement_is_refused_or_does_not_matter(place: Place, value: object) -> None:
    with suppress(DataError, ProvenanceError):
        check_statement(replace_at(STATEMENT, place, value))


@pytest.mark.parametrize(
    "place",
    [
        ("subject", 0, "digest", "sha256"),
        ("subject", 0, "name"),
        ("predicateType",),
        ("predicate", "runDetails", "byproducts", 0, "digest", "sha256"),
        ("predicate", "runDetails", "byproducts", 0, "name"),
        ("predicate", "buildDefinition", "resolvedDependencies", 0, "digest", "gitCommit"),
    ],
    ids=lambda place: ".".join(map(str, place)),
)
def test_rejects_a_change_of_what_ties_a_statement_to_file_record_and_source(place: Place) -> None:
    with pytest.raises(ProvenanceError):
        check_statement(replace_at(STATEMENT, place, "f" * 64))


# Records


def named_by(file: FileRecord) -> RunFile:
    """Return what torch's record would say if it named this file instead."""
    return replace(TORCH, file=file)


def test_finds_the_record_that_has_a_files_bytes() -> None:
    other_bytes = samples.TORCH.model_copy(update={"sha256": "f" * 64})

    run_file = evidence.check_file(samples.TORCH, [named_by(other_bytes), TORCH])

    assert run_file.file == samples.TORCH


def test_does_not_miss_what_earlier_records_left_out() -> None:
    earlier = samples.TORCH.model_copy(update={"metadata_sha256": "", "requires_python": ""})

    run_file = evidence.check_file(samples.TORCH, [named_by(earlier)])

    assert run_file.file == earlier


def test_rejects_a_record_with_another_size_of_the_same_bytes() -> None:
    smaller = samples.TORCH.model_copy(update={"size": 3})

    with pytest.raises(ProvenanceError, match="size"):
        evidence.check_file(smaller, [TORCH])


# Files and their runs


NAME = "torch-2.10.0+rocm7.1-cp312-cp312-linux_x86_64.whl"
KEY = f"down-stream/123-linux/python/gfx94X-dcgpu/{NAME}"
RECORD_PATH = "manifests/gfx94X-dcgpu/x.json"


@pytest.fixture
def store(tmp_path: Path) -> DirectoryStore:
    """Return a store with a wheel and a record of a run."""
    store = DirectoryStore(tmp_path / "store")
    store.put_bytes(KEY, b"wheel")
    store.put_bytes(f"down-stream/123-linux/{RECORD_PATH}", b"{}")
    return store


@pytest.fixture
def common(tmp_path: Path) -> Common:
    """Return the options of a verb, which name another run."""
    return Common(root=tmp_path, run_id="9", gpu_family="gfx110X-all")


def test_fetches_a_file_from_an_address(store: DirectoryStore, common: Common, tmp_path: Path) -> None:
    with served(store.root) as address:
        path, _origin = evidence.locate(
            f"{address}/{quote(KEY)}?x=1", common, tmp_path / "here", is_run_named=False
        )

    assert path.name == NAME
    assert path.read_bytes() == b"wheel"


def test_takes_an_address_in_a_run_for_a_file_of_that_run(
    store: DirectoryStore, common: Common, tmp_path: Path
) -> None:
    with served(store.root) as address:
        _path, origin = evidence.locate(
            f"{address}/{quote(KEY)}", common, tmp_path / "here", is_run_named=False
        )

        run: evidence.RunPlace = origin.run
        assert run.url == evidence.ServedRun(url=f"{address}/down-stream/123-linux").url
        # An address serves files and no listings.
        assert run.list_paths("manifests") is None
        assert run.read(RECORD_PATH) == b"{}"
        assert run.read("gone") is None


@pytest.mark.parametrize(
    ("path", "error"), [("/gone.whl", MissingInputError), ("/", UsageError)], ids=["absent", "no file"]
)
def test_rejects_an_address_without_a_file(
    path: str, error: type[FatalError], store: DirectoryStore, common: Common, tmp_path: Path
) -> None:
    with served(store.root) as address, pytest.raises(error) as raised:
        evidence.locate(f"{address}{path}", common, tmp_path, is_run_named=False)

    assert f"{address}{path}" in raised.value.message


@pytest.mark.parametrize(("uri", "error"), [("s3://bucket", UsageError), ("/no/such.whl", MissingInputError)])
def test_rejects_what_is_no_file(uri: str, error: type[FatalError], common: Common, tmp_path: Path) -> None:
    with pytest.raises(error):
        evidence.locate(uri, common, tmp_path, is_run_named=False)


def answer_half(request: BaseHTTPRequestHandler) -> None:
    """Answer with less than was announced."""
    request.send_response(200)
    request.send_header("Content-Length", "1000")
    request.end_headers()
    request.wfile.write(b"half")


def answer_failure(request: BaseHTTPRequestHandler) -> None:
    """Answer that the server failed."""
    request.send_error(500, "Oops")


@pytest.mark.parametrize(
    ("answer", "phrase"),
    [(answer_half, "4 bytes read, 996 more"), (answer_failure, "500")],
    ids=["breaks off", "fails"],
)
def test_names_the_failure_of_a_server_and_leaves_no_thread(
    answer: Callable[[BaseHTTPRequestHandler], None], phrase: str, common: Common, tmp_path: Path
) -> None:
    class Handler(Quiet, BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            answer(self)

    with answering(Handler) as address, pytest.raises(ServiceError, match=phrase):
        evidence.locate(f"{address}/{NAME}", common, tmp_path / "here", is_run_named=False)

    assert threading.active_count() < 20
