from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from ci.install import Devices
from ci.verbs import fetch_wheels
from ci.verbs.fetch_wheels import closure, command, dependencies, fetch
from core.errors import MissingInputError, StoreError
from core.packages import Offer, RunGroup, offered
from core.run import RunOutputs, records
from core.stores import Store
from core.wheel import distributions
from tests.conftest import MakeWheel
from tests.kit.front_doors import run_ci


@pytest.fixture(name="group")
def group_fixture(store: Store, outputs: RunOutputs, publish: Callable[..., records.FileRecord]) -> RunGroup:
    """A run with torch for two Pythons, what it requires, and something else."""
    fields = [("Requires-Dist", one) for one in ("triton==3.6", "numpy>=2", "apex; extra == 'x'")]
    publish("torch", "2.10", tag="cp312-cp312-linux_x86_64", fields=fields)
    publish("torch", "2.11", tag="cp311-cp311-linux_x86_64", fields=fields)
    publish("triton", "3.6")
    publish("apex", "1")
    return RunGroup(store=store, outputs=outputs, name="g")


def names(found: Any) -> list[str]:
    return [f"{one.distribution} {one.version}" for one in found]


def test_files_are_fetched_once_and_kept_by_their_digest(group: RunGroup, tmp_path: Path) -> None:
    wanted = offered(group)
    assert {*fetch(group, wanted, tmp_path / "wheels")} == {one.name for one in wanted}
    for one in wanted:
        assert (tmp_path / "wheels" / one.name).read_bytes() == group.store.read(one.key)
    (tmp_path / "wheels" / wanted[0].name).write_bytes(b"half of it")
    assert fetch(group, wanted, tmp_path / "wheels") == [wanted[0].name]


def test_a_file_that_is_not_the_recorded_one_never_gets_its_name(group: RunGroup, tmp_path: Path) -> None:
    one = offered(group)[0]
    (Path(group.store.url) / one.key).unlink()
    (Path(group.store.url) / one.key).write_bytes(b"somebody else's")
    with pytest.raises(StoreError, match="is not the file that its record names"):
        fetch(group, [one], tmp_path / "wheels")
    assert list((tmp_path / "wheels").glob("*.whl")) == []
    assert list((tmp_path / "wheels").glob(".*.part")) == []


def test_a_strangers_file_of_the_version_is_not_left_beside_ours(group: RunGroup, tmp_path: Path) -> None:
    one = next(one for one in offered(group) if one.distribution == "torch")
    (tmp_path / "wheels").mkdir()
    stranger = tmp_path / "wheels" / f"Torch-{one.version}-1-py3-none-any.whl"
    stranger.touch()
    with pytest.raises(StoreError, match="an installer would take it"):
        fetch(group, [one], tmp_path / "wheels")
    stranger.rename(stranger.with_name("torch-0.1-py3-none-any.whl"))
    assert fetch(group, [one], tmp_path / "wheels"), "other versions do no harm"


def test_what_is_named_comes_with_what_it_requires_of_the_run(group: RunGroup) -> None:
    offers = offered(group)
    assert names(closure(group, offers, ["torch==2.10"])) == ["torch 2.10", "triton 3.6"]
    assert names(closure(group, offers, ["apex"])) == ["apex 1"]


def test_rocm_decides_what_it_requires_where_it_is_installed_so_all_of_it_comes(group: RunGroup) -> None:
    rocm = [
        Offer(name="rocm-7.1.tar.gz", distribution="rocm", version="7.1"),
        Offer(name="rocm-7.2.tar.gz", distribution="rocm", version="7.2"),
    ]
    apex = next(one for one in offered(group) if one.distribution == "apex")
    key = f"{group.prefix}/rocm_sdk_core-7.1-py3-none-any.whl"
    group.store.put_bytes(f"{key}.metadata", b"Name: rocm-sdk-core\n")
    core = Offer(name=Path(key).name, distribution="rocm-sdk-core", version="7.1", key=key)
    expected = ["rocm 7.1", "rocm-sdk-core 7.1"]
    assert names(closure(group, [*rocm, core, apex], ["rocm[libraries]==7.1"])) == expected


def mirrored(store: Store, folder: Path, make_wheel: MakeWheel, *wheels: tuple[str, str, str]) -> None:
    """Put wheels into a store's dependencies' index, as `mirror_deps` does."""
    put = []
    for name, version, tag in wheels:
        path = make_wheel(folder / "deps", name, version, tag=tag)
        one = distributions.publish(store, _Deps("windows" if "win" in tag else "linux"), "", path)  # type: ignore[arg-type]
        put.append(one)
    made = records.Record(
        stage="mirror_deps", run_id="local", platform="linux", started="x", seconds=0, files=tuple(put)
    )
    store.put_bytes("python-deps/manifests/mirror_deps-1.json", records.serialize(made))


class _Deps:
    immutable, prefix = True, "python-deps"

    def __init__(self, platform: str) -> None:
        self.platform = platform

    def python_prefix(self, _group: str) -> str:
        return "python-deps"


def test_dependencies_come_from_the_stores_own_index_for_the_python_and_platform(
    group: RunGroup, tmp_path: Path, make_wheel: MakeWheel
) -> None:
    wanted = closure(group, offered(group), ["torch==2.10"])
    with pytest.raises(MissingInputError, match="has no dependencies' index") as caught:
        dependencies(group, wanted, "cp312")
    assert "nox -s mirror_deps" in caught.value.hint
    mirrored(
        *(group.store, tmp_path, make_wheel),
        ("numpy", "2.1", "cp312-cp312-manylinux_2_28_x86_64"),
        ("numpy", "2.2", "cp311-cp311-manylinux_2_28_x86_64"),
        ("numpy", "2.3", "cp312-cp312-win_amd64"),
        ("sympy", "1", "py3-none-any"),
        ("setuptools", "80", "py3-none-any"),
    )
    assert names(dependencies(group, wanted, "cp312")) == ["numpy 2.1"]
    assert names(dependencies(group, wanted, "")) == ["numpy 2.1", "numpy 2.2"]
    sdist = Offer(name="rocm-7.1.tar.gz", distribution="rocm", version="7.1")
    assert names(dependencies(group, [sdist], "cp312")) == ["setuptools 80"]


