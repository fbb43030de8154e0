"""The page as HTML, as text and as JSON: whatever names and messages hold."""

import base64
import hashlib
import re
from collections import Counter
from dataclasses import asdict, replace
from html.parser import HTMLParser

from hypothesis import given, settings
from hypothesis import strategies as st

from ci.report import page_of, text
from ci.report.facts import RunFacts
from ci.report.html import area, matrix, render
from ci.report.model import Page, Problem
from tests import page_samples as samples

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

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags[tag] += 1
        self.attributes += [(tag, name, value or "") for name, value in attrs]

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        if not self.open or self.open[-1] not in {"script", "style"}:
            self.text.append(data)


def small(**words: str) -> RunFacts:
    """Make a run of one cell in which one word after another is a hostile one."""
    word = {"group": "g", "ref": "nightly", "python": "cp312", "name": "torch", "error": "No.", **words}
    built = samples.build("torch", word["group"], word["ref"], word["python"])
    one = built.files[0].model_copy(
        update={"name": word["name"], "distribution": word["name"], "version": word["name"]}
    )
    details = {
        "source": {"origin": word["error"], "commit": word["error"]},
        "contents": {one.name: {word["error"]: [1, 2, 3]}},
        "ninja": [
            {
                "folder": word["error"],
                "edges": 1,
                "seconds": 1,
                "busy_seconds": 1,
                "slowest": [[word["error"], 1]],
            }
        ],
    }
    built = built.model_copy(update={"files": (one,), "details": details})
    broke = samples.record(
        word["name"], word["group"], word["ref"], word["python"],
        status="failed", exit_code=8, started=word["name"], error=word["error"],
    )  # fmt: skip
    tested = samples.tested(word["group"], word["ref"], word["python"])
    case = tested.flaky[0].model_copy(
        update={"test": word["name"], "line": word["error"], "text": word["error"], "command": word["error"]}
    )
    run = samples.run([word["group"]], [], [])
    group = replace(
        run.groups[0],
        records=((word["name"], built), (word["error"], broke)),
        tests=(
            tested.model_copy(update={"flaky": (case,), "failures": (case,), "problems": (word["error"],)}),
        ),
        problems=(Problem(where=word["name"], what=word["error"], hint=word["error"]),),
    )
    return replace(run, groups=(group,))


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
    words = {**words, "ref": words["ref"] or "r"}
    read = Reader(render(page_of(small(**words))))
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
    document, said = render(page), asdict(page)
    printed = "\n".join("  ".join(row) for table in text.tables(page) for row in table.rows)
    for wheel in page.wheels:
        for form in (document, printed):
            assert wheel.name in form
            assert wheel.sha256[:12] in form
            assert wheel.commit[:12] in form
    for cell in page.cells:
        assert re.search(rf"{re.escape(str(cell.name))} +{cell.state}", printed)
        assert f'data-text="{cell.name}"' in document
    assert len(said["cells"]) == len(page.cells) == 12
    assert [one["sha256"] for one in said["wheels"]] == [one.sha256 for one in page.wheels]
    changed = next(one for one in page.sources if one.changed and one.compare)
    assert changed.compare in document
    assert changed.compare in printed
    assert text.verdict(page) in text.markdown(page).lower().replace("\\", "")


def test_the_matrix_is_a_grid_in_natural_order() -> None:
    page = page_of(samples.run(["gfx1100", "gfx942"], ["release/2.10", "release/2.9"], ["cp312"]))
    rows = matrix(page.cells)
    assert list(rows) == [("release/2.9", "cp312"), ("release/2.10", "cp312")]
    assert [[cell and cell.name.group for cell in row] for row in rows.values()] == [
        ["gfx942", "gfx1100"]
    ] * 2
    assert list(matrix(page.cells[:1]).values()) == [[page.cells[0]]]


def test_a_build_says_where_its_compiler_cache_was_and_whether_it_was_lost() -> None:
    shown = render(page_of(samples.run(["gfx94X-dcgpu"], ["nightly"], ["cp312"])))
    assert "entries in s3://runs/compiler-cache/ci/sccache (read-write)." in shown
    assert shown.count("That storage was lost, and a local cache took its place: it stopped to answer") == 1


def test_every_element_has_one_id_and_every_link_a_target() -> None:
    read = Reader(render(page_of(samples.run(["gfx900"], ["nightly"]))))
    assert len(read.ids) == len(set(read.ids))
    targets = {value[1:] for _, name, value in read.attributes if name == "href" and value.startswith("#")}
    assert targets <= set(read.ids)
    assert read.tags["caption"] >= 5


def test_an_empty_run_is_a_page() -> None:
    document = render(Page(run_id="1", platform="linux"))
    Reader(document)
    assert "No stage of a cell" in document
    assert not re.findall(r"<(?:table|form|nav|dl)\b", document)


def test_three_hundred_cells_are_a_small_page() -> None:
    page = page_of(samples.run())
    assert len(page.cells) == 300
    assert len(render(page).encode()) < 6_000_000


@given(st.lists(st.floats(0, 1e12), max_size=120))
def test_an_area_lies_within_its_box(values: list[float]) -> None:
    points = [tuple(map(float, point.split(","))) for point in area(values).split()]
    assert bool(points) == any(values)
    assert all(0 <= x <= 300.1 and 0 <= y <= 40 for x, y in points)


def test_numbers_for_people() -> None:
    expected = ["0.4 s", "59 s", "1 min 01 s", "2 h 00 min", "1 d 03 h"]
    assert [text.duration(seconds) for seconds in (0.42, 59, 61, 7205, 100_000)] == expected
    assert [text.signed(count) for count in (0, 2048, -12)] == ["0", "+2.0 KiB", "-12 B"]
    assert sorted(["2.10", "2.9", "nightly", "a"], key=text.natural) == ["2.9", "2.10", "a", "nightly"]
    assert text.spelt("a\u202eb\ud800") == "a\\u202eb\\ud800"
