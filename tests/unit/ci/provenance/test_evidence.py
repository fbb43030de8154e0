"""Statements from elsewhere may hold anything: what is wrong is said, and nothing else happens."""

from __future__ import annotations

import json
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ci.provenance.evidence import Statement, check_file, check_statement
from ci.provenance.facts import made_files
from ci.provenance.statements import statement
from core import data
from core.errors import DataError, ProvenanceError
from tests import provenance_samples as samples

if TYPE_CHECKING:
    from ci.promote.runs import Recorded

RUN = samples.run()
MADE = next(one for one in made_files(RUN) if one.file == samples.TORCH)
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=8,
)


def written() -> dict[str, Any]:
    """Give the sample's statement, its record named as a reader names it: below the run."""
    return statement(RUN, MADE)


def read(value: object) -> Statement:
    return data.parse_json(json.dumps(value), Statement, where="x.intoto.json")


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


def test_what_was_written_is_read() -> None:
    said = read(written())
    check_statement(said, "x.intoto.json", samples.TORCH, by())
    assert [one.digest["gitCommit"] for one in said.sources] == [samples.TORCH_COMMIT]
    assert said.record is not None
    assert said.record.name == f"manifests/{samples.GROUP}/build_torch-release-2.10-cp312.json"


@given(place=st.sampled_from(places(written())), new=JSON)
def test_whatever_stands_in_its_place_is_said_or_does_not_matter(place: tuple[Any, ...], new: object) -> None:
    with suppress(DataError, ProvenanceError):
        check_statement(read(replaced(written(), place, new)), "x.intoto.json", samples.TORCH, by())


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
        check_statement(read(replaced(written(), place, "f" * 64)), "x.intoto.json", samples.TORCH, by())


def test_a_file_is_of_the_record_that_has_its_bytes() -> None:
    other = samples.TORCH.model_copy(update={"sha256": "f" * 64})
    promised = [(by(), other), (by(), samples.TORCH)]
    assert check_file(samples.TORCH, promised)[1] == samples.TORCH
    with pytest.raises(ProvenanceError, match="another size"):
        check_file(samples.TORCH.model_copy(update={"size": 3}), [(by(), samples.TORCH)])


def test_what_earlier_records_left_out_is_not_missed() -> None:
    old = samples.TORCH.model_copy(update={"metadata_sha256": "", "requires_python": ""})
    assert check_file(samples.TORCH, [(by(), old)])[1] == old
