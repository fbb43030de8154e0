import base64
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from urllib.request import urlopen

import pytest

from core.env.installer import Sources
from core.errors import FatalError, MissingInputError, ServiceError, UsageError
from core.http_server import answering
from core.packages.candidates import Candidate, with_digest
from core.packages.package_source import PackageSource
from core.packages.sources import PackageIndex, combine_sources, linked_source
from tests.kit.repos import write_files
from tests.kit.servers import Folder, served
from tests.kit.wheels import sha256, wheel_filename, write_wheel

TORCH_VERSION = "2.10.0+rocm7.1"
TORCH_NAME = wheel_filename(name="torch", version=TORCH_VERSION)
TORCH_PATH = TORCH_NAME.replace("+", "%2B")  # as pages write it

# Sources with packages


@pytest.fixture(scope="module")
def package_root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with packages in ``dist``, a flat page of them, and an index without digests."""
    root = tmp_path_factory.mktemp("packages")
    dist = root / "dist"
    torch = write_wheel(dist, name="torch", version=TORCH_VERSION, requires=["numpy", "rocm"])
    rocm = write_wheel(dist, name="rocm", version="7.1.0")
    # What is not ours may lie beside.
    write_wheel(dist, name="numpy", version="2.0")
    (dist / "therock-dist-linux.tar.gz").write_bytes(b"an archive, and no sdist")

    flat_page = "".join(link_to(path.name) for path in sorted(dist.iterdir()))
    pages = {
        "dist/index.html": flat_page,
        "simple/torch/index.html": link_to(torch.name, folder="../../dist/"),
        "simple/rocm/index.html": link_to(rocm.name, folder="../../dist/"),
    }
    write_files(root, pages)
    return root


def link_to(name: str, *, folder: str = "", attributes: str = "") -> str:
    """Return a link to a file as pages write it."""
    return f'<a href="{folder}{name.replace("+", "%2B")}" {attributes}>{name}</a>'


def torch_digest(package_root: Path) -> str:
    """Return the digest of the folder's torch."""
    return sha256(package_root / "dist" / TORCH_NAME)


MakeSource = Callable[[Path, str], PackageSource]


def folder_source(root: Path, _url: str) -> PackageSource:
    """Return the folder as a source."""
    return linked_source(str(root / "dist"))


def page_source(_root: Path, url: str) -> PackageSource:
    """Return the flat page as a source."""
    return linked_source(f"{url}/dist/index.html")


def local_page_source(root: Path, _url: str) -> PackageSource:
    """Return the file of the flat page as a source."""
    return linked_source(str(root / "dist" / "index.html"))


def index_source(_root: Path, url: str) -> PackageSource:
    """Return the index as a source."""
    return PackageIndex(url=f"{url}/simple/")


@pytest.fixture(params=[folder_source, page_source, local_page_source, index_source])
def source(request: pytest.FixtureRequest, package_root: Path) -> Iterator[PackageSource]:
    """Return the packages as each kind of source."""
    make_source: MakeSource = request.param
    with served(package_root) as url:
        yield make_source(package_root, url)


def test_every_source_offers_a_file_with_its_digest(source: PackageSource, package_root: Path) -> None:
    (offer,) = source.candidates("torch")

    assert offer.name == TORCH_NAME
    assert with_digest(offer).sha256 == torch_digest(package_root)


def test_every_source_tells_the_versions_of_a_package(source: PackageSource) -> None:
    assert source.versions("torch") == (TORCH_VERSION,)
    assert source.versions("rocm") == ("7.1.0",)


def test_every_source_tells_what_a_file_requires(source: PackageSource) -> None:
    (offer,) = source.candidates("torch")

    assert source.read_requirements(offer) == ("numpy", "rocm")


@pytest.mark.parametrize("name", ["torchvision", "numpy"], ids=["not there", "not ours"])
def test_no_source_offers_other_packages(source: PackageSource, name: str) -> None:
    assert source.candidates(name) == ()


