from __future__ import annotations

import json
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest

from ci.clients import run_install
from ci.clients.device_packages import Devices
from ci.clients.run_install import (
    MARKER,
    Chosen,
    Wanted,
    beside_page,
    calls,
    install,
    run_place,
    split,
    two_indexes,
)
from ci.mirror_data import mirror
from core import installer, process, records
from core.errors import CheckError, EnvironmentSetupError, MissingInputError
from core.installer import Sources
from core.offers import Offer, RunGroup, offered
from core.resolving import Resolved, ResolvedFile
from core.store_server import served_store
from core.stores.directory import DirectoryStore

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from core.outputs import RunOutputs
    from core.records import FileRecord
    from core.stores import Store

A, B, C = "a" * 64, "b" * 64, "c" * 64
OFFERS = (
    Offer(name="torch-2-py3-none-any.whl", distribution="torch", version="2", sha256=A, size=9),
    Offer(name="rocm-7.tar.gz", distribution="rocm", version="7", sha256=B, size=5),
)
MINE = Sources(index_url="https://mine/simple")


@pytest.fixture(autouse=True)
def _own_configuration(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(run_install, "configured", lambda: MINE)


def resolved(name: str, version: str, sha256: str, url: str = "") -> Resolved:
    return Resolved(name=name, version=version, files=(ResolvedFile(filename=name, url=url, sha256=sha256),))


def test_files_are_told_apart_by_digest() -> None:
    numpy, torch = resolved("numpy", "2", C), resolved("torch", "2", A)
    assert split([numpy, torch], OFFERS, mirror().is_ours) == Chosen(ours=(torch,), theirs=(numpy,))


def test_of_several_files_the_runs_own_is_kept() -> None:
    own = ResolvedFile(filename="torch", url="", sha256=A)
    other = ResolvedFile(filename="torch", url="", sha256=C)
    both = Resolved(name="torch", version="2", files=(other, own))
    assert split([both], OFFERS, mirror().is_ours).ours[0].files == (own,)


@pytest.mark.parametrize(
    ("name", "held"), [("torch", r"\(on offer: 2\)"), ("rocm-sdk-core", "which is not on offer")]
)
def test_another_indexs_package_of_our_name_is_refused(name: str, held: str) -> None:
    with pytest.raises(EnvironmentSetupError, match=rf"{name} 99 would come from https://public/.*{held}"):
        split([resolved(name, "99", C, "https://public/x.whl")], OFFERS, mirror().is_ours)


def test_the_same_version_with_other_bytes_is_refused() -> None:
    with pytest.raises(EnvironmentSetupError, match="torch 2 would come from"):
        split([resolved("torch", "2", C, "https://public/x.whl")], OFFERS, mirror().is_ours)


def test_a_page_without_digests_is_held_to_its_addresses() -> None:
    url = "https://page/torch-2%2Brocm-py3-none-any.whl"
    offers = [Offer(name="torch", distribution="torch", version="2", url=url)]
    assert split([resolved("torch", "2", C, f"{url}#x")], offers, mirror().is_ours).ours
    with pytest.raises(EnvironmentSetupError, match="torch 2 would come from https://public"):
        split([resolved("torch", "2", C, "https://public/x.whl")], offers, mirror().is_ours)


DEVICES = Devices(family="gfx94X-dcgpu", targets=("gfx942",))


def wanted_of(tmp_path: Path, **facts: Any) -> Wanted:
    values = {"requirements": ("torch==2",), "offers": OFFERS, "devices": DEVICES, "locks": tmp_path}
    return Wanted(**{**values, **facts})


def test_each_side_is_installed_from_its_own_side_by_digest(tmp_path: Path) -> None:
    place = two_indexes("https://deps/", "https://run/simple/", "/ca.pem")
    chosen = Chosen(ours=(resolved("torch", "2", A),), theirs=(resolved("numpy", "2", C),))
    theirs, ours = calls(wanted_of(tmp_path), place, chosen)
    assert theirs.sources == Sources(index_url="https://deps/", cert="/ca.pem")
    assert ours.sources == Sources(index_url="https://run/simple/", cert="/ca.pem")
    assert theirs.files[0].read_text() == f"numpy==2 --hash=sha256:{C}\n"
    assert ours.files[0].read_text() == f"torch==2 --hash=sha256:{A}\n"
    assert all(call.hashed and not call.dependencies for call in (theirs, ours))
    assert (theirs.build_isolation, ours.build_isolation) == (True, False)
    assert ours.config_settings == ("gpu-family=gfx94X-dcgpu",)
    assert ours.env == {"ROCM_SDK_TARGET_FAMILY": "gfx94X-dcgpu"}


def test_a_side_without_files_is_not_called(tmp_path: Path) -> None:
    place = beside_page("https://run/index.html", "")
    (call,) = calls(
        wanted_of(tmp_path, devices=Devices()), place, Chosen(ours=(resolved("torch", "2", A),), theirs=())
    )
    assert call.sources == Sources(find_links=("https://run/index.html",), no_index=True)
    assert (call.config_settings, call.env) == ((), {})


def test_beside_a_page_others_come_from_the_persons_configuration_or_the_named_index() -> None:
    page = "https://run/index.html"
    assert beside_page(page, "").theirs is None
    assert beside_page(page, "").both == MINE.with_find_links(page)
    named = beside_page(page, "", "https://deps/")
    assert named.theirs == Sources(index_url="https://deps/")
    assert named.both == Sources(index_url="https://deps/", find_links=(page,))


class _Target:
    def __init__(self, prefix: Path) -> None:
        self.prefix = prefix
        self.executable = prefix / "bin" / "python"


@pytest.fixture(name="done")
def done_fixture(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """What is done to an environment, in order."""
    done: list[Any] = []

    def resolve(question: Any) -> list[Resolved]:
        done.append(question)
        return [resolved("torch", "2", A)]

    monkeypatch.setattr(installer, "install", lambda _target, call, **_: done.append(call))
    monkeypatch.setattr(installer, "missing_dependencies", lambda _target: [])
    monkeypatch.setattr(installer, "uv_program", lambda: "uv")
    monkeypatch.setattr(process, "run", lambda argv, **_: done.append(list(map(str, argv))))
    monkeypatch.setattr(run_install, "resolve", resolve)
    return done


PLACE = two_indexes("https://deps/", "https://run/simple/", "")


def test_what_builds_sdists_comes_first_and_files_are_known_before_one_is_installed(
    tmp_path: Path, done: list[Any]
) -> None:
    target: Any = _Target(tmp_path / "venv")
    chosen = install(target, wanted_of(tmp_path), PLACE)
    setuptools, question, uninstall, call = done
    assert (setuptools.requirements, setuptools.sources) == (("setuptools",), PLACE.theirs)
    assert (question.unisolated, question.pre_names) == (("rocm",), ("rocm", "torch"))
    assert question.constraints == ("rocm==7", "torch==2")
    assert (question.sources, question.exact) == (PLACE.both, True)
    assert uninstall[-1] == "torch"
    assert call.hashed
    assert [one.name for one in chosen.ours] == ["torch"]
    assert json.loads((tmp_path / "venv" / MARKER).read_text()) == {"torch": A}


def test_a_run_of_wheels_alone_needs_nothing_to_build_with(tmp_path: Path, done: list[Any]) -> None:
    target: Any = _Target(tmp_path / "venv")
    install(target, wanted_of(tmp_path, offers=OFFERS[:1]), PLACE)
    assert len(done) == 3
    assert done[0].unisolated == ()


def test_only_a_distribution_of_another_file_is_taken_out_first(tmp_path: Path, done: list[Any]) -> None:
    target: Any = _Target(tmp_path / "venv")
    for sha256, taken_out in ((B, True), (A, False)):
        done.clear()
        (tmp_path / "venv").mkdir(exist_ok=True)
        (tmp_path / "venv" / MARKER).write_text(json.dumps({"torch": sha256}))
        install(target, wanted_of(tmp_path), PLACE)
        assert any(isinstance(one, list) for one in done) is taken_out


def test_an_environment_that_does_not_fit_together_is_no_success(
    tmp_path: Path, done: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(installer, "missing_dependencies", lambda _target: ["The package torch requires x"])
    target: Any = _Target(tmp_path / "venv")
    with pytest.raises(CheckError, match="do not fit together:\nThe package torch requires x"):
        install(target, wanted_of(tmp_path), PLACE)
    assert done


@pytest.fixture(name="group")
def group_fixture(store: Store, outputs: RunOutputs, publish: Callable[..., FileRecord]) -> RunGroup:
    publish("torch", "2.10.0+rocm7.1")
    return RunGroup(store=store, outputs=outputs, name="g")


def write_flat(group: RunGroup, *offers: Offer) -> None:
    links = "".join(f'<a href="{one.name}#sha256={one.sha256}">x</a>' for one in offers)
    group.store.put_bytes(f"{group.prefix}/index.html", links.encode())


def test_a_store_of_this_machine_is_served_and_its_page_waited_for(group: RunGroup) -> None:
    offers = offered(group)
    with (
        pytest.raises(
            MissingInputError, match=r"(?s)does not list.*/out/17-linux/python/g/index.html: .*torch-2\.10"
        ),
        run_place(group, offers, wait=0),
    ):
        pass
    write_flat(group, *offers)
    with run_place(group, offers, wait=0) as place:
        (page,) = place.ours.find_links
        assert page.startswith("http://127.0.0.1:")
        assert page.endswith(f"/{group.prefix}/index.html")
        assert place.theirs is None


def test_with_a_dependencies_index_both_are_named_once_each_lists_what_it_must(group: RunGroup) -> None:
    offers = offered(group)
    write_flat(group, *offers)
    group.store.put_bytes(mirror().index_key, b"")
    simple = f"{group.prefix}/simple"
    group.store.put_bytes(f"{simple}/index.html", b"")
    with (
        pytest.raises(MissingInputError, match=r"/simple/torch/: it answers 404"),
        run_place(group, offers, wait=0),
    ):
        pass
    page = group.store.read(f"{group.prefix}/index.html")
    group.store.put_bytes(f"{simple}/torch/index.html", page)
    with run_place(group, offers, wait=0) as place:
        assert place.theirs is not None
        assert place.theirs.index_url.endswith("/python-deps/simple/")
        assert place.both.extra_index_urls == (place.ours.index_url,)
        assert place.ours.index_url.endswith(f"/{simple}/")


def test_the_local_runs_pages_are_made_of_its_records(group: RunGroup, record_of: Any) -> None:
    local = replace(group, outputs=replace(group.outputs, run_id="local"))
    (one,) = offered(group)
    key = f"{local.prefix}/{one.name}"
    group.store.put_bytes(key, group.store.read(one.key))
    group.store.put_bytes(f"{local.prefix}/index.html", b"an older page")
    made = record_of(
        records.FileRecord(
            name=one.name, key=key, size=one.size, sha256=one.sha256, distribution="torch", version="2"
        )
    )
    records.write(group.store, local.outputs, "g", made)
    with run_place(local, offered(local), wait=0) as place:
        assert place.ours.no_index


def test_files_that_everybody_may_read_are_read_where_they_lie(
    group: RunGroup, monkeypatch: pytest.MonkeyPatch
) -> None:
    offers = offered(group)
    write_flat(group, *offers)
    with served_store(group.store) as public:
        monkeypatch.setattr(DirectoryStore, "url_of", lambda _self, key: f"{public}/{key}")
        with run_place(group, offers, wait=0) as place:
            assert place.ours.find_links == (f"{public}/{group.prefix}/index.html",)
    monkeypatch.setattr(DirectoryStore, "url_of", lambda _self, key: f"{public}/{key}")
    with run_place(group, offers, wait=0) as place:
        assert place.ours.find_links[0].startswith("http://127.0.0.1:")
        assert not place.ours.find_links[0].startswith(public), "nobody answers there: read through the store"
