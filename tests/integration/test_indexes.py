"""pip and uv read the pages: the flat one, and simple/ as HTML and as JSON; what they request for that."""

import hashlib
import io
import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache, partial
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO
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
from core.env import installer
from core.http_server import answering
from core.run import RunOutputs
from core.stores import Store
from core.stores.location import open_store
from core.wheel import read_metadata
from tests.kit.clones import printed_by
from tests.kit.environments import Venv, create_environment
from tests.kit.front_doors import run_ci
from tests.kit.servers import Folder, Quiet
from tests.kit.wheels import write_wheel

if TYPE_CHECKING:
    from types_boto3_s3 import S3Client

TORCH_VERSION = "2.10.0+rocm7.1"
OLDER_VERSION = "2.9.0+rocm7.1"
YANK_REASON = "breaks on <gfx90a>"

# The content type of a page of simple/, by its form.
CONTENT_TYPES = {"html": "text/html", "json": "application/vnd.pypi.simple.v1+json"}


class IndexHandler(Folder):
    """Answers from a folder, for simple/ with the pages of one form, and notes the requested paths."""

    def __init__(self, *arguments: Any, directory: str, form: str, requested_paths: list[str]) -> None:
        self._form = form
        self._requested_paths = requested_paths
        super().__init__(*arguments, directory=directory)

    def send_head(self) -> io.BytesIO | BinaryIO | None:
        self._requested_paths.append(self.path)
        if self.path.endswith("/"):
            self.path += f"index.{self._form}"
        return super().send_head()

    def guess_type(self, path: object) -> str:
        is_simple_page = "/simple/" in str(path) and str(path).endswith(f"/index.{self._form}")
        if is_simple_page:
            return CONTENT_TYPES[self._form]
        return super().guess_type(str(path))


@contextmanager
def served_index(folder: Path, form: str) -> Iterator[tuple[str, list[str]]]:
    """Serve a folder with its pages in a form; yield its address, and the paths requested so far."""
    requested_paths: list[str] = []
    handler = partial(IndexHandler, directory=str(folder), form=form, requested_paths=requested_paths)
    with answering(handler) as url:
        yield url, requested_paths


@pytest.fixture
def wheels(tmp_path: Path) -> Path:
    """Return an indexed folder of wheels.

    It has two versions of torch, rocm, which they require, apex, which only an extra of them requires, and a
    torch 3.0 that runs on no Python.
    """
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
def environment(tmp_path: Path) -> Venv:
    """Return an environment with pip alone."""
    return create_environment(tmp_path / "venv", "pip")


def install_command(client: str, python: Path) -> list[str]:
    """Return pip's or uv's command that installs into an environment, without settings and caches."""
    if client == "uv":
        uv = str(installer.uv_program())
        return [uv, "pip", "install", "--no-config", "--no-cache", "--python", str(python)]
    options = ["--isolated", "--no-cache-dir", "--disable-pip-version-check"]
    return [str(python), "-m", "pip", "install", *options]


def index_options(page: str, *folder_urls: str) -> list[str]:
    """Return an installer's options for folders' flat pages, or for their simple/, and for no other index."""
    if page == "flat":
        options = ["--no-index"]
        for url in folder_urls:
            options += ["--find-links", f"{url}/index.html"]
        return options

    first_url, *other_urls = folder_urls
    options = ["--index-url", f"{first_url}/simple/"]
    for url in other_urls:
        options += ["--extra-index-url", f"{url}/simple/"]
    return options


def install(environment: Venv, client: str, *arguments: str) -> process.Completed:
    """Run an installer for an environment, which may fail."""
    command = install_command(client, environment.python)
    return process.capture([*command, *arguments], env=process.inherited(), check=False)


# Each installer with each kind of page, in both forms of simple/.
CLIENTS_AND_PAGES = pytest.mark.parametrize(
    ("client", "page", "form"),
    [
        ("pip", "simple", "json"),
        ("uv", "simple", "html"),
        pytest.param("pip", "flat", "html", marks=pytest.mark.nightly),
        pytest.param("uv", "flat", "html", marks=pytest.mark.nightly),
        pytest.param("uv", "simple", "json", marks=pytest.mark.nightly),
    ],
)