def test_a_yanked_version_is_not_the_newest(tmp_path: Path) -> None:
    yanked = link_to("rocm-7.1.0.tar.gz", attributes='data-yanked="broken"')
    page = tmp_path / "index.html"
    page.write_text(yanked + link_to("rocm-7.0.0.tar.gz"))

    assert linked_source(str(page)).versions("rocm") == ("7.0.0",)


class MovedFolder(Folder):
    """Sends every page below ``/old/`` to ``/dist/``."""

    def do_GET(self) -> None:  # noqa: N802 - the base class's name
        """Answer a request."""
        if not self.path.startswith("/old/"):
            super().do_GET()
            return
        self.send_response(301)
        self.send_header("Location", self.path.replace("/old/", "/dist/"))
        self.send_header("Content-Length", "0")
        self.end_headers()


def test_links_are_relative_to_where_a_redirect_leads(package_root: Path) -> None:
    with answering(partial(MovedFolder, directory=str(package_root))) as url:
        (torch,) = linked_source(f"{url}/old/index.html").candidates("torch")

    assert torch.url == f"{url}/dist/{TORCH_PATH}"


class LoginServer(Folder):
    """Answers with a page of its own, its login, for every address that is no wheel."""

    def do_GET(self) -> None:  # noqa: N802 - the base class's name
        """Answer a request."""
        if self.path.endswith((".whl", "index.html")):
            super().do_GET()
            return
        self.send_response(200)
        self.send_header("Content-Length", "17")
        self.end_headers()
        self.wfile.write(b"<html>Log in</a>\n")


def test_takes_a_login_page_for_no_metadata(package_root: Path) -> None:
    with answering(partial(LoginServer, directory=str(package_root))) as url:
        source = linked_source(f"{url}/dist/index.html")
        (torch,) = source.candidates("torch")

        assert source.read_requirements(torch) == ("numpy", "rocm")


# Sources that lack a package, or do not answer


def test_names_the_package_that_an_index_lacks_and_other_ways(tmp_path: Path) -> None:
    (tmp_path / "simple").mkdir()

    with served(tmp_path) as url:
        source = PackageIndex(url=f"{url}/simple/", option_prefix="--rocm-")
        assert source.versions("rocm") == ()

    problem = source.missing_error("rocm")
    assert "rocm" in problem.message
    assert f"{url}/simple/" in problem.message
    assert "--rocm-index-url" in problem.hint


@pytest.mark.parametrize(
    ("source", "error", "mentioned"),
    [
        (PackageIndex(url="file:///x"), UsageError, "--index-url file:///x"),
        (linked_source("/absent/folder"), MissingInputError, str(Path("/absent/folder"))),
    ],
    ids=["no HTTP", "no folder"],
)
def test_rejects_what_is_no_source(source: PackageSource, error: type[FatalError], mentioned: str) -> None:
    with pytest.raises(error) as raised:
        source.versions("rocm")

    assert mentioned in raised.value.message


def test_names_an_index_that_does_not_exist(tmp_path: Path) -> None:
    with served(tmp_path) as url, pytest.raises(MissingInputError) as raised:
        PackageIndex(url=f"{url}/nowhere/").versions("rocm")

    assert f"{url}/nowhere/: it answers 404" in raised.value.message
    assert "--index-url" in raised.value.hint


def test_an_index_that_cannot_be_reached_may_answer_later(tmp_path: Path) -> None:
    with served(tmp_path) as url:
        source = PackageIndex(url=f"{url}/simple/")

    with pytest.raises(ServiceError, match="cannot be reached"):
        source.versions("rocm")


@pytest.mark.parametrize("package", ["rocm", "torch"], ids=["answers a page", "has no page"])
def test_doubts_whether_a_login_is_an_index(tmp_path: Path, package: str) -> None:
    login = '<form></form><a href="/help/">Log in</a>'
    write_files(tmp_path, {"index.html": login, "rocm/index.html": login})

    with served(tmp_path) as url:
        source = PackageIndex(url=f"{url}/")
        assert source.versions(package) == ()

    hint = source.missing_error(package).hint
    assert url in hint
    assert "is it an index?" in hint


