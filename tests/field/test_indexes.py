"""Indexes and stores of reports: what their pages list, and what installers then choose."""

from pathlib import Path
from typing import Any

import pytest

from core.errors import EnvironmentSetupError, StoreError
from core.packages.candidates import candidates_on_page
from core.packages.pages import flat_page
from core.packages.search import choose_packages
from core.packages.sources import linked_source
from core.stores.location import open_store
from core.stores.s3 import S3Store
from tests.kit.index_pages import index_wheels, pages_in, publish_wheels, yank
from tests.kit.machines import target_in
from tests.kit.memory_store import MemoryStore
from tests.kit.wheels import sha256, wheel_filename, write_wheel


@pytest.fixture
def memory() -> MemoryStore:
    """Return an empty store that has no pages under the names of folders."""
    return MemoryStore(folder_pages=False)


def torch_wheel(local_version: str) -> str:
    """Return the name of a wheel of one torch for some ROCm."""
    return wheel_filename(name="torch", version=f"2.12.0+{local_version}")


# https://github.com/ROCm/TheRock/issues/7183
# pip --upgrade went from rocm10.1 to rocm7.15: PEP 440 compares the segments as text.
def test_warns_where_installers_prefer_an_earlier_rocm(
    memory: MemoryStore, capsys: pytest.CaptureFixture[str]
) -> None:
    publish_wheels(memory, torch_wheel("rocm7.15.0"), torch_wheel("rocm10.1.0"))

    index_wheels(memory)

    warning = capsys.readouterr().err
    assert "2.12.0+rocm7.15.0 to 2.12.0+rocm10.1.0" in warning


def test_warns_of_no_earlier_rocm_that_is_yanked(
    memory: MemoryStore, capsys: pytest.CaptureFixture[str]
) -> None:
    publish_wheels(memory, torch_wheel("rocm7.15.0"), torch_wheel("rocm10.1.0"))
    yank(memory, {"torch==2.12.0+rocm7.15.0": "older"})

    index_wheels(memory)

    assert "Installers prefer" not in capsys.readouterr().err


# https://github.com/ROCm/TheRock/issues/1056
# rocmsdk20250603 came after rocm7.0.0rc20250715: of versions with other letters no order is known.
def test_warns_of_no_versions_of_another_scheme(
    memory: MemoryStore, capsys: pytest.CaptureFixture[str]
) -> None:
    publish_wheels(memory, torch_wheel("rocm7.0.0rc20250715"), torch_wheel("rocmsdk20250603"))

    index_wheels(memory)

    assert "Installers prefer" not in capsys.readouterr().err


# https://github.com/ROCm/TheRock/pull/777
# A plus sign in a link is a space for S3, which then has no such object.
def test_writes_the_plus_sign_of_versions_as_servers_read_it(memory: MemoryStore) -> None:
    publish_wheels(memory, torch_wheel("rocm7.15.0"))

    index_wheels(memory)

    for path, content in pages_in(memory).items():
        for line in content.decode().splitlines():
            assert 'href="' not in line or "+rocm" not in line.partition('href="')[2].partition('"')[0], path


# https://github.com/ROCm/TheRock/issues/4746
# The index had a rocm of a version of which it had no rocm-sdk-core.
def test_names_the_package_of_rocm_that_an_index_lacks(tmp_path: Path) -> None:
    write_wheel(tmp_path, name="torch", version="2.12.0", requires=["rocm-sdk-core==7.13.0a20260422"])
    write_wheel(tmp_path, name="rocm-sdk-core", version="7.13.0a20260421")

    with pytest.raises(EnvironmentSetupError) as raised:
        choose_packages(
            linked_source(str(tmp_path)),
            ["torch"],
            python=target_in(tmp_path / "env", version="3.12.4"),
            platform="linux",
        )

    for text in ("rocm-sdk-core==7.13.0a20260422", "torch-2.12.0", "7.13.0a20260421"):
        assert text in raised.value.message