@CLIENTS_AND_PAGES
@pytest.mark.nightly
def test_resolution_requests_metadata_and_no_wheel(
    environment: Venv, wheels: Path, client: str, page: str, form: str
) -> None:
    with served_index(wheels, form) as (url, requested_paths):
        resolved = install(environment, client, "--dry-run", "torch", *index_options(page, url))

    assert resolved.returncode == 0, resolved.stderr
    assert "rocm" in printed_by(resolved)
    assert [path for path in requested_paths if path.endswith(".whl")] == []
    assert [path for path in requested_paths if path.endswith(".whl.metadata")]
    assert ("/simple/torch/" in requested_paths) == (page == "simple")


@CLIENTS_AND_PAGES
def test_installation_requests_the_installed_wheels_alone(
    environment: Venv, wheels: Path, client: str, page: str, form: str
) -> None:
    requirement = f"torch=={OLDER_VERSION}"

    with served_index(wheels, form) as (url, requested_paths):
        completed = install(environment, client, requirement, *index_options(page, url))

    assert completed.returncode == 0, completed.stderr
    wheel_paths = [unquote(path) for path in requested_paths if path.endswith(".whl")]
    requested_wheels = {path.rpartition("/")[2] for path in wheel_paths}
    assert requested_wheels == {f"torch-{OLDER_VERSION}-py3-none-any.whl", "rocm-7.1-py3-none-any.whl"}
    printed = process.capture([environment.python, "-c", "import torch; print(torch.VERSION)"]).stdout
    assert printed.strip() == OLDER_VERSION


@CLIENTS_AND_PAGES
@pytest.mark.nightly
def test_a_yanked_version_is_installed_only_where_it_is_pinned(
    environment: Venv, wheels: Path, client: str, page: str, form: str
) -> None:
    pin = f"torch=={TORCH_VERSION}"
    (wheels / "yanked.json").write_text(json.dumps({pin: YANK_REASON}))
    assert run_ci("index", "--directory", wheels) == 0

    with served_index(wheels, form) as (url, _requested_paths):
        options = ["--dry-run", *index_options(page, url)]
        unpinned = install(environment, client, "torch", *options)
        pinned = install(environment, client, pin, *options)

    version_without_pin = OLDER_VERSION
    if client == "uv" and page == "flat":
        # From a flat page uv takes a yanked file, too, and only warns.
        version_without_pin = TORCH_VERSION
    assert version_without_pin in printed_by(unpinned)
    assert pinned.returncode == 0, pinned.stderr
    assert TORCH_VERSION in printed_by(pinned)
    assert YANK_REASON in printed_by(pinned)


# Pages of every writer


@dataclass(frozen=True, kw_only=True)
class BucketFolder:
    """A folder of a bucket, with one wheel."""

    path: str
    project: str
    requires: Sequence[str]  # of the wheel
    manifest: str | None  # the document that names the wheel, where the pages are written from one


# Each wheel requires that of the next folder, so that an installer has to read the pages of all.
FOLDERS = (
    BucketFolder(
        path="5-linux/python/g",
        project="of-a-run",
        requires=["of-a-release"],
        manifest="5-linux/manifests/g/of-a-run.json",
    ),
    BucketFolder(
        path="v2/g",
        project="of-a-release",
        requires=["shared"],
        manifest="manifests/v2/g/of-a-release.json",
    ),
    BucketFolder(
        path="python-deps",
        project="shared",
        requires=["of-the-server"],
        manifest="python-deps/manifests/shared.json",
    ),
    BucketFolder(path="6-linux/python/g", project="of-the-server", requires=["of-a-folder"], manifest=None),
    BucketFolder(path="folder", project="of-a-folder", requires=[], manifest=None),
)


