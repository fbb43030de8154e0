import argparse
import base64
from functools import partial
from http.server import SimpleHTTPRequestHandler
from pathlib import Path
from typing import Any
from urllib.request import urlopen

import pytest

from core import files, http
from core.env.installer import Sources
from core.errors import MissingInputError, ServiceError, UsageError
from core.packages.sources import (
    PackageSource,
    SourceOptions,
    absolute,
    add_package_source,
    below,
    source_options,
)
from tests.conftest import MakeWheel
from tests.kit.servers import served


def parsed(words: list[str], *prefixes: str, env: dict[str, str] | None = None) -> SourceOptions:
    parser = argparse.ArgumentParser()
    add_package_source(parser, "x", *prefixes)
    return source_options(parser.parse_args(words), prefixes[0], env or {})


def test_one_group_of_words_serves_every_stage() -> None:
    words = ["--find-links", "/a", "--index-url", "https://c", "--index-url=", "--index-subdir", "/d/"]
    found = parsed(words, "")
    assert (found.find_links, found.index_urls, found.index_subdir) == (("/a",), ("https://c",), "d")
    assert found.named
    assert not parsed([], "").named
    both = [
        "--rocm-find-links=/b",
        "--find-links=/a",
        "--rocm-index",
        "dev",
        "--rocm-version=7",
        "--rocm-run-id=9",
    ]
    for prefixes in (("rocm-",), ("rocm-", "")):
        asked = [one for one in both if len(prefixes) > 1 or not one.startswith("--find")]
        found = parsed(asked, *prefixes)
        assert (found.index_name, found.version, found.run_id, found.prefix) == ("dev", "7", "9", "--rocm-")
        assert found.find_links == (("/b", "/a") if len(prefixes) > 1 else ("/b",))


def test_a_workflows_inputs_count_where_no_option_names_a_source() -> None:
    env = {
        "ROCM_PACKAGE_INDEX_URL": "",
        "ROCM_PACKAGE_FIND_LINKS_URL": "https://page",
        "ROCM_PACKAGE_VERSION": "7",
    }
    found = parsed([], "rocm-", env=env)
    assert (found.find_links, found.index_urls, found.version) == (("https://page",), (), "7")
    mine = parsed(["--rocm-index-url=https://mine", "--rocm-version=8"], "rocm-", env=env)
    assert (mine.find_links, mine.index_urls, mine.version) == ((), ("https://mine",), "8")


def test_a_folder_lies_below_its_index() -> None:
    for folder in ("gfx110X-all", "/gfx110X-all/"):
        for index in ("https://a.example/v2", "https://a.example/v2/"):
            assert below(index, folder) == "https://a.example/v2/gfx110X-all/"
    assert below("https://a.example/v2", "") == "https://a.example/v2"


def test_folders_are_named_from_where_commands_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    links = ("wheels", "/data/wheels", "https://a.example/index.html", "file:///my%20data")
    assert absolute(links) == (str(Path.cwd() / "wheels"), *links[1:3], "/my data")


PASSWORD = "s3cret"  # noqa: S105 - of a server of the test's own


class Guarded(SimpleHTTPRequestHandler):
    """A folder for whoever has a password; what does not exist is forbidden, as buckets say it."""

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - the base class's name
        """Say nothing."""

    def do_GET(self) -> None:
        pair = base64.b64encode(f"me:{PASSWORD}".encode()).decode()
        if self.headers.get("Authorization") != f"Basic {pair}":
            self.send_error(401)
        else:
            super().do_GET()


def wheels_in(folder: Path, make_wheel: MakeWheel) -> tuple[Path, Path]:
    """Write torch and rocm, and others' files beside them."""
    torch = make_wheel(
        folder, "torch", "2.10.0+rocm7.1", fields=[("Requires-Dist", "numpy"), ("Requires-Dist", "rocm")]
    )
    rocm = make_wheel(folder, "rocm", "7.1.0")
    make_wheel(folder, "numpy", "2.0")
    (folder / "therock-dist-linux.tar.gz").write_bytes(b"an archive, and no sdist")
    return torch, rocm


def index_of(root: Path, *wheels: Path) -> None:
    """Write pages of an index, without digests."""
    for wheel in wheels:
        page = root / "simple" / wheel.name.split("-")[0]
        page.mkdir(parents=True, exist_ok=True)
        (page / "index.html").write_text(f'<a href="../../dist/{wheel.name.replace("+", "%2B")}">x</a>')


def test_a_folder_a_page_and_an_index_offer_the_same(tmp_path: Path, make_wheel: MakeWheel) -> None:
    torch, rocm = wheels_in(tmp_path / "dist", make_wheel)
    index_of(tmp_path, torch, rocm)
    lines = [
        f'<a href="{one.name.replace("+", "%2B")}">{one.name}</a>' for one in (tmp_path / "dist").iterdir()
    ]
    (tmp_path / "dist" / "index.html").write_text("".join(lines))
    with served(tmp_path) as url:
        for source in (
            PackageSource(find_links=(str(tmp_path / "dist"),)),
            PackageSource(find_links=(f"{url}/dist/index.html",)),
            PackageSource(find_links=(str(tmp_path / "dist" / "index.html"),)),
            PackageSource(index_urls=(f"{url}/simple/",)),
        ):
            (one,) = source.offers("torch")
            assert (one.name, source.versions("torch")) == (torch.name, ("2.10.0+rocm7.1",))
            assert source.sealed(one).sha256 == files.sha256(torch)
            assert source.requires(one) == ("numpy", "rocm")
            assert source.versions("rocm") == ("7.1.0",)
            assert source.offers("torchvision") == ()
            assert source.offers("numpy") == (), "nothing of others is taken from there"


