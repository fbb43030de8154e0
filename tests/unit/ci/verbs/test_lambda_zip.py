from __future__ import annotations

import json
import sys
import zipfile
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from ci.verbs import lambda_zip
from core import process
from core.cli.frontdoor import Verb, main
from core.cli.options import ROOT
from core.errors import BuildError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

VERBS = (Verb("lambda-zip", "ci.verbs.lambda_zip", "pack"),)
# what runs in the place of Lambda: nothing but the zip and boto3
CALL = """
import json, sys
sys.path[:0] = sys.argv[1:3]
from ci.publish.server import handler
event = json.loads(sys.argv[3])
answer = handler(event, None)
names = ("ci.publish.index.pages", "packaging.version")
places = {name: getattr(sys.modules[name], "__file__", "") for name in names}
print(json.dumps({"answer": answer, "places": places}))
"""


@pytest.fixture(name="written")
def written_fixture(tmp_path: Path) -> Path:
    output = tmp_path / "pages.zip"
    assert main("ci", "", VERBS, ["lambda-zip", "--output", str(output)]) == 0
    return output


@pytest.fixture(name="runtime")
def runtime_fixture(tmp_path: Path) -> Path:
    """Make the folder that the runtime has: boto3 with what it needs, and nothing else of ours."""
    folder = tmp_path / "runtime"
    folder.mkdir()
    for name in ("boto3", "botocore", "s3transfer", "jmespath", "dateutil", "urllib3", "six"):
        spec = find_spec(name)
        assert spec is not None
        place = Path(str(spec.origin))
        place = place.parent if place.name == "__init__.py" else place
        (folder / place.name).symlink_to(place)
    return folder


def test_the_same_sources_give_the_same_bytes(written: Path, tmp_path: Path) -> None:
    again = tmp_path / "again.zip"
    assert main("ci", "", VERBS, ["lambda-zip", "--output", str(again)]) == 0
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
    assert not [name for name in names if not name.endswith(".py") and "licenses" not in name]


def test_a_dry_run_lists_the_files_and_writes_none(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    output = tmp_path / "pages.zip"
    assert main("ci", "", VERBS, ["lambda-zip", "--dry-run", "--output", str(output)]) == 0
    assert "ci/publish/server/__init__.py" in capsys.readouterr().err
    assert not output.exists()


def test_the_template_takes_the_zip_from_where_it_is_written() -> None:
    from ci.verbs.lambda_zip import OUTPUT

    text = (ROOT / "ci" / "publish" / "server" / "template.yaml").read_text(encoding="utf-8")
    assert f"CodeUri: ../../{OUTPUT.as_posix()}\n" in text
    assert f"Handler: {lambda_zip.HANDLER}.handler\n" in text


@pytest.mark.processes
def test_the_handler_runs_from_the_zip_with_boto3_and_the_standard_library_alone(
    written: Path, runtime: Path, tmp_path: Path
) -> None:
    page = {"bucket": {"name": "b"}, "object": {"key": "1-linux/python/g/index.html"}}
    told = {
        "Records": [
            {"eventSource": "aws:sqs", "messageId": "1", "body": json.dumps({"detail": page})},
            {"eventSource": "aws:sqs", "messageId": "2", "body": "{"},
        ]
    }
    command: list[str | Path] = [sys.executable, "-I", "-S", "-c", CALL, written, runtime, json.dumps(told)]
    said = json.loads(process.capture(command, cwd=tmp_path, env={}).stdout)
    assert said["answer"] == {"batchItemFailures": [{"itemIdentifier": "2"}]}
    for place in said["places"].values():
        assert place.startswith(str(written))


@pytest.fixture(name="tree")
def tree_fixture(
    tmp_path: Path, write_files: Callable[[Path, Mapping[str, str]], None]
) -> Callable[[Mapping[str, str]], lambda_zip.Bundle]:
    def make(texts: Mapping[str, str]) -> lambda_zip.Bundle:
        write_files(tmp_path / "tree", {"ci/__init__.py": "", **texts})
        return lambda_zip.bundle(tmp_path / "tree", "ci.start")

    return make


def test_imports_count_where_they_run_at_start(
    tree: Callable[[Mapping[str, str]], lambda_zip.Bundle],
) -> None:
    start = """
from __future__ import annotations
import json, boto3.session
from typing import TYPE_CHECKING
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
    assert tree(texts).modules == ("ci", *(f"ci.{one}" for one in needed))


@pytest.mark.parametrize(
    ("start", "says"), [("import pydantic\n", "imports pydantic"), ("import core.gone\n", "which is not in")]
)
def test_what_the_runtime_lacks_is_refused(
    tree: Callable[[Mapping[str, str]], lambda_zip.Bundle], start: str, says: str
) -> None:
    with pytest.raises(BuildError, match=says):
        tree({"ci/start.py": start})