class BucketHandler(Quiet, BaseHTTPRequestHandler):
    """Answers as a bucket does, with the object of exactly that key; for folders with pages of one form."""

    def __init__(self, *arguments: Any, objects: Mapping[str, bytes], form: str) -> None:
        self._objects = objects
        self._form = form
        super().__init__(*arguments)

    def do_HEAD(self) -> None:
        self._send_headers()

    def do_GET(self) -> None:
        content = self._send_headers()
        if content is not None:
            self.wfile.write(content)

    def _send_headers(self) -> bytes | None:
        """Send the status and the headers of an object; return its content, or None where there is none."""
        key = unquote(self.path.lstrip("/"))
        content_type = "application/octet-stream"
        if key.endswith(".html"):
            content_type = "text/html"
        elif key.endswith("/"):
            content_type = CONTENT_TYPES[self._form]
            if self._form == "json":
                key += "index.json"

        content = self._objects.get(key)
        self.send_response(HTTPStatus.NOT_FOUND if content is None else HTTPStatus.OK)
        self.send_header("Content-Length", str(len(content or b"")))
        self.send_header("Content-Type", content_type)
        self.end_headers()
        return content


def put_wheel(store: Store, folder: BucketFolder, root: Path) -> None:
    """Put a folder's wheel, its metadata and its manifest into the store; leave the wheel below `root`."""
    wheel = write_wheel(
        root / folder.path,
        name=folder.project,
        version="1.1",
        requires=folder.requires,
        metadata_fields=[("Requires-Python", ">=3.8")],
    )
    key = f"{folder.path}/{wheel.name}"
    metadata = read_metadata(wheel).raw
    sha256 = files.sha256(wheel)
    store.put_file(key, wheel, sha256=sha256, replace=False)
    store.put_bytes(f"{key}.metadata", metadata)

    if folder.manifest is not None:
        file_record = {
            "key": key,
            "size": wheel.stat().st_size,
            "sha256": sha256,
            "metadata_sha256": hashlib.sha256(metadata).hexdigest(),
        }
        record = {"schema_version": 1, "status": "ok", "files": [file_record]}
        store.put_bytes(folder.manifest, json.dumps(record).encode())


def write_pages(store: Store, root: Path) -> None:
    """Let each writer write the pages of its folder: the last one on the disk, all others in the store."""
    index.write_pages(store, RunOutputs(run_id="5", platform="linux"), "g")
    documents.write_pages(store, "v2", "g", expected=())
    write_index(store, "python-deps", source_of(mirror(), store), title="Dependencies")

    changed_object = {"bucket": {"name": "bucket"}, "object": {"key": "6-linux/python/g/a.whl"}}
    run_folders = re.compile(server.RUN_FOLDERS)
    server.handle({"detail": changed_object}, open_bucket=lambda _name: store, folders=run_folders)

    index.write_directory(Common(root=root), root / "folder")


def objects_in_bucket(client: "S3Client") -> dict[str, bytes]:
    """Return the content of a bucket's objects by key."""
    objects: dict[str, bytes] = {}
    for entry in client.list_objects_v2(Bucket="bucket")["Contents"]:
        key = entry["Key"]
        objects[key] = client.get_object(Bucket="bucket", Key=key)["Body"].read()
    return objects


def objects_on_disk(root: Path) -> dict[str, bytes]:
    """Return the content of the folder on the disk by key, as a web server answers."""
    objects: dict[str, bytes] = {}
    for path in (root / "folder").rglob("*"):
        if not path.is_file():
            continue
        key = path.relative_to(root).as_posix()
        objects[key] = path.read_bytes()
        if "/simple/" in key and path.name == "index.html":
            # What a web server answers for a folder.
            objects[key.removesuffix(path.name)] = path.read_bytes()
    return objects


