"""The zip of the function that writes pages: what its handler imports, and no more."""

import zipfile
from collections.abc import Mapping
from pathlib import Path

import pytest

from ci.verbs import lambda_zip
from core.cli.options import ROOT
from core.errors import BuildError
from tests.kit.front_doors import run_verb
from tests.kit.repos import write_files


@pytest.fixture(scope="module")
def archive(tmp_path_factory: pytest.TempPathFactory) -> Path:
    output = tmp_path_factory.mktemp("lambda") / "pages.zip"
    assert run_verb("ci", "lambda-zip", "--output", output) == 0
    return output


@pytest.fixture(scope="module")
def names(archive: Path) -> list[str]:
    """The members of the zip."""
    with zipfile.ZipFile(archive) as opened:
        assert opened.testzip() is None
        return opened.namelist()


def test_the_same_sources_give_the_same_bytes(archive: Path, tmp_path: Path) -> None:
    second = tmp_path / "second.zip"

    assert run_verb("ci", "lambda-zip", "--output", second) == 0

    assert second.read_bytes() == archive.read_bytes()


def test_members_are_sorted(names: list[str]) -> None:
    assert names == sorted(names)


def test_members_are_the_checkouts_files(archive: Path) -> None:
    path = "ci/publish/index/html_pages.py"

    with zipfile.ZipFile(archive) as opened:
        assert opened.read(path) == (ROOT / path).read_bytes()


@pytest.mark.parametrize(
    "name",
    [
        "ci/publish/server/__init__.py",
        "ci/publish/index/__init__.py",
        "core/stores/s3.py",
        "packaging/version.py",
    ],
)
def test_holds_what_the_handler_imports(names: list[str], name: str) -> None:
    assert name in names


@pytest.mark.parametrize(
    "name",
    [
        "ci/verbs/retention.py",
        "ci/publish/buckets.py",
        "ci/verbs/lambda_zip.py",
        "core/run/records.py",
    ],
)
def test_holds_nothing_that_the_handler_does_not_import(names: list[str], name: str) -> None:
    assert name not in names


def test_holds_only_our_own_code_and_packaging(names: list[str]) -> None:
    packages = {name.partition("/")[0].partition("-")[0] for name in names}

    assert packages == {"ci", "core", "packaging"}


def test_holds_the_licenses_of_others(names: list[str]) -> None:
    assert [name for name in names if name.endswith("licenses/LICENSE")]


def test_holds_the_data_that_the_handler_reads(names: list[str]) -> None:
    data = [name for name in names if not name.endswith(".py") and "licenses" not in name]

    assert data == ["ci/publish/index/page.html"]


def test_a_dry_run_lists_files_and_writes_none(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    output = tmp_path / "pages.zip"

    assert run_verb("ci", "lambda-zip", "--dry-run", "--output", output) == 0

    assert "ci/publish/server/__init__.py" in capsys.readouterr().err
    assert not output.exists()


def test_the_template_takes_the_zip_from_where_it_is_written() -> None:
    template = (ROOT / "ci" / "publish" / "server" / "template.yaml").read_text(encoding="utf-8")

    assert f"CodeUri: ../../{lambda_zip.OUTPUT.as_posix()}\n" in template
    assert f"Handler: {lambda_zip.HANDLER}.handler\n" in template


# --- Which imports count ---------------------------------------------------------------------

START = """
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


def bundle(root: Path, texts: Mapping[str, str]) -> list[str]:
    """Return the modules of `ci` that the module ``ci.start`` of a checkout needs."""
    write_files(root, {"ci/__init__.py": "", **texts})
    paths = [path for path in lambda_zip.collect_files(root, "ci.start") if path.startswith("ci/")]
    return [path.removesuffix(".py").removesuffix("/__init__").removeprefix("ci/") for path in paths]


def test_imports_count_where_they_run_at_the_start(tmp_path: Path) -> None:
    modules = ("b", "types_only", "really", "tried", "instead", "within", "lazy", "c/__init__", "c/d")
    texts = {f"ci/{module}.py": "" for module in modules}
    texts["ci/a.py"] = "from ci.c import d\nfrom ci import b\n"
    texts["ci/start.py"] = START

    needed = bundle(tmp_path, texts)

    assert needed == ["ci", "a", "b", "c", "c/d", "instead", "really", "start", "tried", "within"]


@pytest.mark.parametrize(
    ("start", "module"), [("import pydantic\n", "pydantic"), ("import core.gone\n", "module core")]
)
def test_refuses_to_import_what_the_runtime_lacks(tmp_path: Path, start: str, module: str) -> None:
    with pytest.raises(BuildError, match=module):
        bundle(tmp_path, {"ci/start.py": start})
