"""Environments, and the sources that packages come from."""

import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from urllib.parse import quote

import pytest

from ci import install
from ci.install import InstallRequest, opened_dependency_index
from ci.install.dependencies import mirror
from core import process
from core.env.installer import Sources
from core.errors import EnvironmentSetupError, MissingInputError, WheelError
from core.http_server import served_store
from core.packages.groups import RunGroup
from core.packages.package_source import PackageSource
from core.run import RunOutputs
from core.stores import Store
from core.stores.directory import DirectoryStore
from tests.kit.machines import Answer, Call, VirtualEnvironment, answer_processes, target_in
from tests.kit.small_runs import GROUP, publish_wheel

# --- Where packages come from ----------------------------------------------------------------


@pytest.fixture
def group(store: Store, outputs: RunOutputs, tmp_path: Path) -> RunGroup:
    """A group of a run with a torch, and without pages."""
    publish_wheel(store, outputs, tmp_path / "dist")
    return RunGroup(store=store, outputs=outputs, name=GROUP)


def test_other_packages_come_from_the_persons_index_by_default(group: RunGroup) -> None:
    with opened_dependency_index(group) as sources:
        assert sources is None


def test_other_packages_come_from_the_named_index() -> None:
    with opened_dependency_index(None, url="https://deps/") as sources:
        assert sources == Sources(index_url="https://deps/")


def test_other_packages_come_from_the_stores_own_index(group: RunGroup) -> None:
    group.store.put_bytes(mirror().index_key, b"")

    with opened_dependency_index(group) as sources:
        assert sources is not None
        assert sources.index_url.startswith("http://127.0.0.1:")
        assert sources.index_url.endswith("/python-deps/simple/")


@pytest.fixture
def source(group: RunGroup) -> PackageSource:
    return group


def write_page(group: RunGroup, source: PackageSource) -> None:
    """Write the flat page of a group."""
    links = [f'<a href="{offer.name}#sha256={offer.sha256}">x</a>' for offer in source.listed]
    group.store.put_bytes(f"{group.prefix}/index.html", "".join(links).encode())


def test_waits_for_the_page_of_a_run(source: PackageSource) -> None:
    with (
        pytest.raises(MissingInputError, match=r"index\.html") as caught,
        source.opened(source.listed, wait=0),
    ):
        pass

    assert "torch-2.10" in caught.value.message


def test_builds_of_a_run_do_not_wait_for_its_page(source: PackageSource) -> None:
    with source.opened(source.listed) as sources:
        assert sources.find_links


def test_serves_a_store_of_this_machine(group: RunGroup, source: PackageSource) -> None:
    write_page(group, source)

    with source.opened(source.listed, wait=0) as sources:
        (page,) = sources.find_links
        assert page.startswith("http://127.0.0.1:")
        assert page.endswith(f"/{group.prefix}/index.html")
        assert sources.no_index


@pytest.fixture
def public_address(
    group: RunGroup,
    source: PackageSource,
    monkeypatch: pytest.MonkeyPatch,
) -> Iterator[str]:
    """The address at which all may read the store."""
    write_page(group, source)
    with served_store(group.store) as address:
        monkeypatch.setattr(DirectoryStore, "url_of", lambda _store, key: f"{address}/{quote(key)}")
        yield address


def test_reads_files_in_place_that_all_may_read(
    group: RunGroup,
    source: PackageSource,
    public_address: str,
) -> None:
    with source.opened(source.listed) as sources:
        assert sources.find_links == (f"{public_address}/{group.prefix}/index.html",)


