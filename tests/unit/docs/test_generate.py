import re
from functools import cache
from pathlib import Path

import pytest

from core.cli.options import ROOT
from core.errors import CheckError, ConflictError, DataError, StoreError
from docs import command_tables, generate

USAGE_ERROR = 2


# The committed pages. Tests read the parts as they are committed, so that each is generated once.


@cache
def read_part(name: str) -> str:
    """Return the text of a generated part, as it is committed."""
    pattern = re.compile(rf"<!-- generated: {name} -->\n(.*?)<!-- end of {name} -->", re.DOTALL)
    for page in sorted(generate.FOLDER.glob("*.md")):
        if match := pattern.search(page.read_text(encoding="utf-8")):
            return match[1]
    pytest.fail(f"No page has the part {name}.")


def test_the_committed_pages_are_current(monkeypatch: pytest.MonkeyPatch) -> None:
    # Messages are gathered from all modules, which takes seconds: `nox -s docs -- --check` compares them.
    parts = {**generate.PARTS, "messages": lambda: read_part("messages")}
    monkeypatch.setattr(generate, "PARTS", parts)

    assert generate.outdated_pages() == {}


def read_section(part: str, heading: str) -> str:
    """Return the text below a heading of a part."""
    _, heading_mark, text = read_part(part).partition(f"### {heading}")
    assert heading_mark, f"{part} has no section {heading}"
    section, _, _ = text.partition("\n### ")
    return section


@pytest.mark.parametrize("package", command_tables.PACKAGES)
def test_every_verb_has_a_section(package: str) -> None:
    text = read_part("verbs")

    for verb in command_tables.verbs(package):
        call = f"python -m {package} {verb.name}"
        assert f"`{call}`" in text or f"### {call}\n" in text


def test_verbs_of_one_kind_share_a_section_with_their_options() -> None:
    section = read_section("verbs", "build_triton, build_torch, ")

    assert section.count("`--pytorch-audio-dir DIR`") == 1
    assert "torch ref, such as" not in section, "the meaning of a common option stands elsewhere"
    assert section.count("`--torch-ref`") == 1


def test_options_of_many_verbs_stand_in_one_section() -> None:
    section = read_section("verbs", "build_triton, ")

    assert "[Where ROCm comes from](#where-rocm-comes-from)" in section
    assert read_part("verbs").count("\n### Where ROCm comes from\n") == 1


@pytest.mark.parametrize("text", ["SUPPRESS", "%("])
def test_tables_of_options_have_nothing_of_their_parser(text: str) -> None:
    assert text not in read_part("verbs")


def test_flows_keep_the_help_of_their_options() -> None:
    assert re.search(r"^\| `--gpu-family` \| GPU family, ", read_part("flows"), re.MULTILINE)


def exit_code_rows() -> dict[int, str]:
    """Return the table of exit codes: code to meaning."""
    _, _, *rows = read_part("exit-codes").strip().splitlines()
    meanings: dict[int, str] = {}
    for row in rows:
        code, meaning = row.strip("| ").split(" | ")
        meanings[int(code)] = meaning
    assert len(meanings) == len(rows), "each code stands once"
    return meanings


def test_every_error_class_has_its_exit_code_in_the_table() -> None:
    meanings = exit_code_rows()

    assert list(meanings) == sorted(meanings)
    codes = {0, 1, 2, 9, StoreError.exit_code, ConflictError.exit_code, 130}
    assert codes <= meanings.keys()
    assert meanings[CheckError.exit_code] == "Checks or tests that ran and found errors."


def test_messages_stand_with_their_hint_under_their_exit_code() -> None:
    usage = read_section("messages", "Exit code 2\n")

    assert "| Family cpu has no ROCm to package. | Choose a GPU family with --gpu-family. |" in usage


def test_the_tables_of_messages_have_all_of_them_and_no_empty_one() -> None:
    text = read_part("messages")

    assert text.count("\n| ") > 300
    assert "| … | … |" not in text


@pytest.mark.parametrize("page", ["docs/architecture.md", "CONTRIBUTING.md", "README.md"])
def test_the_files_that_a_page_names_exist(page: str) -> None:
    text = (ROOT / page).read_text(encoding="utf-8")
    folders = "core|ci|docs|pytorch_build|requirements|rocm_packaging|tests"

    names = re.findall(rf"`((?:{folders})/[\w./-]*)`", text)

    assert names or page == "README.md"
    for name in names:
        assert (ROOT / name).exists(), name


# Parts of a page

PAGE = "before\n<!-- generated: one -->\nold\n<!-- end of one -->\nafter\n"


def test_puts_a_part_between_its_marks() -> None:
    page = generate.fill_page(PAGE, {"one": lambda: "new\n"}, page_name="page")

    assert page == "before\n<!-- generated: one -->\n\nnew\n\n<!-- end of one -->\nafter\n"


def test_replaces_a_part_by_itself() -> None:
    page = generate.fill_page(PAGE, {"one": lambda: "new\n"}, page_name="page")

    assert generate.fill_page(page, {"one": lambda: "new"}, page_name="page") == page


@pytest.mark.parametrize(
    ("page", "mentioned"),
    [
        ("<!-- generated: two -->\n<!-- end of two -->", "'two'"),
        ("<!-- generated: one -->\n", "does not end"),
        ("<!-- generated: one -->\n<!-- end of two -->", "does not end"),
    ],
    ids=["unknown part", "no end", "other end"],
)
def test_rejects_wrong_marks(page: str, mentioned: str) -> None:
    with pytest.raises(DataError, match=mentioned) as raised:
        generate.fill_page(page, {"one": str}, page_name="page.md")

    assert raised.value.message.startswith("page.md")


# The command


@pytest.fixture
def page(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return the only page, whose part is stale."""
    page = tmp_path / "page.md"
    page.write_text(PAGE, encoding="utf-8")
    monkeypatch.setattr(generate, "FOLDER", tmp_path)
    monkeypatch.setattr(generate, "RECORD_SCHEMA", tmp_path / "schema.json")
    monkeypatch.setattr(generate, "PARTS", {"one": lambda: "new"})
    return page


def test_a_check_names_stale_pages_and_leaves_them(page: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert generate.main(["--check"]) == CheckError.exit_code

    assert f"{page.name}, schema.json" in capsys.readouterr().err
    assert page.read_text(encoding="utf-8") == PAGE


def test_writes_stale_pages(page: Path) -> None:
    assert generate.main([]) == 0

    assert "new" in page.read_text(encoding="utf-8")
    assert generate.main(["--check"]) == 0


def test_rejects_a_part_that_stands_on_no_page(page: Path) -> None:
    page.write_text("nothing is generated here", encoding="utf-8")

    with pytest.raises(DataError, match="one"):
        generate.write_pages()


def test_rejects_unknown_words(capsys: pytest.CaptureFixture[str]) -> None:
    assert generate.main(["--chekc"]) == USAGE_ERROR

    assert "--check" in capsys.readouterr().err
