import argparse
import base64
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from urllib.request import urlopen

import pytest

from core.env.installer import Sources
from core.errors import FatalError, MissingInputError, ServiceError, UsageError
from core.http import answering
from core.packages import Offer
from core.packages.sources import (
    PackageSource,
    SourceOptions,
    absolute,
    add_package_source,
    add_staged_source,
    below,
    options_of_tested_source,
    source_options,
)
from tests.kit.repos import write_files
from tests.kit.servers import Folder, served
from tests.kit.wheels import sha256, wheel_filename, write_wheel

TORCH_VERSION = "2.10.0+rocm7.1"
TORCH_NAME = wheel_filename(name="torch", version=TORCH_VERSION)
TORCH_PATH = TORCH_NAME.replace("+", "%2B")  # as pages write it


# Options


def parse_options(
    *words: str, prefixes: Sequence[str] = ("",), variables: Mapping[str, str] | None = None
) -> SourceOptions:
    """Parse options whose names begin with one of the prefixes."""
    parser = argparse.ArgumentParser()
    add_package_source(parser, "x", *prefixes)
    return source_options(parser.parse_args(words), prefixes[0], variables or {})


def test_reads_a_source_from_options() -> None:
    options = parse_options("--find-links", "/a", "--index-url", "https://c", "--index-subdir", "/d/")

    assert options.find_links == ("/a",)
    assert options.index_urls == ("https://c",)
    assert options.index_subdir == "d"
    assert options.named


def test_ignores_an_empty_option() -> None:
    assert parse_options("--index-url=https://c", "--index-url=").index_urls == ("https://c",)


def test_no_option_names_no_source() -> None:
    assert not parse_options().named


@pytest.mark.parametrize("prefixes", [("rocm-",), ("rocm-", "")], ids=["one prefix", "two prefixes"])
def test_reads_options_with_a_prefix(prefixes: Sequence[str]) -> None:
    options = parse_options(
        "--rocm-index",
        "dev",
        "--rocm-version=7",
        "--rocm-run-id=9",
        "--rocm-find-links=/b",
        prefixes=prefixes,
    )

    assert options.index_name == "dev"
    assert options.version == "7"
    assert options.run_id == "9"
    assert options.find_links == ("/b",)
    assert options.prefix == "--rocm-"


def test_reads_a_list_from_options_of_two_prefixes() -> None:
    options = parse_options("--rocm-find-links=/b", "--find-links=/a", prefixes=("rocm-", ""))

    assert options.find_links == ("/b", "/a")


VARIABLES = {
    "ROCM_PACKAGE_INDEX_URL": "",
    "ROCM_PACKAGE_FIND_LINKS_URL": "https://page",
    "ROCM_PACKAGE_VERSION": "7",
}


def test_inputs_of_a_workflow_name_a_source() -> None:
    options = parse_options(prefixes=("rocm-",), variables=VARIABLES)

    assert options.find_links == ("https://page",)
    assert options.index_urls == ()
    assert options.version == "7"


def test_options_win_over_inputs_of_a_workflow() -> None:
    options = parse_options(
        "--rocm-index-url=https://mine", "--rocm-version=8", prefixes=("rocm-",), variables=VARIABLES
    )

    assert options.find_links == ()
    assert options.index_urls == ("https://mine",)
    assert options.version == "8"


@pytest.mark.parametrize("index", ["https://a.example/v2", "https://a.example/v2/"])
@pytest.mark.parametrize("folder", ["gfx110X-all", "/gfx110X-all/"])
def test_joins_an_index_and_a_folder_below_it(index: str, folder: str) -> None:
    assert below(index, folder) == "https://a.example/v2/gfx110X-all/"