@pytest.fixture(scope="module")
def objects(tmp_path_factory: pytest.TempPathFactory) -> Mapping[str, bytes]:
    """Return the objects of a bucket with the wheels of all folders, and their pages."""
    root = tmp_path_factory.mktemp("bucket")
    with pytest.MonkeyPatch.context() as patch, mock_aws():
        for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
            patch.setenv(name, "testing")
        client = boto3.client("s3", region_name="us-east-1")
        client.create_bucket(Bucket="bucket")
        store = open_store("s3://bucket", root=root)

        for folder in FOLDERS:
            put_wheel(store, folder, root)
        write_pages(store, root)
        return objects_in_bucket(client) | objects_on_disk(root)


@pytest.fixture(scope="module")
def command_of(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], list[str]]:
    """Return a function from an installer to its command; each installer has an environment of its own."""

    @cache
    def command_of_client(client: str) -> list[str]:
        root = tmp_path_factory.mktemp("client") / "venv"
        environment = Venv(root=root)
        if client == "uv":
            create_environment(root)
        elif client == "pip":
            create_environment(root, "pip")
        else:
            uv = installer.uv_program()
            variables = process.inherited()
            # The last Python that pip 22.3 knows.
            process.run([uv, "venv", "--no-config", "--quiet", "--python", "3.11", root], env=variables)
            install_pip: list[str | Path] = [
                uv,
                "pip",
                "install",
                "--quiet",
                "--python",
                environment.python,
                client,
            ]
            process.run(install_pip, env=variables)
        return install_command(client, environment.python)

    return command_of_client


# pip 22.3 came with Debian 12; 23.1 is the last one that knows `dist-info-metadata` alone; "pip" is that of
# the lock.
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
def test_every_installer_reads_the_pages_of_every_writer(
    objects: Mapping[str, bytes],
    command_of: Callable[[str], list[str]],
    tmp_path: Path,
    client: str,
    page: str,
    form: str,
) -> None:
    handler = partial(BucketHandler, objects=objects, form=form)
    with answering(handler) as url:
        folder_urls = [f"{url}/{folder.path}" for folder in FOLDERS]
        options = ["--target", str(tmp_path), *index_options(page, *folder_urls)]
        command = [*command_of(client), *options, "of-a-run"]
        completed = process.capture(command, env=process.inherited(), check=False)

    assert completed.returncode == 0, printed_by(completed)
    installed_projects = {path.name.removesuffix("-1.1.dist-info") for path in tmp_path.glob("*.dist-info")}
    assert installed_projects == {folder.project.replace("-", "_") for folder in FOLDERS}


# Commands on the pages


def test_commands_of_a_page_carry_its_address_and_are_copied(wheels: Path, browser: Browser) -> None:
    run_ci("index", "--directory", wheels)
    page_errors: list[str] = []
    flat_page_on_disk = f"{wheels.as_uri()}/index.html"

    with served_index(wheels, "html") as (url, _requested_paths):
        commands = {
            f"{url}/index.html": f'pip install "torch==3.0" --find-links {url}/index.html',
            f"{url}/simple/apex/": f'pip install "apex==1.0" --index-url {url}/simple/',
            flat_page_on_disk: f'pip install "torch==3.0" --find-links {flat_page_on_disk}',
        }
        for address, command in commands.items():
            rights = ["clipboard-read", "clipboard-write"]
            tab = browser.new_context(viewport={"width": 390, "height": 844}, permissions=rights).new_page()
            tab.on("pageerror", lambda error: page_errors.append(str(error)))
            tab.goto(address)

            tab.get_by_role("button", name=f"Copy: {command}", exact=True).press("Enter")
            tab.get_by_role("button", name="Copied").wait_for()

            assert tab.evaluate("navigator.clipboard.readText()") == command
            # Nothing has to be scrolled sideways on a phone.
            assert tab.evaluate("document.documentElement.scrollWidth <= innerWidth")

    assert page_errors == []


def test_commands_of_a_page_are_readable_without_scripts(wheels: Path, browser: Browser) -> None:
    run_ci("index", "--directory", wheels)

    with served_index(wheels, "html") as (url, _requested_paths):
        tab = browser.new_context(java_script_enabled=False).new_page()
        tab.goto(f"{url}/index.html")

        assert tab.get_by_text("an address in capitals is that of this page").is_visible()
