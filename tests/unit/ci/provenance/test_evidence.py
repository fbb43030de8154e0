"""Statements from elsewhere may hold anything: what is wrong is said, and nothing else happens."""

import json
import threading
from collections.abc import Callable
from contextlib import suppress
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ci.promote.runs import Recorded
from ci.provenance import evidence
from ci.provenance.facts import made_files
from ci.provenance.statements import statement
from core import data
from core.cli.options import Common
from core.errors import DataError, MissingInputError, ProvenanceError, ServiceError, UsageError
from core.http import answering
from core.stores.directory import DirectoryStore
from tests.kit import provenance as samples
from tests.kit.servers import Quiet, served

RUN = samples.run()
MADE = next(one for one in made_files(RUN) if one.file == samples.TORCH)
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=8,
)


def written() -> dict[str, Any]:
    """Return the sample's statement, its record named as a reader names it: below the run."""
    return statement(RUN, MADE)


def read(value: object) -> evidence.Statement:
    return data.parse_json(json.dumps(value), evidence.Statement, where="x.intoto.json")


def by() -> Recorded:
    return MADE.by


def places(value: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    inner = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    return [path, *(one for key, part in inner for one in places(part, (*path, key)))]


def replaced(value: Any, path: tuple[Any, ...], new: object) -> Any:
    if not path:
        return new
    copy = dict(value) if isinstance(value, dict) else list(value)
    copy[path[0]] = replaced(value[path[0]], path[1:], new)
    return copy


@given(place=st.sampled_from(places(written())), new=JSON)
def test_whatever_stands_in_its_place_is_said_or_does_not_matter(place: tuple[Any, ...], new: object) -> None:
    with suppress(DataError, ProvenanceError):
        evidence.check_statement(read(replaced(written(), place, new)), "x.intoto.json", samples.TORCH, by())


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
def test_what_ties_it_to_file_record_and_source_may_not_change(place: tuple[Any, ...]) -> None:
    with pytest.raises(ProvenanceError):
        evidence.check_statement(
            read(replaced(written(), place, "f" * 64)), "x.intoto.json", samples.TORCH, by()
        )


def test_a_file_is_of_the_record_that_has_its_bytes() -> None:
    other = samples.TORCH.model_copy(update={"sha256": "f" * 64})
    assert evidence.check_file(samples.TORCH, [(by(), other), (by(), samples.TORCH)])[1] == samples.TORCH
    # what earlier records left out is not missed
    old = samples.TORCH.model_copy(update={"metadata_sha256": "", "requires_python": ""})
    assert evidence.check_file(samples.TORCH, [(by(), old)])[1] == old
    with pytest.raises(ProvenanceError, match="another size"):
        evidence.check_file(samples.TORCH.model_copy(update={"size": 3}), [(by(), samples.TORCH)])


NAME = "torch-2.10.0+rocm7.1-cp312-cp312-linux_x86_64.whl"
KEY = f"down-stream/123-linux/python/gfx94X-dcgpu/{NAME}"


@pytest.fixture(name="store")
def store_fixture(tmp_path: Path) -> DirectoryStore:
    store = DirectoryStore(tmp_path / "store")
    store.put_bytes(KEY, b"wheel")
    store.put_bytes("down-stream/123-linux/manifests/gfx94X-dcgpu/x.json", b"{}")
    return store


@pytest.fixture(name="common")
def common_fixture(tmp_path: Path) -> Common:
    return Common(root=tmp_path, run_id="9", gpu_family="gfx110X-all")


def test_an_address_in_a_run_is_of_that_run(store: DirectoryStore, common: Common, tmp_path: Path) -> None:
    with served(store.root) as address:
        found = evidence.locate(f"{address}/{quote(KEY)}?x=1", common, tmp_path / "here", named=False)
        assert found.path.read_bytes() == b"wheel"
        assert found.path.name == NAME
        run: evidence.RunPlace = found.run
        assert run.url == evidence.ServedRun(url=f"{address}/down-stream/123-linux").url
        assert run.paths("manifests") is None
        assert (found.run.read("manifests/gfx94X-dcgpu/x.json"), found.run.read("gone")) == (b"{}", None)
        with pytest.raises(MissingInputError, match="There is no http"):
            evidence.locate(f"{address}/gone.whl", common, tmp_path, named=False)
        with pytest.raises(UsageError, match="is not the address of a file"):
            evidence.locate(f"{address}/", common, tmp_path, named=False)


@pytest.mark.parametrize(("uri", "error"), [("s3://bucket", UsageError), ("/no/such.whl", MissingInputError)])
def test_what_is_no_file(uri: str, error: type[Exception], common: Common, tmp_path: Path) -> None:
    with pytest.raises(error):
        evidence.locate(uri, common, tmp_path, named=False)


def handler(answer: Callable[[BaseHTTPRequestHandler], None]) -> type[BaseHTTPRequestHandler]:
    class Answering(Quiet, BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            answer(self)

    return Answering


def cut(request: BaseHTTPRequestHandler) -> None:
    request.send_response(200)
    request.send_header("Content-Length", "1000")
    request.end_headers()
    request.wfile.write(b"half")


def broken(request: BaseHTTPRequestHandler) -> None:
    request.send_error(500, "Oops")


@pytest.mark.parametrize(
    ("answer", "said"), [(cut, "broke off after 4 of 1000 bytes"), (broken, "answers 500 Oops")]
)
def test_a_server_that_fails_leaves_nothing(
    answer: Callable[[BaseHTTPRequestHandler], None], said: str, common: Common, tmp_path: Path
) -> None:
    with answering(handler(answer)) as address, pytest.raises(ServiceError, match=said):
        evidence.locate(f"{address}/{NAME}", common, tmp_path / "here", named=False)
    assert threading.active_count() < 20
