"""What pip and uv make of pages: the flat one, and simple/ as HTML and as JSON; and what they ask for."""

from __future__ import annotations

from contextlib import contextmanager
from functools import partial
from http.server import BaseHTTPRequestHandler
from typing import TYPE_CHECKING, BinaryIO, ClassVar
from urllib.parse import unquote

import boto3
import pytest
from moto import mock_aws

from ci.publish.index import Files, write_index
from ci.verbs import index
from core import files, process
from core.cli import Verb, main
from core.cli.options import Common
from core.env import Interpreter, installer, interpreter
from core.http import answering
from core.stores.location import open_store
from tests.folders import Folder, Quiet

if TYPE_CHECKING:
    import io
    from collections.abc import Callable, Iterator
    from pathlib import Path

TORCH, OLDER = "2.10.0+rocm7.1", "2.9.0+rocm7.1"
FORMS = {"html": "text/html", "json": "application/vnd.pypi.simple.v1+json"}
VERBS = (Verb("index", "ci.verbs.index", "write pages"),)


class Asked(Folder):
    """Serves a folder, folders by the page of one form, and notes what it is asked for."""

    paths: list[str]
    form: str

    def send_head(self) -> io.BytesIO | BinaryIO | None:
        self.paths.append(self.path)
        if self.path.endswith("/"):
            self.path += f"index.{self.form}"
        return super().send_head()

    def guess_type(self, path: object) -> str:
        simple = "/simple/" in str(path) and str(path).endswith(f"/index.{self.form}")
        return FORMS[self.form] if simple else super().guess_type(str(path))


@contextmanager
def served(folder: Path, form: str) -> Iterator[tuple[str, list[str]]]:
    """Serve a folder; give its address, and the paths asked for so far."""
    handler = type("Handler", (Asked,), {"paths": [], "form": form})
    with answering(partial(handler, directory=str(folder))) as address:
        yield address, handler.paths  # type: ignore[attr-defined]


@pytest.fixture(name="wheels")
def wheels_fixture(tmp_path: Path, make_wheel: Callable[..., Path]) -> Path:
    """Return a directory of wheels: two of torch, what they require, what they do not, one for no Python."""
    folder = tmp_path / "wheels"
    for version in (TORCH, OLDER):
        rocm = version.partition("+rocm")[2]
        fields = [("Requires-Dist", f"rocm=={rocm}"), ("Provides-Extra", "more"),
                  ("Requires-Dist", 'apex; extra == "more"')]  # fmt: skip
        make_wheel(folder, "torch", version, fields=fields)
    make_wheel(folder, "torch", "3.0", fields=[("Requires-Python", ">=4")])
    make_wheel(folder, "rocm", "7.1")
    make_wheel(folder, "apex", "1.0")
    index.write_directory(Common(root=tmp_path), folder)
    return folder


@pytest.fixture(name="target")
def target_fixture(tmp_path: Path) -> Interpreter:
    process.run([installer.uv_program(), "venv", "--no-config", "--seed", "--quiet", tmp_path / "venv"])
    return interpreter(tmp_path / "venv" / "bin" / "python")


def sources(url: str, page: str) -> list[str]:
    if page == "flat":
        return ["--no-index", "--find-links", f"{url}/index.html"]
    return ["--index-url", f"{url}/simple/"]


def install(target: Interpreter, tool: str, cache: Path, *words: str) -> process.Completed:
    python = str(target.executable)
    if tool == "pip":
        argv = [python, "-m", "pip", "install", "--isolated", "--no-cache-dir", "--disable-pip-version-check"]
    else:
        argv = [str(installer.uv_program()), "pip", "install", "--no-config", "--python", python]
        argv += ["--cache-dir", str(cache)]
    return process.capture([*argv, *words], check=False)


TOOLS = pytest.mark.parametrize("tool", ["pip", "uv"])
PAGES = pytest.mark.parametrize(("page", "form"), [("flat", "html"), ("simple", "html"), ("simple", "json")])


