from __future__ import annotations

import pytest
from packageurl import PackageURL

from ci.__main__ import VERBS
from ci.provenance.facts import commit_uri, names, package_url, statement_path
from core.cli.options import ROOT
from docs.command_tables import all_sessions

COMMIT = "1" * 40


def test_every_stage_that_makes_wheels_has_a_build_type_that_the_docs_explain() -> None:
    assert names().build_types.keys() <= {one.name for one in all_sessions()}
    assert any(verb.name == "provenance" for verb in VERBS)
    page = (ROOT / "docs" / "provenance.md").read_text(encoding="utf-8")
    # GitHub's anchors: lower case, no punctuation, hyphens for spaces
    headings = {
        line.lstrip("# ").lower().replace("'", "").replace(" ", "-")
        for line in page.splitlines()
        if line.startswith("#")
    }
    for uri in (*names().build_types.values(), names().builders.local):
        address, _, anchor = uri.partition("#")
        assert address.endswith("/docs/provenance.md")
        assert anchor in headings


def test_a_statement_lies_by_its_files_name() -> None:
    assert statement_path("cpu", "a+b.whl") == "provenance/cpu/a+b.whl.intoto.json"


def test_a_package_url_is_one_that_others_read() -> None:
    written = package_url("rocm-sdk-core", "7.10.0a1+x.1", "rocm_sdk_core-7.10.0a1+x.1-py3-none-any.whl")
    read = PackageURL.from_string(written)
    assert (read.type, read.name, read.version) == ("pypi", "rocm-sdk-core", "7.10.0a1+x.1")
    assert read.qualifiers == {"file_name": "rocm_sdk_core-7.10.0a1+x.1-py3-none-any.whl"}
    assert package_url("torch", "") == "pkg:pypi/torch"


@pytest.mark.parametrize(
    ("origin", "uri"),
    [
        ("https://github.com/pytorch/pytorch", f"git+https://github.com/pytorch/pytorch@{COMMIT}"),
        ("https://me:secret@example.com:8443/a.git", f"git+https://example.com:8443/a.git@{COMMIT}"),
        ("ssh://git@example.com/a", f"git+ssh://example.com/a@{COMMIT}"),
        ("/home/dev/my torch", f"git+file:///home/dev/my%20torch@{COMMIT}"),
        ("sample:torch", f"sample:torch@{COMMIT}"),
    ],
)
def test_a_commit_has_a_uri_without_secrets(origin: str, uri: str) -> None:
    assert commit_uri(origin, COMMIT) == uri
