"""The page as HTML, as text and as JSON: whatever names and messages hold."""

import base64
import hashlib
import re
from collections import Counter
from dataclasses import asdict, replace
from html.parser import HTMLParser

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ci.report import text
from ci.report.facts import GroupFacts, RunFacts
from ci.report.html import make_matrix, render
from ci.report.model import ReportedProblem, RunPage
from ci.report.names import cell_text, natural_key
from ci.report.page import make_page
from ci.tables import spelt
from tests.kit import page_runs

VOID_TAGS = {"meta", "input", "line", "rect", "polygon", "br"}

PYTHON = "cp312"


class Document(HTMLParser):
    """A document taken apart, in which every element that opens also ends."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.tags: Counter[str] = Counter()
        self.attributes: list[tuple[str, str]] = []
        self.texts: list[str] = []
        self.open_tags: list[str] = []
        self.feed(html)
        self.close()
        assert self.open_tags == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """Note an element and its attributes."""
        self.tags[tag] += 1
        self.attributes += [(name, value or "") for name, value in attrs]
        if tag not in VOID_TAGS:
            self.open_tags.append(tag)

    def handle_endtag(self, tag: str) -> None:
        """Hold the end of an element against its start."""
        assert tag in VOID_TAGS or self.open_tags.pop() == tag

    def handle_data(self, data: str) -> None:
        """Note what is shown."""
        if not self.open_tags or self.open_tags[-1] not in {"script", "style"}:
            self.texts.append(data)

    def values_of(self, *names: str) -> list[str]:
        """Return the values of attributes."""
        return [value for name, value in self.attributes if name in names]


def page_with_words(
    *,
    group: str = "g",
    ref: str = "nightly",
    name: str = "torch",
    error: str = "No.",
) -> RunPage:
    """Return the page of a run of one cell, with these words wherever others may write some."""
    cell = (group, ref, PYTHON)

    build = page_runs.build_record("torch", *cell)
    wheel = build.files[0].model_copy(update={"name": name, "distribution": name, "version": name})
    details = {
        "source": {"origin": error, "commit": error},
        "contents": {name: {error: [1, 2, 3]}},
        "reached": {"done": 1, "total": 2, "failed": [error]},
    }
    build = build.model_copy(update={"files": (wheel,), "details": details})
    failure = page_runs.make_record(
        name,
        *cell,
        status="failed",
        exit_code=8,
        started=name,
        error=error,
    )

    results = page_runs.group_of_tests(*cell)
    values = {"test": name, "line": error, "text": error, "command": error}
    case = results.flaky[0].model_copy(update=values)
    results = results.model_copy(update={"flaky": (case,), "failures": (case,), "problems": (error,)})

    facts = GroupFacts(
        name=group,
        records=(build, failure),
        tests=(results,),
        problems=(
            ReportedProblem(
                where=name,
                what=error,
                hint=error,
            ),
        ),
    )
    return make_page(replace(page_runs.make_run([], [], []), groups=(facts,)))


@pytest.fixture(scope="module")
def one_family() -> str:
    """The page of one family: three cells of a ref."""
    return render(make_page(page_runs.make_run(["gfx900"], ["nightly"])))


# --- Names and messages of others ------------------------------------------------------------

HOSTILE_TEXTS = (
    "<script>alert(1)</script>",
    "</style><img src=x onerror=alert(1)>",
    '" onmouseover="alert(1)',
    "' autofocus onfocus='alert(1)",
    "javascript:alert(1)",
    "{{ 7 * 7 }}{% raw %}",
    "\u202egpj.exe",
    "\x1b[31mred\x1b[0m",
    "<!--",
    "]]>",
    "&lt;b&gt;",
    "a/../../b?c#d%2e",
)
texts = st.text(max_size=60) | st.sampled_from(HOSTILE_TEXTS)


@given(
    group=texts,
    ref=texts,
    name=texts,
    error=texts,
)
def test_no_name_becomes_markup_or_a_link(
    group: str,
    ref: str,
    name: str,
    error: str,
) -> None:
    page = page_with_words(
        group=group,
        ref=ref or "r",
        name=name,
        error=error,
    )

    document = Document(render(page))

    assert document.tags["script"] == 1
    assert document.tags["style"] == 1
    assert not {"img", "iframe", "b"} & set(document.tags)
    assert [name for name, _ in document.attributes if name.startswith("on") or name == "style"] == []
    for link in document.values_of("href", "src", "action"):
        assert re.match(r"(#|\.\./python/|https://github\.com/)", link)

    visible_text = "".join(document.texts)
    assert not re.search(r"[\x00-\x08\x1b\u202e]", visible_text)
    # An HTML parser reads a carriage return as a line feed.
    assert spelt(error).strip() in visible_text or "\r" in error


@given(name=texts)
def test_prints_no_character_that_moves_a_terminal(name: str) -> None:
    page = page_with_words(
        name=name,
        error=name,
        group=name,
    )

    for table in text.make_tables(page):
        for row in table.readable_rows:
            assert len(row) == len(table.columns)
            assert not re.search(r"[\x00-\x1f\x7f-\x9f\u202a-\u202e]", "".join(row))


@pytest.mark.parametrize(("tag", "directive"), [("style", "style-src"), ("script", "script-src")])
def test_the_policy_allows_the_pages_own_style_and_script(tag: str, directive: str) -> None:
    html = render(page_with_words())

    policy = re.search(r'Content-Security-Policy" content="([^"]+)"', html)
    content = re.search(rf"<{tag}>(.*?)</{tag}>", html, re.DOTALL)

    assert policy is not None
    assert content is not None
    sha256 = hashlib.sha256(content[1].encode())
    digest = base64.b64encode(sha256.digest()).decode()
    assert f"{directive} 'sha256-{digest}'" in policy[1]
    assert policy[1].startswith("default-src 'none';")


def test_loads_nothing_from_elsewhere() -> None:
    html = render(page_with_words())

    assert not re.search(r'(src|href)="https?://(?!github\.com)', html)


# --- The same facts in every form ------------------------------------------------------------


@pytest.fixture(scope="module")
def compared_page() -> RunPage:
    """The page of four cells, held against an earlier run of two of them."""
    families = ["gfx900", "gfx1100"]
    earlier = page_runs.make_run(families, ["nightly"], [PYTHON], run_id="122", seed="x")
    return make_page(page_runs.make_run(families, ["nightly", "release/2.10"], [PYTHON]), earlier)


@pytest.fixture(scope="module")
def printed(compared_page: RunPage) -> str:
    """What a terminal shows of that page."""
    rows = [row for table in text.make_tables(compared_page) for row in table.rows]
    return "\n".join("  ".join(row) for row in rows)


def test_text_html_and_json_have_the_same_wheels(compared_page: RunPage, printed: str) -> None:
    html = render(compared_page)

    for wheel in compared_page.wheels:
        for fact in (wheel.name, wheel.sha256[:12], wheel.commit[:12]):
            assert fact in html
            assert fact in printed
    first_wheel = asdict(compared_page)["wheels"][0]
    assert first_wheel["sha256"] == compared_page.wheels[0].sha256


def test_text_and_html_have_the_same_cells(compared_page: RunPage, printed: str) -> None:
    html = render(compared_page)

    for cell in compared_page.cells:
        name = re.escape(cell_text(cell.name))
        assert re.search(rf"{name} +{cell.state}", printed)
        assert f'data-text="{cell_text(cell.name)}"' in html


def test_text_and_html_compare_changed_sources(compared_page: RunPage, printed: str) -> None:
    (comparison,) = {source.compare for source in compared_page.sources if source.compare}

    assert comparison in printed
    assert comparison in render(compared_page)


def test_the_summary_has_the_verdict(compared_page: RunPage) -> None:
    summary = text.make_markdown(compared_page).lower().replace("\\", "")

    assert text.make_verdict(compared_page) in summary


# --- The layout of the page ------------------------------------------------------------------


def test_the_matrix_is_a_grid_in_natural_order() -> None:
    page = make_page(page_runs.make_run(["gfx1100", "gfx942"], ["release/2.10", "release/2.9"], [PYTHON]))

    rows = make_matrix(page.cells)

    assert list(rows) == [("release/2.9", PYTHON), ("release/2.10", PYTHON)]
    for row in rows.values():
        first, second = row
        assert first is not None
        assert first.name.artifact_group == "gfx942"
        assert second is not None
        assert second.name.artifact_group == "gfx1100"
    assert "<option>release/2.9</option><option>release/2.10</option>" in render(page)


def test_the_matrix_of_one_cell_is_that_cell() -> None:
    page = make_page(page_runs.make_run(["gfx942"], ["nightly"], [PYTHON]))

    assert list(make_matrix(page.cells).values()) == [[page.cells[0]]]


def test_a_build_names_its_compiler_cache_and_whether_that_was_lost() -> None:
    html = render(make_page(page_runs.make_run(["gfx94X-dcgpu"], ["nightly"], [PYTHON])))

    assert "s3://runs/compiler-cache/ci/sccache (read-write)" in html
    # Of vision alone.
    assert html.count("it stopped to answer while the build ran") == 1


def test_every_element_has_an_id_of_its_own(one_family: str) -> None:
    ids = Document(one_family).values_of("id")

    assert len(ids) == len(set(ids))


def test_every_link_within_the_page_has_a_target(one_family: str) -> None:
    document = Document(one_family)

    targets = {link[1:] for link in document.values_of("href") if link.startswith("#")}

    assert targets <= set(document.values_of("id"))


def test_every_table_has_a_caption(one_family: str) -> None:
    document = Document(one_family)

    assert document.tags["caption"] >= 5


def test_a_name_is_read_out_only_where_the_element_has_a_role(one_family: str) -> None:
    assert not re.findall(r"<(?:pre|div|span|p)\b(?![^>]*\brole=)[^>]*\baria-label", one_family)


@pytest.mark.parametrize("steps", [(), ("fetch_artifacts", "build_rocm", "test_rocm")])
def test_a_run_without_cells_lists_its_stages_and_has_no_empty_table(steps: tuple[str, ...]) -> None:
    records = tuple(page_runs.make_record(step, "gfx900") for step in steps)
    groups = (GroupFacts(name="gfx900", records=records),) if steps else ()

    html = render(
        make_page(
            RunFacts(
                run_id="1",
                platform="linux",
                groups=groups,
                locks={},
            )
        )
    )

    assert Document(html).tags["li"] == len(steps)
    assert ("No stage has left a record yet." in html) == (not steps)
    assert not re.findall(r"<(?:table|form|nav|dl)\b|\b0 (?:cells|files)|<h2[^>]*>(?!Stages)", html)


def test_lists_each_of_few_cells_once_and_without_a_matrix(one_family: str) -> None:
    assert one_family.count('data-kind="cells"') == 3
    assert not re.findall(r'class="matrix"|<form', one_family)


def test_lists_a_family_only_for_what_no_cell_draws(one_family: str) -> None:
    assert 'data-kind="groups"' not in one_family


def test_a_page_of_many_cells_stays_small() -> None:
    page = make_page(page_runs.make_run(page_runs.FAMILIES[:2]))

    # The 300 cells of a nightly release have less than 6 MB then: the more cells, the more is told once.
    assert len(page.cells) == 30
    assert len(render(page)) < 900_000


# --- Numbers and names for people ------------------------------------------------------------


@pytest.mark.parametrize(("size", "text_of_size"), [(0, "0"), (2048, "+2.0 KiB"), (-12, "-12 B")])
def test_shows_a_difference_with_its_sign(size: int, text_of_size: str) -> None:
    assert text.signed_size(size) == text_of_size


def test_sorts_versions_by_their_numbers() -> None:
    assert sorted(["2.10", "2.9", "nightly", "a"], key=natural_key) == ["2.9", "2.10", "a", "nightly"]


def test_spells_characters_that_steer() -> None:
    assert spelt("a\u202eb\ud800") == "a\\u202eb\\ud800"