@TOOLS
@PAGES
def test_resolution_asks_for_metadata_and_installation_for_what_is_installed(
    tmp_path: Path, target: Interpreter, wheels: Path, tool: str, page: str, form: str
) -> None:
    with served(wheels, form) as (url, asked):
        where = sources(url, page)
        done = install(target, tool, tmp_path / "cache", "--dry-run", "torch", *where)
        assert done.returncode == 0, done.stderr
        assert "rocm" in done.stdout + done.stderr
        assert [path for path in asked if path.endswith(".whl")] == []
        assert any(path.endswith(".whl.metadata") for path in asked)
        if page == "simple":
            assert "/simple/torch/" in asked
        asked.clear()
        done = install(target, tool, tmp_path / "cache", f"torch=={OLDER}", *where)
        assert done.returncode == 0, done.stderr
        files = {path.rpartition("/")[2].replace("%2B", "+") for path in asked if path.endswith(".whl")}
        assert files == {f"torch-{OLDER}-py3-none-any.whl", "rocm-7.1-py3-none-any.whl"}
    said = process.capture([target.executable, "-c", "import torch; print(torch.VERSION)"]).stdout
    assert said.strip() == OLDER


class Bare(Quiet, BaseHTTPRequestHandler):
    """Answers as a bucket does: with the object of exactly that key, or not at all."""

    objects: ClassVar[dict[str, tuple[bytes, str]]]

    def do_HEAD(self) -> None:
        self.do_GET(body=False)

    def do_GET(self, *, body: bool = True) -> None:
        data, kind = self.objects.get(unquote(self.path.lstrip("/")), (None, ""))
        self.send_response(404 if data is None else 200)
        self.send_header("Content-Length", str(len(data or b"")))
        self.send_header("Content-Type", kind)
        self.end_headers()
        if data and body:
            self.wfile.write(data)


@pytest.fixture(name="bucket")
def bucket_fixture(tmp_path: Path, wheels: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """Index the wheels in a bucket, and give the address of that bucket without anything before it."""
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.setenv(name, "testing")
    with mock_aws():
        client = boto3.client("s3", region_name="us-east-1")
        client.create_bucket(Bucket="bucket")
        store = open_store("s3://bucket", root=tmp_path)
        for path in wheels.glob("*.whl"):
            store.put_file(f"run/{path.name}", path, sha256=files.sha256(path), replace=False)
        write_index(store, "run", Files(store=store, folder=tmp_path / "read"), title="run")
        keys = [one["Key"] for one in client.list_objects_v2(Bucket="bucket")["Contents"]]
        objects = {key: client.get_object(Bucket="bucket", Key=key) for key in keys}
        held = {key: (one["Body"].read(), one["ContentType"]) for key, one in objects.items()}
    with answering(type("Handler", (Bare,), {"objects": held})) as address:
        yield f"{address}/run"


@TOOLS
@pytest.mark.parametrize("page", ["flat", "simple"])
def test_a_bare_bucket_is_an_index(
    tmp_path: Path, target: Interpreter, bucket: str, tool: str, page: str
) -> None:
    done = install(target, tool, tmp_path / "cache", f"torch=={OLDER}", *sources(bucket, page))
    assert done.returncode == 0, done.stderr
    said = process.capture([target.executable, "-c", "import torch; print(torch.VERSION)"]).stdout
    assert said.strip() == OLDER


@PAGES
def test_a_wheel_other_than_the_page_says_is_not_installed(
    tmp_path: Path, target: Interpreter, wheels: Path, page: str, form: str
) -> None:
    """By pip, that is: uv holds files against the hashes of a lock, and not against those of an index."""
    with (wheels / "rocm-7.1-py3-none-any.whl").open("ab") as stream:
        stream.write(b"one byte more")
    with served(wheels, form) as (url, _asked):
        done = install(target, "pip", tmp_path / "cache", "rocm", *sources(url, page))
    assert done.returncode != 0
    assert "hash" in (done.stdout + done.stderr).lower()


@TOOLS
@PAGES
def test_a_yanked_version_is_installed_only_where_it_is_pinned(
    tmp_path: Path, target: Interpreter, wheels: Path, tool: str, page: str, form: str
) -> None:
    (wheels / "yanked.json").write_text(f'{{"torch=={TORCH}": "breaks on <gfx90a>"}}')
    assert main("ci", "", VERBS, ["index", "--directory", str(wheels)]) == 0
    with served(wheels, form) as (url, _asked):
        where = sources(url, page)
        free = install(target, tool, tmp_path / "cache", "--dry-run", "torch", *where)
        pinned = install(target, tool, tmp_path / "cache", "--dry-run", f"torch=={TORCH}", *where)
    # from a flat page uv takes a yanked file, too, and only warns
    assert (TORCH if (tool, page) == ("uv", "flat") else OLDER) in free.stdout + free.stderr
    assert pinned.returncode == 0, pinned.stderr
    assert TORCH in pinned.stdout + pinned.stderr
    assert "breaks on <gfx90a>" in pinned.stdout + pinned.stderr