def test_yanked_versions_are_not_the_newest(tmp_path: Path) -> None:
    page = tmp_path / "index.html"
    page.write_text('<a href="rocm-7.1.0.tar.gz" data-yanked="broken">x</a><a href="rocm-7.0.0.tar.gz">x</a>')
    with served(tmp_path) as url:
        for place in (f"{url}/index.html", str(page)):
            assert PackageSource(find_links=(place,)).versions("rocm") == ("7.0.0",)


def test_what_does_not_answer_is_told_from_what_lacks_a_package(tmp_path: Path) -> None:
    (tmp_path / "simple").mkdir()
    with served(tmp_path) as url:
        source = PackageSource(index_urls=(f"{url}/simple/",), prefix="--rocm-")
        assert source.versions("rocm") == ()
        assert "There is no rocm at" in source.lacks("rocm").message
        assert "--rocm-index-url" in source.lacks("rocm").hint
        with pytest.raises(UsageError, match="--index-url file:///x is not an HTTP address"):
            PackageSource(index_urls=("file:///x",)).versions("rocm")
        with pytest.raises(MissingInputError, match=r"/nowhere/: it answers 404") as caught:
            PackageSource(index_urls=(f"{url}/nowhere/",)).versions("rocm")
        assert "--index-url" in caught.value.hint
        (tmp_path / "rocm").mkdir()
        (tmp_path / "rocm" / "index.html").write_text('<form></form><a href="/help/">Log in</a>')
        (tmp_path / "index.html").write_text('<a href="/help/">Help</a>')
        for name, why in (("rocm", "answers with a page that links to no"), ("torch", "names no project")):
            login = PackageSource(index_urls=(f"{url}/",))
            assert login.versions(name) == login.versions(f"{name}-sdk") == ()
            assert login.lacks(name).hint.count("is it an index?") == 1 + (name == "rocm")
            assert why in login.lacks(name).hint
    with pytest.raises(ServiceError, match="cannot be reached"):
        source.__class__(index_urls=(f"{url}/simple/",)).versions("rocm")
    with pytest.raises(MissingInputError, match="is neither a folder nor a page"):
        PackageSource(find_links=(str(tmp_path / "absent"),)).versions("rocm")


def test_an_address_that_refuses_is_named_with_its_setting(tmp_path: Path) -> None:
    with http.answering(partial(Guarded, directory=str(tmp_path))) as url:
        for source in (
            PackageSource(index_urls=(f"{url}/simple/",)),
            PackageSource(find_links=(f"{url}/index.html",)),
        ):
            with pytest.raises(MissingInputError, match=f"^{url}/.*: it answers 401") as caught:
                source.offers("rocm")
            assert "--run-id, --store" in caught.value.hint


def test_a_password_stays_with_this_process(
    tmp_path: Path, make_wheel: MakeWheel, monkeypatch: pytest.MonkeyPatch
) -> None:
    torch, rocm = wheels_in(tmp_path / "dist", make_wheel)
    index_of(tmp_path, torch, rocm)
    asked: list[str] = []
    monkeypatch.setattr(http._Handler, "log_request", lambda one, *_: asked.append(one.path))
    with http.answering(partial(Guarded, directory=str(tmp_path))) as url:
        secret = url.replace("//", f"//me:{PASSWORD}@")
        source = PackageSource(index_urls=(f"{secret}/simple/",))
        assert PASSWORD not in source.words
        chosen = [source.sealed(one) for name in ("torch", "rocm") for one in source.offers(name)]
        with source.opened(chosen) as sources:
            assert PASSWORD not in repr(sources)
            assert sources.no_index
            page = sources.find_links[0]
            with urlopen(page) as answer:  # noqa: S310 - of this test
                text = answer.read().decode()
            assert PASSWORD not in text
            assert f"{torch.name.replace('+', '%2B')}#sha256={files.sha256(torch)}" in text
            with urlopen(page.replace("index.html", torch.name.replace("+", "%2B"))) as answer:  # noqa: S310
                assert answer.read() == torch.read_bytes()
    assert len(asked) == 2


def test_sources_without_a_secret_are_handed_on_as_they_are() -> None:
    source = PackageSource(index_urls=("https://a", "https://b"), find_links=("/wheels",))
    with source.opened([]) as sources:
        named: Any = Sources(index_url="https://a", extra_index_urls=("https://b",), find_links=("/wheels",))
        assert sources == named
    assert PackageSource(find_links=("/wheels",)).direct.no_index
