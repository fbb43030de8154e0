"""What pip and uv make of pages: the flat one, and simple/ as HTML and as JSON; and what they ask for."""

import hashlib
import io
import json
import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import cache, partial
from http.server import BaseHTTPRequestHandler
from itertools import chain
from pathlib import Path
from typing import BinaryIO, ClassVar
from urllib.parse import unquote

import boto3
import pytest
from moto import mock_aws
from playwright.sync_api import Browser

from ci.install.dependencies import mirror, source_of
from ci.promote import documents
from ci.publish import server
from ci.publish.index import write_index
from ci.verbs import index
from core import files, process
from core.cli.options import Common
from core.env import Interpreter, installer, interpreter
from core.http_server import answering
from core.run import RunOutputs
from core.stores.location import open_store
from core.wheel import read_metadata
from tests.kit.clones import printed_by
from tests.kit.environments import create_environment
from tests.kit.front_doors import run_ci
from tests.kit.servers import Folder, Quiet
from tests.kit.wheels import write_wheel

TORCH_VERSION = "2.10.0+rocm7.1"
OLDER_VERSION = "2.9.0+rocm7.1"
FORMS = {"html": "text/html", "json": "application/vnd.pypi.simple.v1+json"}


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


@pytest.fixture
def wheels(tmp_path: Path) -> Path:
    """Return a directory of wheels: two of torch, what they require, what they do not, one for no Python."""
    folder = tmp_path / "wheels"
    for version in (TORCH_VERSION, OLDER_VERSION):
        rocm_version = version.partition("+rocm")[2]
        write_wheel(
            folder,
            version=version,
            requires=[f"rocm=={rocm_version}", 'apex; extra == "more"'],
            metadata_fields=[("Provides-Extra", "more")],
            files={"torch.py": f"VERSION = {version!r}\n"},
        )
    write_wheel(folder, version="3.0", metadata_fields=[("Requires-Python", ">=4")])
    write_wheel(folder, name="rocm", version="7.1")
    write_wheel(folder, name="apex", version="1.0")
    index.write_directory(Common(root=tmp_path), folder)
    return folder


@pytest.fixture
def target(tmp_path: Path) -> Interpreter:
    """Return the interpreter of an environment with pip alone."""
    return interpreter(create_environment(tmp_path / "venv", "pip").python)


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
    return process.capture([*argv, *words], env=process.inherited(), check=False)


# Each installer with each kind of page, in both forms of one.
TOOLS_AND_PAGES = pytest.mark.parametrize(
    ("tool", "page", "form"),
    [
        ("pip", "simple", "json"),
        ("uv", "simple", "html"),
        pytest.param("pip", "flat", "html", marks=pytest.mark.nightly),
        pytest.param("uv", "flat", "html", marks=pytest.mark.nightly),
        pytest.param("uv", "simple", "json", marks=pytest.mark.nightly),
    ],
)


@TOOLS_AND_PAGES
@pytest.mark.nightly
def test_resolution_asks_for_metadata_alone(
    tmp_path: Path, target: Interpreter, wheels: Path, tool: str, page: str, form: str
) -> None:
    with served(wheels, form) as (url, paths):
        resolved = install(target, tool, tmp_path / "cache", "--dry-run", "torch", *sources(url, page))

    assert resolved.returncode == 0, resolved.stderr
    assert "rocm" in resolved.stdout + resolved.stderr
    assert [path for path in paths if path.endswith(".whl")] == []
    assert [path for path in paths if path.endswith(".whl.metadata")]
    assert ("/simple/torch/" in paths) == (page == "simple")


@TOOLS_AND_PAGES
def test_installation_asks_for_what_is_installed(
    tmp_path: Path, target: Interpreter, wheels: Path, tool: str, page: str, form: str
) -> None:
    requirement = f"torch=={OLDER_VERSION}"

    with served(wheels, form) as (url, paths):
        installed = install(target, tool, tmp_path / "cache", requirement, *sources(url, page))

    assert installed.returncode == 0, installed.stderr
    files = {unquote(path.rpartition("/")[2]) for path in paths if path.endswith(".whl")}
    assert files == {f"torch-{OLDER_VERSION}-py3-none-any.whl", "rocm-7.1-py3-none-any.whl"}
    printed = process.capture([target.executable, "-c", "import torch; print(torch.VERSION)"]).stdout
    assert printed.strip() == OLDER_VERSION


# Folder of a bucket -> the document that names its wheels: of a run, a release, the shared index; then those
# without: of the server behind events, and of `index --directory`
FOLDERS = {
    "5-linux/python/g": "5-linux/manifests/g/of-a-run.json",
    "v2/g": "manifests/v2/g/of-a-release.json",
    "python-deps": "python-deps/manifests/shared.json",
    "6-linux/python/g": "",
    "folder": "",
}
PROJECTS = ["of-a-run", "of-a-release", "shared", "of-the-server", "of-a-folder"]
# 22.3 came with Debian 12; 23.1 is the last one that knows `dist-info-metadata` alone; "pip" is the lock's.


