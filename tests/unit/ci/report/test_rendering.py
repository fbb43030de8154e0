"""The page as HTML, as text and as JSON: whatever names and messages hold."""

import base64
import hashlib
import re
from collections import Counter
from dataclasses import asdict, replace
from html.parser import HTMLParser

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ci.report import page_of, text
from ci.report.facts import GroupFacts, RunFacts
from ci.report.html import matrix, render
from ci.report.model import Problem
from tests.kit import page_runs as samples

VOID = {"meta", "input", "line", "rect", "polygon", "br"}


class Reader(HTMLParser):
    """Take a document apart, and hold every element to its end."""

    def __init__(self, document: str) -> None:
        super().__init__()
        self.tags: Counter[str] = Counter()
        self.attributes: list[tuple[str, str, str]] = []
        self.open: list[str] = []
        self.text: list[str] = []
        self.ids: list[str] = []
        self.feed(document)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags[tag] += 1
        self.attributes += [(tag, name, value or "") for name, value in attrs]
        self.ids += [value or "" for name, value in attrs if name == "id"]
        if tag not in VOID:
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert tag in VOID or self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        if not self.open or self.open[-1] not in {"script", "style"}:
            self.text.append(data)


def small(*, group: str = "g", ref: str = "nightly", name: str = "torch", error: str = "No.") -> RunFacts:
    """Make a run of one cell in which one word after another is a hostile one."""
    cell = (group, ref, "cp312")
    built = samples.build("torch", *cell)
    named = {"name": name, "distribution": name, "version": name}
    graph = {"folder": error, "edges": 1, "seconds": 1, "busy_seconds": 1, "slowest": [[error, 1]]}
    details = {"source": {"origin": error, "commit": error}, "contents": {name: {error: [1, 2, 3]}}}
    files = (built.files[0].model_copy(update=named),)
    built = built.model_copy(update={"files": files, "details": {**details, "ninja": [graph]}})
    broke = samples.record(name, *cell, status="failed", exit_code=8, started=name, error=error)
    tested = samples.tested(*cell)
    case = tested.flaky[0].model_copy(update={"test": name, "line": error, "text": error, "command": error})
    found = tested.model_copy(update={"flaky": (case,), "failures": (case,), "problems": (error,)})
    run = samples.run([group], [], [])
    problems = (Problem(where=name, what=error, hint=error),)
    records = ((name, built), (error, broke))
    one = replace(run.groups[0], records=records, tests=(found,), problems=problems)
    return replace(run, groups=(one,))


hostile = st.one_of(
    st.text(max_size=60),
    st.sampled_from(
        [
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
        ]
    ),
)


@settings(max_examples=60)
@given(st.fixed_dictionaries(dict.fromkeys(("group", "ref", "name", "error"), hostile)))
def test_no_name_becomes_markup(words: dict[str, str]) -> None:
    read = Reader(render(page_of(small(**{**words, "ref": words["ref"] or "r"}))))
    assert read.tags["script"] == read.tags["style"] == 1
    assert read.tags["img"] == read.tags["iframe"] == read.tags["b"] == 0
    assert not [name for _, name, _ in read.attributes if name.startswith("on") or name == "style"]
    links = [value for _, name, value in read.attributes if name in {"href", "src", "action"}]
    assert all(re.match(r"(#|\.\./python/|https://github\.com/)", link) for link in links)
    assert not any(re.search(r"[\x00-\x08\x1b\u202e]", part) for part in read.text)
    shown = "".join(read.text)
    assert text.spelt(words["error"]).strip() in shown or "\r" in words["error"]


@given(hostile)
def test_a_terminal_is_told_nothing_that_moves_it(word: str) -> None:
    for table in text.tables(page_of(small(name=word, error=word, group=word))):
        assert all(len(row) == len(table.columns) for row in table.rows)
        assert not any(
            re.search(r"[\x00-\x1f\x7f-\x9f\u202a-\u202e]", cell) for row in table.rows for cell in row
        )


def test_the_policy_allows_this_files_own_style_and_script_and_nothing_else() -> None:
    document = render(page_of(small()))
    policy = re.search(r'Content-Security-Policy" content="([^"]+)"', document)
    assert policy is not None
    for tag, directive in (("style", "style-src"), ("script", "script-src")):
        content = re.search(rf"<{tag}>(.*?)</{tag}>", document, re.DOTALL)
        assert content is not None
        digest = base64.b64encode(hashlib.sha256(content[1].encode()).digest()).decode()
        assert f"{directive} 'sha256-{digest}'" in policy[1]
    assert policy[1].startswith("default-src 'none';")
    assert not re.search(r'(src|href)="https?://(?!github\.com)', document)


