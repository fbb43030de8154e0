"""Staging and deciding as pure functions: what is merged, named, and told apart."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ci.promote import documents
from ci.promote.documents import Cell, Document, PromotedFile, StagedFile, StagingRecord
from ci.promote.facts import Facts, Wheel
from ci.promote.promotion import identity_of, promoted_files
from ci.promote.staging_area import is_sample, merged, python_of
from core.data import parse_json
from core.errors import StoreError

DIGESTS = st.sampled_from(["a" * 64, "b" * 64])
NAMES = st.sampled_from([f"torch-2.{number}-cp312-cp312-linux_x86_64.whl" for number in range(5)])


def staged(name: str, digest: str = "a" * 64) -> StagedFile:
    return StagedFile(
        name=name,
        key=f"v2-staging/g/{name}",
        source_key=f"17-linux/python/g/{name}",
        size=3,
        sha256=digest,
        distribution="torch",
        version="2.1",
    )


@st.composite
def staging(draw: st.DrawFn) -> StagingRecord:
    """Draw what one job staged of a run; a name stands for the same bytes in all of them."""
    documents = st.builds(Document, key=st.sampled_from(["one", "two", "three"]), sha256=DIGESTS)
    return StagingRecord(
        family="g",
        run_id="17",
        platform="linux",
        store="out",
        prefix="17-linux",
        artifact_group="g",
        staged=draw(st.sampled_from(["2026-11-21", "2026-11-22"])),
        files=tuple(staged(name) for name in sorted(draw(st.sets(NAMES)))),
        records=tuple(draw(st.lists(documents, unique_by=lambda one: one.key))),
    )


@given(staging(), staging())
def test_what_two_jobs_staged_adds_up_in_any_order(one: StagingRecord, other: StagingRecord) -> None:
    both, reverse = merged(one, other), merged(other, one)
    assert {file.name for file in both.files} == {file.name for file in (*one.files, *other.files)}
    assert both.files == reverse.files
    assert [file.name for file in both.files] == sorted(file.name for file in both.files)
    # run again, neither job has news
    assert merged(both, other) is both
    assert merged(both, both) is both


@given(staging())
def test_a_document_reads_as_it_was_written(record: StagingRecord) -> None:
    text = documents.serialized(record).decode()
    assert parse_json(text, StagingRecord, where="record") == record


def test_a_name_that_stood_for_other_bytes_is_no_addition() -> None:
    name = "torch-2.1-cp312-cp312-linux_x86_64.whl"
    base = {"family": "g", "run_id": "17", "platform": "linux", "store": "out", "prefix": "17-linux"}
    more = {"artifact_group": "g", "staged": "2026", "records": []}
    old, new = (
        StagingRecord.model_validate({**base, **more, "files": [staged(name, digest * 64)]})
        for digest in "ab"
    )
    with pytest.raises(StoreError, match="was staged with other bytes before: aaaaaaaaaaaa"):
        merged(old, new)


@pytest.mark.parametrize(
    ("version", "sample"),
    [
        ("2.10.0a0+devrocm7.99.0.dev0.sample", True),
        ("7.99.0.dev0+sample", True),
        ("2.10.0+cpu.sample", True),
        ("2.10.0+rocm7.10.0", False),
        ("2.10.0", False),
        ("no version", False),
    ],
)
def test_the_samples_wheels_are_known_by_their_version(version: str, *, sample: bool) -> None:
    assert is_sample(version) == sample


@pytest.mark.parametrize(
    ("name", "python"),
    [
        ("torch-2.10.0+rocm7.10.0-cp312-cp312-linux_x86_64.whl", "cp312"),
        ("torch-2.10.0-cp313-cp313t-win_amd64.whl", "cp313t"),
        ("triton-3.6.0-cp39-abi3-linux_x86_64.whl", ""),
        ("rocm_sdk_core-7.10.0-py3-none-linux_x86_64.whl", ""),
        ("rocm-7.10.0.tar.gz", ""),
    ],
)
def test_a_wheel_is_for_the_python_of_its_abi(name: str, python: str) -> None:
    assert python_of(name) == python


def facts(files: list[tuple[str, str]]) -> Facts:
    cell = Cell(family="g", platform="linux", python="cp312")
    wheels = [
        Wheel(cell=cell, file=staged(name, digest), found=digest, sidecar="", built=frozenset())
        for name, digest in files
    ]
    return Facts(set_name="torch-2", wheels=tuple(wheels))


def promoted(files: list[tuple[str, str]]) -> tuple[PromotedFile, ...]:
    return promoted_files(facts(files))


@given(st.lists(st.tuples(NAMES, DIGESTS), unique_by=lambda pair: pair[0]), st.randoms(use_true_random=False))
def test_a_set_is_known_by_its_names_and_bytes_in_any_order(
    files: list[tuple[str, str]], random: object
) -> None:
    shuffled = list(files)
    random.shuffle(shuffled)  # type: ignore[attr-defined]
    assert identity_of(promoted(shuffled)) == identity_of(promoted(files))
    assert promoted(shuffled) == promoted(files) == promoted([*files, *files])
    for number, (name, digest) in enumerate(files):
        other = "b" * 64 if digest == "a" * 64 else "a" * 64
        changed = [*files[:number], (name, other), *files[number + 1 :]]
        fewer = [*files[:number], *files[number + 1 :]]
        same = {identity_of(promoted(one)) for one in (files, changed, fewer)}
        assert len(same) == 3