class Bare(Quiet, BaseHTTPRequestHandler):
    """Answers as a bucket does, with the object of exactly that key; or of folders with their JSON."""

    objects: ClassVar[Mapping[str, bytes]]
    form: ClassVar[str]

    def do_HEAD(self) -> None:
        self.do_GET(body=False)

    def do_GET(self, *, body: bool = True) -> None:
        key = unquote(self.path.lstrip("/"))
        page = key.endswith("/")
        data = self.objects.get(f"{key}index.json" if page and self.form == "json" else key)
        self.send_response(404 if data is None else 200)
        self.send_header("Content-Length", str(len(data or b"")))
        kind = "text/html" if key.endswith(".html") else "application/octet-stream"
        self.send_header("Content-Type", FORMS[self.form] if page else kind)
        self.end_headers()
        if data and body:
            self.wfile.write(data)


@pytest.fixture(name="bucket", scope="module")
def bucket_fixture(tmp_path_factory: pytest.TempPathFactory) -> Mapping[str, bytes]:
    """Return the objects of a bucket with the pages of every writer; each wheel requires the next one."""
    root = tmp_path_factory.mktemp("bucket")
    with pytest.MonkeyPatch.context() as patch, mock_aws():
        for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
            patch.setenv(name, "testing")
        client = boto3.client("s3", region_name="us-east-1")
        client.create_bucket(Bucket="bucket")
        store = open_store("s3://bucket", root=root)
        requirements = [*([name] for name in PROJECTS[1:]), []]
        for (folder, document), project, requires in zip(
            FOLDERS.items(), PROJECTS, requirements, strict=True
        ):
            path = write_wheel(
                root / folder,
                name=project,
                version="1.1",
                requires=requires,
                metadata_fields=[("Requires-Python", ">=3.8")],
            )
            key, metadata, sha256 = f"{folder}/{path.name}", read_metadata(path).raw, files.sha256(path)
            facts = {"key": key, "size": path.stat().st_size, "sha256": sha256}
            facts["metadata_sha256"] = hashlib.sha256(metadata).hexdigest()
            store.put_file(key, path, sha256=sha256, replace=False)
            store.put_bytes(f"{key}.metadata", metadata)
            if document:
                record = {"schema_version": 1, "status": "ok", "files": [facts]}
                store.put_bytes(document, json.dumps(record).encode())
        index.write_pages(store, RunOutputs(run_id="5", platform="linux"), "g")
        documents.write_pages(store, "v2", "g", expected=())
        write_index(store, "python-deps", source_of(mirror(), store), title="Dependencies")
        change = {"bucket": {"name": "bucket"}, "object": {"key": "6-linux/python/g/a.whl"}}
        folders = re.compile(server.RUN_FOLDERS)
        server.handle({"detail": change}, open_bucket=lambda _: store, folders=folders)
        index.write_directory(Common(root=root), root / "folder")
        keys = [entry["Key"] for entry in client.list_objects_v2(Bucket="bucket")["Contents"]]
        objects = {key: client.get_object(Bucket="bucket", Key=key)["Body"].read() for key in keys}
    for path in filter(Path.is_file, (root / "folder").rglob("*")):
        key = path.relative_to(root).as_posix()
        objects[key] = path.read_bytes()
        if "/simple/" in key and path.name == "index.html":
            # What a web server answers for a folder.
            objects[key.removesuffix(path.name)] = path.read_bytes()
    return objects


@pytest.fixture(name="client_of", scope="module")
def client_fixture(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], list[str]]:
    """Return the command of an installer; each pip in an environment of its own."""

    @cache
    def command(client: str) -> list[str]:
        uv = str(installer.uv_program())
        root = tmp_path_factory.mktemp("client") / "venv"
        python = str(root / "bin" / "python")
        if client == "uv":
            create_environment(root)
            return [uv, "pip", "install", "--no-config", "--no-cache", "--python", python]
        if client == "pip":
            create_environment(root, "pip")
        else:
            # The last Python that pip 22.3 knows.
            variables = process.inherited()
            process.run([uv, "venv", "--no-config", "--quiet", "--python", "3.11", root], env=variables)
            process.run([uv, "pip", "install", "--quiet", "--python", python, client], env=variables)
        return [python, "-m", "pip", "install", "--isolated", "--no-cache-dir", "--disable-pip-version-check"]

    return command