def test_text_html_and_json_say_the_same() -> None:
    now = samples.run(["gfx900", "gfx1100"], ["nightly", "release/2.10"])
    page = page_of(now, samples.run(["gfx900", "gfx1100"], ["nightly"], run_id="122", seed="x"))
    document = render(page)
    printed = "\n".join("  ".join(row) for table in text.tables(page) for row in table.rows)
    changed = next(one for one in page.sources if one.changed and one.compare)
    for form in (document, printed):
        for one in page.wheels:
            assert all(part in form for part in (one.name, one.sha256[:12], one.commit[:12]))
        assert changed.compare in form
    for cell in page.cells:
        assert re.search(rf"{re.escape(str(cell.name))} +{cell.state}", printed)
        assert f'data-text="{cell.name}"' in document
    assert [one["sha256"] for one in asdict(page)["wheels"]] == [one.sha256 for one in page.wheels]
    assert text.verdict(page) in text.markdown(page).lower().replace("\\", "")


def test_the_matrix_is_a_grid_in_natural_order() -> None:
    page = page_of(samples.run(["gfx1100", "gfx942"], ["release/2.10", "release/2.9"], ["cp312"]))
    rows = matrix(page.cells)
    assert list(rows) == [("release/2.9", "cp312"), ("release/2.10", "cp312")]
    assert [[cell and cell.name.group for cell in row] for row in rows.values()] == [
        ["gfx942", "gfx1100"]
    ] * 2
    assert list(matrix(page.cells[:1]).values()) == [[page.cells[0]]]
    assert "<option>release/2.9</option><option>release/2.10</option>" in render(page)


def test_a_build_says_where_its_compiler_cache_was_and_whether_it_was_lost() -> None:
    shown = render(page_of(samples.run(["gfx94X-dcgpu"], ["nightly"], ["cp312"])))
    assert "entries in s3://runs/compiler-cache/ci/sccache (read-write)." in shown
    assert shown.count("That storage was lost, and a local cache took its place: it stopped to answer") == 1


def test_every_element_has_one_id_and_every_link_a_target() -> None:
    document = render(page_of(samples.run(["gfx900"], ["nightly"])))
    read = Reader(document)
    assert len(read.ids) == len(set(read.ids))
    targets = {value[1:] for _, name, value in read.attributes if name == "href" and value.startswith("#")}
    assert targets <= set(read.ids)
    assert read.tags["caption"] >= 5
    # a name is read out where the element has a role
    assert not re.findall(r"<(?:pre|div|span|p)\b(?![^>]*\brole=)[^>]*\baria-label", document)


@pytest.mark.parametrize("stages", [(), ("fetch_artifacts", "build_rocm", "test_rocm")])
def test_a_run_without_cells_has_its_stages_in_time_and_no_empty_table(stages: tuple[str, ...]) -> None:
    found = tuple((one, samples.record(one, "gfx900")) for one in stages)
    groups = (GroupFacts(name="gfx900", records=found),) if stages else ()
    document = render(page_of(RunFacts(run_id="1", platform="linux", groups=groups, locks={})))
    assert Reader(document).tags["li"] == len(stages)
    assert ("No stage has left a record yet." in document) is not bool(stages)
    assert not re.findall(r"<(?:table|form|nav|dl)\b|\b0 (?:cells|files)|<h2[^>]*>(?!Stages)", document)


def test_few_cells_are_told_once_and_a_family_only_of_what_no_cell_draws() -> None:
    document = render(page_of(samples.run(["gfx900"], ["nightly"])))
    assert document.count('data-kind="cells"') == 3
    assert not re.findall(r'class="matrix"|<form|data-kind="groups"', document)


def test_three_hundred_cells_are_a_small_page() -> None:
    page = page_of(samples.run())
    assert len(page.cells) == 300
    assert len(render(page).encode()) < 6_000_000


def test_numbers_for_people() -> None:
    assert [text.signed(count) for count in (0, 2048, -12)] == ["0", "+2.0 KiB", "-12 B"]
    assert sorted(["2.10", "2.9", "nightly", "a"], key=text.natural) == ["2.9", "2.10", "a", "nightly"]
    assert text.spelt("a\u202eb\ud800") == "a\\u202eb\\ud800"
