import sys
from collections.abc import Callable
from pathlib import Path
from urllib.parse import quote

import pytest

from ci import install
from ci.install import others_index
from ci.install.dependencies import mirror
from core.env.installer import Sources
from core.errors import EnvironmentSetupError, MissingInputError
from core.http import served_store
from core.packages import Offer, RunGroup
from core.packages.sources import PackageSource
from core.run import RunOutputs
from core.run.records import FileRecord
from core.stores import Store
from core.stores.directory import DirectoryStore


@pytest.fixture(name="group")
def group_fixture(store: Store, outputs: RunOutputs, publish: Callable[..., FileRecord]) -> RunGroup:
    publish("torch", "2.10.0+rocm7.1")
    return RunGroup(store=store, outputs=outputs, name="g")


def test_others_come_from_the_index_that_is_named_the_stores_own_or_the_persons(group: RunGroup) -> None:
    with others_index(group, "") as theirs:
        assert theirs is None
    with others_index(None, "https://deps/") as theirs:
        assert theirs == Sources(index_url="https://deps/")
    group.store.put_bytes(mirror().index_key, b"")
    with others_index(group, "") as theirs:
        assert theirs is not None
        assert theirs.index_url.endswith("/python-deps/simple/")
        assert theirs.index_url.startswith("http://127.0.0.1:")


def write_flat(group: RunGroup, *offers: Offer) -> None:
    links = "".join(f'<a href="{one.name}#sha256={one.sha256}">x</a>' for one in offers)
    group.store.put_bytes(f"{group.prefix}/index.html", links.encode())


def test_a_store_of_this_machine_is_served_and_its_page_waited_for(group: RunGroup) -> None:
    source = PackageSource(group=group)
    lacking = r"(?s)does not list.*/out/17-linux/python/g/index.html: .*torch-2\.10"
    with pytest.raises(MissingInputError, match=lacking), source.opened(source.listed, wait=0):
        pass
    with source.opened(source.listed) as sources:
        assert sources.find_links, "builds of the run come before its pages"
    write_flat(group, *source.listed)
    with source.opened(source.listed, wait=0) as sources:
        (page,) = sources.find_links
        assert page.startswith("http://127.0.0.1:")
        assert page.endswith(f"/{group.prefix}/index.html")
        assert sources.no_index


def test_files_that_all_may_read_are_read_in_place(group: RunGroup, monkeypatch: pytest.MonkeyPatch) -> None:
    source = PackageSource(group=group)
    write_flat(group, *source.listed)
    with served_store(group.store) as public:
        monkeypatch.setattr(DirectoryStore, "url_of", lambda _self, key: f"{public}/{quote(key)}")
        with source.opened(source.listed) as sources:
            assert sources.find_links == (f"{public}/{group.prefix}/index.html",)
    with source.opened(source.listed) as sources:
        assert not sources.find_links[0].startswith(public), "nobody answers there: read through the store"


@pytest.fixture(name="made")
def made_fixture(tmp_path: Path) -> Path:
    with install.environment(tmp_path / "venv") as target:
        assert target.virtual
        assert target.prefix == tmp_path / "venv"
    return tmp_path / "venv"


@pytest.mark.processes
def test_an_environment_is_made_used_again_and_made_anew_when_asked(made: Path) -> None:
    stray = made / "stray"
    stray.write_text("")
    for clean in (False, True):
        with install.environment(made, clean=clean) as target:
            assert target.version == sys.version.split()[0]
            assert stray.exists() is not clean
    assert install.planned(made).prefix == made


@pytest.mark.processes
def test_an_interpreter_is_named_by_path_or_version(tmp_path: Path) -> None:
    version = ".".join(map(str, sys.version_info[:2]))
    assert install.base_python("") == Path(sys.executable)
    assert install.base_python(version).exists()
    assert install.base_python(sys.executable).exists()
    missing = pytest.raises(EnvironmentSetupError, match=r"There is no Python 3\.99 on this machine")
    with missing, install.environment(tmp_path / "venv", python="3.99"):
        pass
    assert not (tmp_path / "venv").exists()
    # an empty folder becomes an environment
    empty = tmp_path / "empty"
    empty.mkdir()
    with install.environment(empty) as target:
        assert target.prefix == empty


def folder_with_a_file(path: Path) -> None:
    path.mkdir()
    (path / "thesis.txt").write_text("years of work")


@pytest.mark.parametrize("make", [folder_with_a_file, lambda path: path.write_text("years of work")])
@pytest.mark.parametrize("clean", [False, True])
@pytest.mark.processes
def test_what_is_none_is_never_wiped(tmp_path: Path, make: Callable[[Path], object], *, clean: bool) -> None:
    place = tmp_path / "thesis"
    make(place)
    with (
        pytest.raises(EnvironmentSetupError, match="is not a virtual environment; it is left alone"),
        install.environment(place, clean=clean),
    ):
        pass
    assert "years of work" in (place if place.is_file() else place / "thesis.txt").read_text()
    with pytest.raises(EnvironmentSetupError, match="left alone"):
        install.planned(place, clean=clean)


@pytest.mark.processes
def test_one_of_another_python_is_kept_unless_made_anew(made: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (made / "other").write_text("")
    other = "3.12" if sys.version_info[:2] != (3, 12) else "3.13"
    asked: list[str] = []

    def interpreter(python: Path) -> object:
        asked.append(str(python))
        return type("Other", (), {"series": other})()

    monkeypatch.setattr(install, "base_python", lambda python: Path(f"/usr/bin/python{python}"))
    monkeypatch.setattr(
        install, "_inspected", lambda _: type("Target", (), {"series": "3.1", "version": "3.1.0"})()
    )
    monkeypatch.setattr(install, "interpreter", interpreter)
    with (
        pytest.raises(EnvironmentSetupError, match=rf"is an environment of Python 3\.1, not of {other}"),
        install.environment(made, python=other),
    ):
        pass
    assert asked == [f"/usr/bin/python{other}"]
    assert (made / "other").exists()