def test_doubts_each_answer_of_an_index_once(tmp_path: Path) -> None:
    login = '<form></form><a href="/help/">Log in</a>'
    write_files(tmp_path, {"index.html": login, "rocm/index.html": login, "rocm-sdk/index.html": login})

    with served(tmp_path) as url:
        source = PackageIndex(url=f"{url}/")
        for package in ("rocm", "rocm-sdk", "torch", "torch-sdk"):
            assert source.versions(package) == ()

    assert source.missing_error("rocm").hint.count("is it an index?") == 2


# Passwords

PASSWORD = "s3cret"  # noqa: S105 - of a server of the test's own


class GuardedFolder(Folder):
    """A folder for whoever has the password."""

    def do_GET(self) -> None:  # noqa: N802 - the base class's name
        """Answer, or refuse."""
        pair = base64.b64encode(f"me:{PASSWORD}".encode()).decode()
        if self.headers.get("Authorization") == f"Basic {pair}":
            super().do_GET()
        else:
            self.send_error(401)


@pytest.fixture
def guarded_url(package_root: Path) -> Iterator[str]:
    """Return the address of the packages, without the password."""
    with answering(partial(GuardedFolder, directory=str(package_root))) as url:
        yield url


@pytest.fixture
def guarded_source(guarded_url: str) -> PackageSource:
    """Return the index of the packages, with the password."""
    return PackageIndex(url=f"{guarded_url.replace('//', f'//me:{PASSWORD}@')}/simple/")


@pytest.mark.parametrize("is_index", [True, False], ids=["index", "page"])
def test_names_an_address_that_refuses_and_other_settings(guarded_url: str, *, is_index: bool) -> None:
    source: PackageSource = linked_source(f"{guarded_url}/index.html")
    if is_index:
        source = PackageIndex(url=f"{guarded_url}/simple/")

    with pytest.raises(MissingInputError) as raised:
        source.candidates("rocm")

    assert raised.value.message.startswith(f"{guarded_url}/")
    assert "401" in raised.value.message
    assert "--run-id" in raised.value.hint
    assert "--store" in raised.value.hint


def test_describes_a_source_without_its_password(guarded_source: PackageSource) -> None:
    assert "simple" in guarded_source.description
    assert PASSWORD not in guarded_source.description


@contextmanager
def opened_page(source: PackageSource) -> Iterator[str]:
    """Open a source for installers with its torch and rocm; yield the address of the page they get."""
    offers: list[Candidate] = []
    for name in ("torch", "rocm"):
        offers += [with_digest(offer) for offer in source.candidates(name)]

    with source.opened(offers) as sources:
        assert PASSWORD not in repr(sources)
        assert sources.no_index
        yield sources.find_links[0]


def read_url(url: str) -> bytes:
    """Return the body of an address of this machine."""
    with urlopen(url) as response:  # noqa: S310 - our own address
        return bytes(response.read())


def test_installers_get_a_page_without_the_password(
    guarded_source: PackageSource, package_root: Path
) -> None:
    with opened_page(guarded_source) as page_url:
        page = read_url(page_url).decode()

    assert PASSWORD not in page
    assert f"{TORCH_PATH}#sha256={torch_digest(package_root)}" in page


def test_installers_get_the_files_behind_a_password(
    guarded_source: PackageSource, package_root: Path
) -> None:
    with opened_page(guarded_source) as page_url:
        content = read_url(page_url.replace("index.html", TORCH_PATH))

    assert content == (package_root / "dist" / TORCH_NAME).read_bytes()


def test_installers_get_sources_without_a_password_as_they_are() -> None:
    indexes = [PackageIndex(url=url) for url in ("https://a", "https://b")]
    source = combine_sources([*indexes, linked_source(str(Path("/wheels")))])

    with source.opened([]) as sources:
        assert sources == Sources(
            index_url="https://a", extra_index_urls=("https://b",), find_links=(str(Path("/wheels")),)
        )


def test_installers_ask_no_index_where_there_are_folders_alone() -> None:
    assert linked_source("/wheels").installer_sources().no_index
