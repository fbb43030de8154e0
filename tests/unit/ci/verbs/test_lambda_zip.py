from __future__ import annotations

import zipfile
from collections.abc import Callable, Mapping
from pathlib import Path

import pytest

from ci.verbs import lambda_zip
from core.cli.options import ROOT
from core.errors import BuildError
from tests.kit.front_doors import run_ci


@pytest.fixture(name="written")
def written_fixture(tmp_path: Path) -> Path:
    output = tmp_path / "pages.zip"
    assert run_ci("lambda-zip", "--output", output) == 0
    return output


def test_the_same_sources_give_the_same_bytes(written: Path, tmp_path: Path) -> None:
    again = tmp_path / "again.zip"
    assert run_ci("lambda-zip", "--output", again) == 0
    assert again.read_bytes() == written.read_bytes()


def test_it_holds_what_the_handler_needs_and_no_more(written: Path) -> None:
    with zipfile.ZipFile(written) as archive:
        assert archive.testzip() is None
        names = archive.namelist()
        assert archive.read("ci/publish/index/pages.py") == (ROOT / "ci/publish/index/pages.py").read_bytes()
    assert names == sorted(names)
    assert {
        "ci/publish/server/__init__.py",
        "ci/publish/index/__init__.py",
        "core/stores/s3.py",
        "packaging/version.py",
    } <= set(names)
    assert [name for name in names if name.endswith("licenses/LICENSE")]
    tops = {name.partition("/")[0].partition("-")[0] for name in names}
    assert tops == {"ci", "core", "packaging"}
    for other in (
        "ci/verbs/retention.py",
        "ci/publish/buckets.py",
        "ci/verbs/lambda_zip.py",
        "core/run/records.py",
    ):
        assert other not in names
    others = [name for name in names if not name.endswith(".py") and "licenses" not in name]
    assert others == ["ci/publish/index/page.html", "core/stores/s3_refusals.toml"]


def test_a_dry_run_lists_files_and_writes_none(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    output = tmp_path / "pages.zip"
    assert run_ci("lambda-zip", "--dry-run", "--output", output) == 0
    assert "ci/publish/server/__init__.py" in capsys.readouterr().err
    assert not output.exists()


def test_the_template_takes_the_zip_from_where_it_is_written() -> None:
    from ci.verbs.lambda_zip import OUTPUT

    text = (ROOT / "ci" / "publish" / "server" / "template.yaml").read_text(encoding="utf-8")
    assert f"CodeUri: ../../{OUTPUT.as_posix()}\n" in text
    assert f"Handler: {lambda_zip.HANDLER}.handler\n" in text


@pytest.fixture(name="tree")
def tree_fixture(
    tmp_path: Path, write_files: Callable[[Path, Mapping[str, str]], None]
) -> Callable[[Mapping[str, str]], Mapping[str, Path]]:
    def make(texts: Mapping[str, str]) -> Mapping[str, Path]:
        write_files(tmp_path / "tree", {"ci/__init__.py": "", **texts})
        return lambda_zip.bundle(tmp_path / "tree", "ci.start")

    return make


def test_imports_count_if_they_run_at_start(tree: Callable[[Mapping[str, str]], Mapping[str, Path]]) -> None:
    start = """
from __future__ import annotations
import json, boto3.session
from packaging.version import Version
from ci import a
from ci.b import name
if TYPE_CHECKING:
    from ci import types_only
else:
    import ci.really
try:
    import ci.tried
except ImportError:
    import ci.instead
class One:
    import ci.within
def later():
    import filelock
    from ci import lazy
"""
    modules = ("a", "b", "types_only", "really", "tried", "instead", "within", "lazy", "c.d")
    texts = {f"ci/{one.replace('.', '/')}.py": "" for one in modules} | {
        "ci/c/__init__.py": "",
        "ci/start.py": start,
    }
    texts["ci/a.py"] = "from ci.c import d\nfrom ci import b\n"
    needed = ("a", "b", "c", "c.d", "instead", "really", "start", "tried", "within")
    found = [
        one.removesuffix(".py").removesuffix("/__init__") for one in tree(texts) if one.startswith("ci/")
    ]
    assert found == ["ci", *(f"ci/{one.replace('.', '/')}" for one in needed)]


@pytest.mark.parametrize(
    ("start", "says"), [("import pydantic\n", "imports pydantic"), ("import core.gone\n", "which is not in")]
)
def test_what_the_runtime_lacks_is_refused(
    tree: Callable[[Mapping[str, str]], Mapping[str, Path]], start: str, says: str
) -> None:
    with pytest.raises(BuildError, match=says):
        tree({"ci/start.py": start})
