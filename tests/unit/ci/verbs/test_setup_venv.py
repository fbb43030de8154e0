from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from ci import install
from ci.install import Chosen
from core.env.installer import Sources
from core.errors import MissingInputError
from core.packages import Offer
from tests.kit.front_doors import run_ci
from tests.kit.servers import served
from tests.unit.ci.conftest import Lab

A = "a" * 64


class Target:
    tag, series, version = "cp312", "3.12", "3.12.1"
    prefix, executable, scripts = Path("/env"), Path("/env/bin/python"), Path("/env/bin")


@pytest.fixture(name="calls", autouse=True)
def calls_fixture(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> list[Any]:
    """What is made and installed."""
    calls: list[Any] = []
    chosen = Chosen(ours=(Offer(name="t", distribution="torch", version="2", sha256=A, url="/t"),), theirs=())

    @contextmanager
    def environment(folder: Path, **options: Any) -> Iterator[Target]:
        calls.append(("made", folder.name, options))
        yield Target()

    def install_chosen(_target: Target, wanted: Any, *rest: Any) -> None:
        calls.append(("installed", wanted, rest))

    def choose(wanted: Any, *_: Any) -> Chosen:
        own = tuple(one for one in wanted.offers if one.key)
        return Chosen(ours=own, theirs=()) if own else chosen

    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(install, "environment", environment)
    monkeypatch.setattr(install, "planned", lambda *_, **__: Target())
    monkeypatch.setattr(install, "install_chosen", install_chosen)
    monkeypatch.setattr(install, "choose", choose)
    monkeypatch.setattr(install, "detect", lambda: ())
    return calls


def front(*words: str) -> int:
    return run_ci("setup-venv", ".venv", *words)


def test_a_runs_packages_are_pinned_and_installed(lab: Lab, calls: list[Any]) -> None:
    lab.publish("torch", "2.10.0+rocm7.1", group="gfx94X-dcgpu-asan")
    lab.publish("torch", "2.9.0", group="gfx94X-dcgpu-asan", tag="cp311-cp311-linux_x86_64")
    prefix = lab.root / "out/17-linux/python/gfx94X-dcgpu-asan"
    (wheel,) = prefix.glob("torch-2.10*.whl")
    (prefix / "index.html").write_text(f'<a href="{wheel.name}">')
    store = ("--store", str(lab.root / "out"))
    assert (
        front("--packages", "torch numpy", "--from-run-id", "17", *store, "--backend", "pip", "--wait", "0")
        == 0
    )
    made, (_, wanted, (_, _, theirs)) = calls
    assert made == ("made", ".venv", {"python": "", "clean": False})
    assert wanted.requirements == ("torch==2.10.0+rocm7.1", "numpy")
    assert [one.version for one in wanted.offers] == ["2.10.0+rocm7.1"], "only what is for this Python"
    assert (wanted.devices.family, wanted.backend, wanted.pre) == ("gfx94X-dcgpu", "pip", False)
    assert theirs is None


def test_all_is_found_first(lab: Lab, calls: list[Any], capfd: pytest.CaptureFixture[str]) -> None:
    lab.publish("torch", group="g")
    store = ("--store", str(lab.root / "out"), "--wait", "0")
    wrong = (
        ("--packages", "torch", "--from-run-id", "18", *store),
        ("--packages", "torchvision", "--from-run-id", "17", *store),
        ("--packages", "torch", "--from-run-id", "17", "--artifact-group", "h", *store),
        ("--packages", "torch", "--from-run-id", "17", *store),  # its pages are not written
        ("--packages", "torch", "--find-links", "/no/such/folder"),
    )
    for words in wrong:
        assert front(*words) == MissingInputError.exit_code, words
        assert capfd.readouterr().err.count("error: ") == 1
    assert calls == []


@pytest.mark.parametrize(
    "words",
    [
        ("--packages", "torch"),
        ("--from-run-id", "17"),
        ("--packages", "torch", "--from-run-id", "17", "--index-url", "https://x"),
        ("--packages", "torch", "--index-name", "nightly-v2"),
        ("--packages", "torch", "--index-name", "nightl", "--index-subdir", "gfx94X-dcgpu"),
        ("--packages", "=", "--from-run-id", "17"),
    ],
)
def test_a_command_line_that_cannot_be_meant_is_refused(words: tuple[str, ...], calls: list[Any]) -> None:
    assert front(*words) == 2
    assert calls == []


@pytest.fixture(name="index")
def index_fixture(tmp_path: Path) -> Iterator[str]:
    """An index with a torch."""
    page = tmp_path / "v2/simple/torch/index.html"
    page.parent.mkdir(parents=True)
    page.write_text(f'<a href="../../torch-2.10.0-py3-none-any.whl#sha256={A}">torch</a>')
    with served(tmp_path) as url:
        yield f"{url}/v2"


def test_an_index_may_have_a_folder_and_others_an_index_of_their_own(index: str, calls: list[Any]) -> None:
    words = ("--index-url", index, "--index-subdir", "simple", "--deps-index-url", "https://deps/", "--pre")
    assert front("--packages", "torch", *words, "--python", "3.12", "--clean") == 0
    made, (_, wanted, (_, ours, theirs)) = calls
    assert made[2] == {"python": "3.12", "clean": True}
    assert (wanted.requirements, wanted.pre) == (("torch==2.10.0",), True)
    assert ours == Sources(index_url=f"{index}/simple/")
    assert theirs == Sources(index_url="https://deps/")


def test_a_dry_run_makes_nothing(lab: Lab, calls: list[Any], capfd: pytest.CaptureFixture[str]) -> None:
    one = lab.publish("torch", group="g")
    (lab.root / "out/17-linux/python/g/index.html").write_text(f'<a href="{one.name}">')
    run = ("--packages", "torch", "--from-run-id", "17", "--store", str(lab.root / "out"))
    assert front(*run, "--dry-run") == 0
    assert calls == []
    said = capfd.readouterr().err
    assert "Would make" in said


def test_later_steps_of_a_job_run_in_the_environment(
    index: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    for name in ("GITHUB_PATH", "GITHUB_ENV"):
        monkeypatch.setenv(name, str(tmp_path / name))
    assert front("--packages", "torch", "--index-url", f"{index}/simple") == 0
    assert "/env/bin/activate" in capfd.readouterr().err
    assert not (tmp_path / "GITHUB_PATH").exists()
    words = ("--activate-in-future-github-actions-steps",)
    assert front("--packages", "torch", "--index-url", f"{index}/simple", *words) == 0
    assert (tmp_path / "GITHUB_PATH").read_text() == "/env/bin\n"
    assert "VIRTUAL_ENV<<" in (tmp_path / "GITHUB_ENV").read_text()


def test_a_flat_page_is_a_source_by_either_name(tmp_path: Path, calls: list[Any]) -> None:
    page = f"""
    <a href="torch-2.10.0%2Brocm7.1-cp312-cp312-linux_x86_64.whl#sha256={A}">torch</a>
    <a href="numpy-2-py3-none-any.whl">numpy</a><a href="../">up</a>"""
    (tmp_path / "index.html").write_text(page)
    with served(tmp_path) as url:
        for option in ("--find-links-url", "--find-links"):
            named = (option, f"{url}/index.html", "--gpu-family", "gfx94X-dcgpu")
            assert front("--packages", "torch", *named) == 0
            _, wanted, (_, ours, _) = calls[-1]
            assert wanted.requirements == ("torch==2.10.0+rocm7.1",)
            assert wanted.devices.family == "gfx94X-dcgpu"
            assert ours.find_links == (f"{url}/index.html",)
        (tmp_path / "index.html").write_text("<a href='numpy-2-py3-none-any.whl'>")
        words = ("--find-links", f"{url}/index.html")
        assert front("--packages", "torch", *words) == MissingInputError.exit_code


def test_a_run_without_a_file_for_the_python_is_said(lab: Lab, capfd: pytest.CaptureFixture[str]) -> None:
    lab.publish("torch", group="g", tag="cp311-cp311-linux_x86_64")
    for option in ("--from-run-id", "--run-id"):
        assert front("--packages", "torch", option, "17", "--store", str(lab.root / "out")) == 4
        said = capfd.readouterr().err
        assert "none is for Python 3.12.\nThey are for cp311: choose another" in said