def test_reads_through_the_store_where_nobody_answers(
    group: RunGroup,
    source: PackageSource,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    write_page(group, source)
    # Nobody listens on port 1.
    monkeypatch.setattr(DirectoryStore, "url_of", lambda _store, key: f"http://127.0.0.1:1/{quote(key)}")

    with source.opened(source.listed) as sources:
        assert not sources.find_links[0].startswith("http://127.0.0.1:1/")


# --- Names that are not ours -----------------------------------------------------------------


@pytest.mark.parametrize("requirement", ["newthing", "torch"], ids=["named", "required by another one"])
def test_names_the_file_for_a_package_of_the_run_that_is_not_one_of_ours(
    store: Store,
    outputs: RunOutputs,
    tmp_path: Path,
    requirement: str,
) -> None:
    publish_wheel(store, outputs, tmp_path / "dist", requires=["newthing"])
    publish_wheel(store, outputs, tmp_path / "dist", name="newthing", version="1")
    group = RunGroup(store=store, outputs=outputs, name=GROUP)
    request = InstallRequest(
        requirements=(requirement,),
        source=group,
        candidates=group.listed,
        locks_folder=tmp_path / "locks",
    )

    with pytest.raises(WheelError, match="newthing") as caught:
        install.choose(request, None, target_in(tmp_path / "venv"))

    assert str(Path("core/wheel/our_names.toml")) in caught.value.hint


# --- Environments ----------------------------------------------------------------------------


@pytest.fixture(scope="module")
def venv(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An environment of this Python."""
    folder = tmp_path_factory.mktemp("environments") / "venv"
    with install.environment(folder) as target:
        assert target.virtual
        assert target.prefix == folder
    return folder


@pytest.mark.processes
@pytest.mark.parametrize(("clean", "is_kept"), [(False, True), (True, False)])
def test_uses_an_environment_again_unless_it_is_to_be_made_anew(
    venv: Path,
    *,
    clean: bool,
    is_kept: bool,
) -> None:
    file = venv / "file"
    file.write_text("")

    with install.environment(venv, clean=clean) as target:
        assert target.version == sys.version.split()[0]
        assert file.exists() is is_kept


@pytest.mark.processes
def test_plans_for_the_environment_that_is_there(venv: Path) -> None:
    assert install.planned(venv).prefix == venv


@pytest.mark.processes
def test_an_empty_folder_becomes_an_environment(tmp_path: Path) -> None:
    with install.environment(tmp_path) as target:
        assert target.prefix == tmp_path


@pytest.mark.processes
def test_an_environment_leaves_nothing_beside_it(tmp_path: Path) -> None:
    with install.environment(tmp_path / "venv") as target:
        process.run([target.executable, "-c", "print('installed')"], quiet=True)

    assert [path.name for path in tmp_path.iterdir()] == ["venv"]
    logs = [path.read_text() for path in (tmp_path / "venv").glob("*.log")]
    assert ["installed" in log for log in logs] == [True]


@pytest.mark.processes
@pytest.mark.parametrize(
    "name",
    ["", ".".join(map(str, sys.version_info[:2])), sys.executable],
    ids=["none", "version", "path"],
)
def test_an_interpreter_is_named_by_path_or_version(name: str) -> None:
    assert install.base_python(name).exists()


@pytest.mark.processes
def test_refuses_a_python_that_is_not_there(tmp_path: Path) -> None:
    folder = tmp_path / "venv"

    with (
        pytest.raises(EnvironmentSetupError, match=r"3\.99"),
        install.environment(folder, python="3.99"),
    ):
        pass

    assert not folder.exists()


def make_folder_with_file(path: Path) -> Path:
    path.mkdir()
    file = path / "thesis.txt"
    file.write_text("years of work")
    return file


def make_file(path: Path) -> Path:
    path.write_text("years of work")
    return path


@pytest.mark.parametrize("make", [make_folder_with_file, make_file])
@pytest.mark.parametrize("clean", [False, True])
def test_never_wipes_what_is_no_environment(
    tmp_path: Path,
    make: Callable[[Path], Path],
    *,
    clean: bool,
) -> None:
    place = tmp_path / "thesis"
    file = make(place)

    with (
        pytest.raises(EnvironmentSetupError, match="left alone"),
        install.environment(place, clean=clean),
    ):
        pass

    assert file.read_text() == "years of work"


@pytest.mark.parametrize("clean", [False, True])
def test_does_not_plan_for_what_is_no_environment(tmp_path: Path, *, clean: bool) -> None:
    make_folder_with_file(tmp_path / "thesis")

    with pytest.raises(EnvironmentSetupError, match="left alone"):
        install.planned(tmp_path / "thesis", clean=clean)


def test_keeps_an_environment_of_another_python(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    venv = VirtualEnvironment(folder=tmp_path / "venv", python_version="3.12.1")
    (venv.python.parents[1] / "pyvenv.cfg").write_text("")
    other = VirtualEnvironment(folder=tmp_path / "other", python_version="3.13.0")
    other_python = other.python

    def answer(call: Call) -> Answer:
        if call.words[1:3] == ("python", "find"):
            return Answer(stdout=f"{other_python}\n")
        return other.run(call) if call.words[0] == str(other_python) else venv.run(call)

    answer_processes(monkeypatch, answer)

    with (
        pytest.raises(EnvironmentSetupError, match=r"3\.12") as caught,
        install.environment(venv.folder, python=str(other_python)),
    ):
        pass

    assert "3.13" in caught.value.message
    assert venv.python.exists()
