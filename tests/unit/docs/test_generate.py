import re
from pathlib import Path

import pytest

from core.cli.options import ROOT
from core.errors import CheckError, ConflictError, DataError, StoreError
from docs import command_tables, generate, messages


def test_the_committed_pages_are_current() -> None:
    assert [path.name for path in generate.stale()] == []


def test_every_verb_has_a_section_and_every_option_stands_once_in_it() -> None:
    text = command_tables.verb_tables()
    for package in command_tables.PACKAGES:
        for verb in command_tables.verbs(package):
            assert (
                f"`python -m {package} {verb.name}`" in text
                or f"### python -m {package} {verb.name}\n" in text
            )
    build = text.partition("### build_triton, build_torch, ")[2].partition("\n### ")[0]
    assert build.count("`--pytorch-audio-dir DIR`") == 1
    assert "--torch-ref" not in build
    assert "[Where ROCm comes from](#where-rocm-comes-from)" in build
    assert text.count("\n### Where ROCm comes from\n") == 1
    assert "SUPPRESS" not in text
    assert "%(" not in text


def test_flows_keep_the_help_of_their_options() -> None:
    assert re.search(r"^\| `--gpu-family` \| GPU family, ", command_tables.flow_tables(), re.MULTILINE)


def test_every_error_class_has_its_exit_code_in_the_table() -> None:
    rows = [row.strip("| ").split(" | ") for row in generate.exit_codes().splitlines()[2:]]
    codes = [int(code) for code, _ in rows]
    assert codes == sorted(set(codes))
    assert {0, 1, 2, 9, StoreError.exit_code, ConflictError.exit_code, 130} <= set(codes)
    assert [str(CheckError.exit_code), "Checks or tests that ran and found errors."] in rows


def test_a_part_is_put_between_its_marks_and_replaced_the_next_time() -> None:
    page = "before\n<!-- generated: one -->\nold\n<!-- end of one -->\nafter\n"
    once = generate.filled(page, {"one": lambda: "new\n"}, where="page")
    assert once == "before\n<!-- generated: one -->\n\nnew\n\n<!-- end of one -->\nafter\n"
    assert generate.filled(once, {"one": lambda: "new"}, where="page") == once


@pytest.mark.parametrize(
    ("page", "message"),
    [
        ("<!-- generated: two -->\n<!-- end of two -->", "no part is called 'two'"),
        ("<!-- generated: one -->\n", "does not end"),
        ("<!-- generated: one -->\n<!-- end of two -->", "does not end"),
    ],
)
def test_wrong_marks_are_refused(page: str, message: str) -> None:
    with pytest.raises(DataError, match=message):
        generate.filled(page, {"one": str}, where="page")


def test_check_fails_on_a_stale_page_and_leaves_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    page = tmp_path / "page.md"
    page.write_text("<!-- generated: one -->\nold\n<!-- end of one -->\n", encoding="utf-8")
    monkeypatch.setattr(generate, "FOLDER", tmp_path)
    monkeypatch.setattr(generate, "RECORD_SCHEMA", tmp_path / "schema.json")
    monkeypatch.setattr(generate, "PARTS", {"one": lambda: "new"})
    assert generate.main(["--check"]) == CheckError.exit_code
    assert "Not current: page.md, schema.json." in capsys.readouterr().err
    assert "old" in page.read_text(encoding="utf-8")
    assert generate.main([]) == 0
    assert "new" in page.read_text(encoding="utf-8")
    assert generate.main(["--check"]) == 0


def test_a_part_that_stands_nowhere_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(generate, "FOLDER", tmp_path)
    with pytest.raises(DataError, match="No page has the generated parts"):
        generate.pages()


def test_unknown_words_are_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert generate.main(["--chekc"]) == 2
    assert "--check" in capsys.readouterr().err


@pytest.mark.parametrize("page", ["docs/architecture.md", "CONTRIBUTING.md", "README.md"])
def test_the_files_that_a_page_names_exist(page: str) -> None:
    text = (ROOT / page).read_text(encoding="utf-8")
    named = set(
        re.findall(r"`((?:core|ci|docs|pytorch_build|requirements|rocm_packaging|tests)/[\w./-]*)`", text)
    )
    assert named or page == "README.md"
    assert [one for one in sorted(named) if not (ROOT / one).exists()] == []


def test_messages_stand_with_what_to_do_under_their_exit_code() -> None:
    text = messages.message_tables()
    usage = text.partition("### Exit code 2\n")[2].partition("\n### ")[0]
    assert "| Family cpu has no ROCm to package. | Choose a GPU family with --gpu-family. |" in usage
    assert text.count("\n| ") > 300
    assert "| … | … |" not in text