# https://github.com/opendatahub-io/notebooks/pull/3534, https://github.com/python-wheel-build/fromager/issues/318
# An index has torch-2.10.0-17 to torch-2.10.0-20 for one ROCm, and installers take the last build.
@pytest.mark.parametrize("builds", [["9", "10", ""], ["10", "9"], ["", "1"]])
def test_chooses_the_last_build_of_a_version(tmp_path: Path, builds: list[str]) -> None:
    links = ""
    for build in builds:
        name = f"torch-2.10.0-{build}-py3-none-any.whl" if build else "torch-2.10.0-py3-none-any.whl"
        write_wheel(tmp_path, name="torch", version="2.10.0").rename(tmp_path / name)
        links += f'<a href="{name}">{name}</a>'
    (tmp_path / "index.html").write_text(links)

    selection = choose_packages(
        linked_source(str(tmp_path / "index.html")),
        ["torch"],
        python=target_in(tmp_path / "env", version="3.12.4"),
        platform="linux",
    )

    last_build = max(builds, key=lambda build: int(build or 0))
    assert selection.files[0].name == f"torch-2.10.0-{last_build}-py3-none-any.whl"


# https://github.com/sjtug/mirror-clone/pull/153
# A mirror wrote &amp;gt; for &gt;, and uv skipped every file that says which Pythons it is for.
def test_escapes_what_a_page_says_of_pythons_once(tmp_path: Path) -> None:
    text = '<a href="torch-2.12.0-py3-none-any.whl#sha256=ab" data-requires-python="&gt;=3.10">torch</a>'

    (torch,) = candidates_on_page(text, tmp_path.as_uri())

    assert torch.requires_python == ">=3.10"
    assert b'data-requires-python="&gt;=3.10"' in flat_page([torch])


# https://github.com/pypa/pip/pull/10847
# Most pages are no HTML 5 documents: no doctype, tags that are not closed, attributes in capitals.
def test_reads_pages_that_are_no_html_5_documents() -> None:
    text = "<HTML><A HREF='torch-2.12.0-py3-none-any.whl' DATA-YANKED>torch<br><a href=rocm-7.1.0.tar.gz>rocm"

    torch, rocm = candidates_on_page(text, "https://index.example/dist/")

    assert torch.yanked
    assert rocm.url == "https://index.example/dist/rocm-7.1.0.tar.gz"


# https://github.com/boto/boto3/issues/4398
# boto3 sends checksums behind the body, in chunks without a length, which servers other than Amazon's refuse.
def test_sends_objects_with_their_length_to_every_server(s3: Any, tmp_path: Path) -> None:
    assert s3.list_buckets()["Buckets"]
    store = open_store("s3://bucket", root=tmp_path)
    assert isinstance(store, S3Store)
    file = tmp_path / "torch.whl"
    file.write_bytes(b"wheel")
    requests: list[Any] = []
    client: Any = store.connection.client
    client.meta.events.register("before-send.s3", lambda request, **_event: requests.append(request))

    store.put_file("r/torch.whl", file, sha256=sha256(file), replace=False)
    store.put_bytes("r/index.html", b"page")

    puts = [request for request in requests if request.method == "PUT"]
    assert len(puts) == 2
    for put in puts:
        assert "Content-Length" in put.headers
        assert "Transfer-Encoding" not in put.headers
        assert "x-amz-trailer" not in put.headers


# https://github.com/ROCm/rocm-libraries/issues/865
# Several jobs uploaded to one place, and tests installed what another job had left there.
def test_no_job_replaces_what_another_one_uploaded(tmp_path: Path) -> None:
    store = open_store(str(tmp_path / "store"), root=tmp_path)
    for name in ("first", "second"):
        (tmp_path / name).write_text(name)
    store.put_file("17/lib.whl", tmp_path / "first", sha256=sha256(tmp_path / "first"), replace=False)

    with pytest.raises(StoreError, match="17/lib"):
        store.put_file("17/lib.whl", tmp_path / "second", sha256=sha256(tmp_path / "second"), replace=False)