def test_the_command_pins_what_a_person_asks_for() -> None:
    offers = [
        Offer(name="rocm-7.1.tar.gz", distribution="rocm", version="7.1"),
        Offer(name="rocm_sdk_core-7.1-py3-none-any.whl", distribution="rocm-sdk-core", version="7.1"),
        Offer(name="torch-2-cp312-cp312-linux_x86_64.whl", distribution="torch", version="2+rocm7.1"),
        Offer(name="torch-2-cp311-cp311-linux_x86_64.whl", distribution="torch", version="2+rocm7.1"),
    ]
    folder = Path("/tmp/my wheels")  # noqa: S108 - nothing is written
    start = "pip install --no-index --find-links '/tmp/my wheels'"
    first = "pip install setuptools wheel 'numpy>=2' && "
    more = "--no-cache-dir --no-build-isolation rocm==7.1 torch==2+rocm7.1"
    assert command(folder, offers, (), ["numpy>=2"]) == f"{first}{start} {more}"
    offers.append(Offer(name="setuptools-80-py3-none-any.whl", distribution="setuptools", version="80"))
    assert command(folder, offers) == f"{start} --no-cache-dir rocm==7.1 torch==2+rocm7.1 setuptools==80"
    offers.pop()
    assert command(folder, offers[1:]) == f"{start} rocm-sdk-core==7.1 torch==2+rocm7.1"
    assert command(folder, offers[1:], ["torch==2+rocm7.1"]) == f"{start} torch==2+rocm7.1"


def test_the_command_names_device_packages_too() -> None:
    folder, start = Path("wheels"), "pip install --no-index --find-links wheels"
    versions = dict.fromkeys(("rocm", "rocm-sdk-libraries", "rocm-sdk-device-gfx942"), "7.1")
    versions |= dict.fromkeys(("torch", "amd-torch-device-gfx942"), "2")
    offers = [Offer(name=f"{name}.whl", distribution=name, version=of) for name, of in versions.items()]
    torch, rocm = "amd-torch-device-gfx942==2", "rocm-sdk-device-gfx942==7.1"
    assert command(folder, offers, ["torch==2"]) == f"{start} torch==2 {torch} {rocm}"
    assert command(folder, offers) == f"{start} 'rocm[libraries]==7.1' {rocm} torch==2 {torch}"


def test_device_packages_of_the_targets_come_with_what_is_named(group: RunGroup) -> None:
    names_of = ("rocm-sdk-device-gfx942", "rocm-sdk-device-gfx950", "rocm-sdk-libraries", "rocm-sdk-core")
    offers = [
        Offer(name="rocm-7.1.tar.gz", distribution="rocm", version="7.1"),
        *(Offer(name=f"{one}.whl", distribution=one, version="7.1", key=one) for one in names_of),
    ]
    for one in names_of:
        requires = "Requires-Dist: rocm-sdk-core==7.1\n" if one == "rocm-sdk-libraries" else ""
        group.store.put_bytes(f"{one}.metadata", f"Name: {one}\n{requires}".encode())
    devices = Devices(family="gfx94X-dcgpu", targets=("gfx942",))
    expected = ["rocm-sdk-core 7.1", "rocm-sdk-device-gfx942 7.1", "rocm-sdk-libraries 7.1"]
    assert names(closure(group, offers, ["rocm-sdk-libraries==7.1"], devices)) == expected
    with pytest.raises(MissingInputError, match="no rocm-sdk-device-gfx1100"):
        closure(group, offers, ["rocm[libraries]"], replace(devices, targets=("gfx1100",), exact=True))


@pytest.mark.usefixtures("group")
def test_the_verb_fetches_what_is_asked_for(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    where = ("--run-id", "17", "--store", str(tmp_path / "out"), "--output-dir", str(tmp_path / "w"))
    assert run_ci("fetch-wheels", *where, "--packages", "torch==2.10", "--dry-run") == 0
    assert not (tmp_path / "w").exists()
    assert run_ci("fetch-wheels", *where, "--packages", "torch tritom") == MissingInputError.exit_code
    assert "has no tritom. Did you mean 'triton'?" in capfd.readouterr().err
    assert run_ci("fetch-wheels", *where, "--packages", "torch==2.10") == 0
    assert {path.name.partition("-")[0] for path in (tmp_path / "w").glob("*.whl")} == {"torch", "triton"}
    assert "pip install 'numpy>=2' && pip install --no-index --find-links" in capfd.readouterr().err
    assert run_ci("fetch-wheels", *where) == 0
    assert len(list((tmp_path / "w").glob("*.whl"))) == 4
    assert "4 files in" in capfd.readouterr().err


@pytest.mark.usefixtures("group")
def test_only_what_is_for_a_python_is_fetched(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fetch_wheels, "base_python", Path)
    monkeypatch.setattr(fetch_wheels, "interpreter", lambda _: type("Target", (), {"tag": "cp312"})())
    where = ("--run-id", "17", "--store", str(tmp_path / "out"), "--output-dir", str(tmp_path / "w"))
    assert run_ci("fetch-wheels", *where, "--python", "3.12") == 0
    assert sorted(path.name.split("-")[1] for path in (tmp_path / "w").glob("torch*.whl")) == ["2.10"]