@pytest.mark.parametrize(
    ("client", "page", "form"),
    [
        # Each kind of page with an installer.
        ("pip==22.3", "simple", "html"),
        ("pip", "flat", "html"),
        ("uv", "simple", "json"),
        pytest.param("pip==23.1", "simple", "json", marks=pytest.mark.nightly),
        pytest.param("uv", "flat", "html", marks=pytest.mark.nightly),
        pytest.param("uv", "simple", "html", marks=pytest.mark.nightly),
        pytest.param("pip==22.3", "flat", "html", marks=pytest.mark.nightly),
        pytest.param("pip==22.3", "simple", "json", marks=pytest.mark.nightly),
        pytest.param("pip==23.1", "flat", "html", marks=pytest.mark.nightly),
        pytest.param("pip==23.1", "simple", "html", marks=pytest.mark.nightly),
        pytest.param("pip", "simple", "html", marks=pytest.mark.nightly),
        pytest.param("pip", "simple", "json", marks=pytest.mark.nightly),
    ],
)
def test_every_kind_of_page_is_read_by_every_installer(
    bucket: Mapping[str, bytes],
    client_of: Callable[[str], list[str]],
    tmp_path: Path,
    client: str,
    page: str,
    form: str,
) -> None:
    handler = type("Handler", (Bare,), {"objects": bucket, "form": form})
    with answering(handler) as url:
        places = [f"{url}/{folder}/{'index.html' if page == 'flat' else 'simple/'}" for folder in FOLDERS]
        options = ["--find-links"] * len(places)
        if page == "simple":
            options = ["--index-url", *["--extra-index-url"] * (len(places) - 1)]
        no_index = ["--no-index"] if page == "flat" else []
        source = [*no_index, *chain(*zip(options, places, strict=True))]
        command = [*client_of(client), "--target", str(tmp_path), *source, "of-a-run"]
        completed = process.capture(command, env=process.inherited(), check=False)

    assert completed.returncode == 0, completed.stdout + completed.stderr
    installed_infos = {path.name for path in tmp_path.glob("*.dist-info")}
    assert installed_infos == {f"{name.replace('-', '_')}-1.1.dist-info" for name in PROJECTS}


@TOOLS_AND_PAGES
@pytest.mark.nightly
def test_a_yanked_version_is_installed_only_where_it_is_pinned(
    tmp_path: Path, target: Interpreter, wheels: Path, tool: str, page: str, form: str
) -> None:
    (wheels / "yanked.json").write_text(f'{{"torch=={TORCH_VERSION}": "breaks on <gfx90a>"}}')
    assert run_ci("index", "--directory", wheels) == 0
    options = ("--dry-run",)

    with served(wheels, form) as (url, _paths):
        source = sources(url, page)
        unpinned = install(target, tool, tmp_path / "cache", *options, "torch", *source)
        pinned = install(target, tool, tmp_path / "cache", *options, f"torch=={TORCH_VERSION}", *source)

    # From a flat page uv takes a yanked file, too, and only warns.
    takes_yanked = tool == "uv" and page == "flat"
    assert (TORCH_VERSION if takes_yanked else OLDER_VERSION) in printed_by(unpinned)
    assert pinned.returncode == 0, pinned.stderr
    assert TORCH_VERSION in printed_by(pinned)
    assert "breaks on <gfx90a>" in printed_by(pinned)


def test_commands_of_a_page_carry_its_address_and_are_copied(wheels: Path, browser: Browser) -> None:
    run_ci("index", "--directory", wheels)
    page_errors: list[str] = []

    with served(wheels, "html") as (url, _):
        for address, command in (
            (f"{url}/index.html", f'pip install "torch==3.0" --find-links {url}/index.html'),
            (f"{url}/simple/apex/", f'pip install "apex==1.0" --index-url {url}/simple/'),
            (
                f"{wheels.as_uri()}/index.html",
                f'pip install "torch==3.0" --find-links {wheels.as_uri()}/index.html',
            ),
        ):
            rights = ["clipboard-read", "clipboard-write"]
            tab = browser.new_context(viewport={"width": 390, "height": 844}, permissions=rights).new_page()
            tab.on("pageerror", lambda error: page_errors.append(str(error)))
            tab.goto(address)

            tab.get_by_role("button", name=f"Copy: {command}", exact=True).press("Enter")
            tab.get_by_role("button", name="Copied").wait_for()

            assert tab.evaluate("navigator.clipboard.readText()") == command
            assert tab.evaluate("document.documentElement.scrollWidth <= innerWidth")

    assert page_errors == []


def test_commands_of_a_page_are_readable_without_scripts(wheels: Path, browser: Browser) -> None:
    run_ci("index", "--directory", wheels)

    with served(wheels, "html") as (url, _):
        tab = browser.new_context(java_script_enabled=False).new_page()
        tab.goto(f"{url}/index.html")

        assert tab.get_by_text("an address in capitals is that of this page").is_visible()