def parse_tested_source(*words: str) -> SourceOptions:
    """Parse the options of a test."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--no-install", action="store_true")
    add_staged_source(add_package_source(parser, "x", ""))
    return options_of_tested_source(parser.parse_args(words))


def test_a_test_takes_staged_wheels_of_a_store() -> None:
    options = parse_tested_source("--staged", "--distribution-store", "s3://releases")

    assert options == SourceOptions(staged=True, distribution_store="s3://releases")
    assert not options.named


@pytest.mark.parametrize(
    ("words", "mentioned"),
    [
        (["--distribution-store", "s3://releases"], "--distribution-store"),
        (["--staged", "--find-links", "/a"], "--find-links"),
        (["--staged", "--no-install"], "--no-install"),
    ],
    ids=["a store alone", "another source", "what is installed"],
)
def test_rejects_options_that_contradict_staging(words: list[str], mentioned: str) -> None:
    with pytest.raises(UsageError) as raised:
        parse_tested_source(*words)

    assert mentioned in f"{raised.value.message} {raised.value.hint}"


def test_leaves_an_index_without_a_folder_as_it_is() -> None:
    assert below("https://a.example/v2", "") == "https://a.example/v2"


@pytest.mark.parametrize(
    ("link", "place"),
    [
        ("wheels", "{folder}/wheels"),
        ("/data/wheels", "/data/wheels"),
        ("https://a.example/index.html", "https://a.example/index.html"),
        ("file:///my%20data", "/my data"),
    ],
)
def test_names_folders_from_where_commands_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, link: str, place: str
) -> None:
    monkeypatch.chdir(tmp_path)

    assert absolute([link]) == (place.format(folder=Path.cwd()),)


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
    return PackageSource(find_links=(str(root / "dist"),))


def page_source(_root: Path, url: str) -> PackageSource:
    """Return the flat page as a source."""
    return PackageSource(find_links=(f"{url}/dist/index.html",))


def local_page_source(root: Path, _url: str) -> PackageSource:
    """Return the file of the flat page as a source."""
    return PackageSource(find_links=(str(root / "dist" / "index.html"),))


def index_source(_root: Path, url: str) -> PackageSource:
    """Return the index as a source."""
    return PackageSource(index_urls=(f"{url}/simple/",))


@pytest.fixture(params=[folder_source, page_source, local_page_source, index_source])
def source(request: pytest.FixtureRequest, package_root: Path) -> Iterator[PackageSource]:
    """Return the packages as each kind of source."""
    make_source: MakeSource = request.param
    with served(package_root) as url:
        yield make_source(package_root, url)


def test_every_source_offers_a_file_with_its_digest(source: PackageSource, package_root: Path) -> None:
    (offer,) = source.offers("torch")

    assert offer.name == TORCH_NAME
    assert source.sealed(offer).sha256 == torch_digest(package_root)


def test_every_source_tells_the_versions_of_a_package(source: PackageSource) -> None:
    assert source.versions("torch") == (TORCH_VERSION,)
    assert source.versions("rocm") == ("7.1.0",)


def test_every_source_tells_what_a_file_requires(source: PackageSource) -> None:
    (offer,) = source.offers("torch")

    assert source.requires(offer) == ("numpy", "rocm")


@pytest.mark.parametrize("name", ["torchvision", "numpy"], ids=["not there", "not ours"])
def test_no_source_offers_other_packages(source: PackageSource, name: str) -> None:
    assert source.offers(name) == ()


def test_a_yanked_version_is_not_the_newest(tmp_path: Path) -> None:
    yanked = link_to("rocm-7.1.0.tar.gz", attributes='data-yanked="broken"')
    page = tmp_path / "index.html"
    page.write_text(yanked + link_to("rocm-7.0.0.tar.gz"))

    assert PackageSource(find_links=(str(page),)).versions("rocm") == ("7.0.0",)


# Sources that lack a package, or do not answer


def test_names_the_package_that_an_index_lacks_and_other_ways(tmp_path: Path) -> None:
    (tmp_path / "simple").mkdir()

    with served(tmp_path) as url:
        source = PackageSource(index_urls=(f"{url}/simple/",), prefix="--rocm-")
        assert source.versions("rocm") == ()

    problem = source.lacks("rocm")
    assert "rocm" in problem.message
    assert f"{url}/simple/" in problem.message
    assert "--rocm-index-url" in problem.hint


@pytest.mark.parametrize(
    ("source", "error", "mentioned"),
    [
        (PackageSource(index_urls=("file:///x",)), UsageError, "--index-url file:///x"),
        (PackageSource(find_links=("/absent/folder",)), MissingInputError, "/absent/folder"),
    ],
    ids=["no HTTP", "no folder"],
)
def test_rejects_what_is_no_source(source: PackageSource, error: type[FatalError], mentioned: str) -> None:
    with pytest.raises(error) as raised:
        source.versions("rocm")

    assert mentioned in raised.value.message


def test_names_an_index_that_does_not_exist(tmp_path: Path) -> None:
    with served(tmp_path) as url, pytest.raises(MissingInputError) as raised:
        PackageSource(index_urls=(f"{url}/nowhere/",)).versions("rocm")

    assert f"{url}/nowhere/: it answers 404" in raised.value.message
    assert "--index-url" in raised.value.hint


def test_an_index_that_cannot_be_reached_may_answer_later(tmp_path: Path) -> None:
    with served(tmp_path) as url:
        source = PackageSource(index_urls=(f"{url}/simple/",))

    with pytest.raises(ServiceError, match="cannot be reached"):
        source.versions("rocm")


@pytest.mark.parametrize("package", ["rocm", "torch"], ids=["answers a page", "has no page"])
def test_doubts_whether_a_login_is_an_index(tmp_path: Path, package: str) -> None:
    login = '<form></form><a href="/help/">Log in</a>'
    write_files(tmp_path, {"index.html": login, "rocm/index.html": login})

    with served(tmp_path) as url:
        source = PackageSource(index_urls=(f"{url}/",))
        assert source.versions(package) == ()

    hint = source.lacks(package).hint
    assert url in hint
    assert "is it an index?" in hint


def test_doubts_each_answer_of_an_index_once(tmp_path: Path) -> None:
    login = '<form></form><a href="/help/">Log in</a>'
    write_files(tmp_path, {"index.html": login, "rocm/index.html": login, "rocm-sdk/index.html": login})

    with served(tmp_path) as url:
        source = PackageSource(index_urls=(f"{url}/",))
        for package in ("rocm", "rocm-sdk", "torch", "torch-sdk"):
            assert source.versions(package) == ()

    assert source.lacks("rocm").hint.count("is it an index?") == 2


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
    return PackageSource(index_urls=(f"{guarded_url.replace('//', f'//me:{PASSWORD}@')}/simple/",))


@pytest.mark.parametrize("is_index", [True, False], ids=["index", "page"])
def test_names_an_address_that_refuses_and_other_settings(guarded_url: str, *, is_index: bool) -> None:
    if is_index:
        source = PackageSource(index_urls=(f"{guarded_url}/simple/",))
    else:
        source = PackageSource(find_links=(f"{guarded_url}/index.html",))

    with pytest.raises(MissingInputError) as raised:
        source.offers("rocm")

    assert raised.value.message.startswith(f"{guarded_url}/")
    assert "401" in raised.value.message
    assert "--run-id" in raised.value.hint
    assert "--store" in raised.value.hint


def test_describes_a_source_without_its_password(guarded_source: PackageSource) -> None:
    assert "simple" in guarded_source.words
    assert PASSWORD not in guarded_source.words


@contextmanager
def opened_page(source: PackageSource) -> Iterator[str]:
    """Open a source for installers with its torch and rocm; yield the address of the page they get."""
    offers: list[Offer] = []
    for name in ("torch", "rocm"):
        offers += [source.sealed(offer) for offer in source.offers(name)]

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
    source = PackageSource(index_urls=("https://a", "https://b"), find_links=("/wheels",))

    with source.opened([]) as sources:
        assert sources == Sources(
            index_url="https://a", extra_index_urls=("https://b",), find_links=("/wheels",)
        )


def test_installers_ask_no_index_where_there_are_folders_alone() -> None:
    assert PackageSource(find_links=("/wheels",)).direct.no_index
