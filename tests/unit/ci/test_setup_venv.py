from __future__ import annotations

from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from ci import setup_venv
from ci.clients import device_packages
from ci.clients.run_install import Chosen
from core import installer
from core.errors import MissingInputError
from core.frontdoor import Verb, main
from core.installer import Sources
from core.offers import Offer
from core.resolving import Resolved, ResolvedFile
from core.serving import served
from rocm_packaging.sources import release_index_url

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from core.records import FileRecord

VERBS = (Verb("setup-venv", "ci.setup_venv", "x"),)
A = "a" * 64


class Target:
    tag, series, version = "cp312", "3.12", "3.12.1"
    prefix, executable, scripts = Path("/env"), Path("/env/bin/python"), Path("/env/bin")


@pytest.fixture(name="calls", autouse=True)
def calls_fixture(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> list[Any]:
    """What is made and installed."""
    calls: list[Any] = []
    chosen = Chosen(
        ours=(Resolved(name="torch", version="2", files=(ResolvedFile(filename="t", url="", sha256=A),)),),
        theirs=(),
    )

    @contextmanager
    def environment(folder: Path, **options: Any) -> Iterator[Target]:
        calls.append(("made", folder.name, options))
        yield Target()

    def install(_target: Target, wanted: Any, place: Any) -> Chosen:
        calls.append(("installed", wanted, place))
        return chosen

    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(setup_venv, "environment", environment)
    monkeypatch.setattr(setup_venv, "planned", lambda *_, **__: Target())
    monkeypatch.setattr(setup_venv, "install", install)
    monkeypatch.setattr(setup_venv, "choose", lambda *_, **__: chosen)
    monkeypatch.setattr(setup_venv, "configured", Sources)
    monkeypatch.setattr("ci.clients.run_install.configured", Sources)
    monkeypatch.setattr(setup_venv, "locked_call", lambda *_, **options: ("locked", options["only"]))
    monkeypatch.setattr(installer, "versions", lambda *_: ())
    monkeypatch.setattr(installer, "install", lambda _target, call, **_: calls.append(("call", call)))
    for name in ("GITHUB_PATH", "GITHUB_ENV", "GITHUB_REPOSITORY", "GITHUB_EVENT_PATH", "RELEASE_TYPE"):
        monkeypatch.delenv(name, raising=False)
    return calls


def front(*words: str) -> int:
    return main("ci", "x", VERBS, ["setup-venv", ".venv", *words])


def test_a_runs_packages_are_pinned_and_installed(
    publish: Callable[..., FileRecord], tmp_path: Path, calls: list[Any]
) -> None:
    publish("torch", "2.10.0+rocm7.1", group="gfx94X-dcgpu-asan")
    publish("torch", "2.9.0", group="gfx94X-dcgpu-asan", tag="cp311-cp311-linux_x86_64")
    prefix = tmp_path / "out/17-linux/python/gfx94X-dcgpu-asan"
    (wheel,) = prefix.glob("torch-2.10*.whl")
    (prefix / "index.html").write_text(f'<a href="{wheel.name}">')
    store = ("--store", str(tmp_path / "out"))
    assert (
        front("--packages", "torch numpy", "--from-run-id", "17", *store, "--backend", "pip", "--wait", "0")
        == 0
    )
    made, (_, wanted, place) = calls
    assert made == ("made", ".venv", {"python": "", "clean": False})
    assert wanted.requirements == ("torch==2.10.0+rocm7.1", "numpy")
    assert [one.version for one in wanted.offers] == ["2.10.0+rocm7.1"], "only what is for this Python"
    assert (wanted.devices.family, wanted.backend, wanted.pre) == ("gfx94X-dcgpu", "pip", False)
    assert place.theirs is None


def test_nothing_is_made_before_all_is_found(
    publish: Callable[..., FileRecord], tmp_path: Path, calls: list[Any], capfd: pytest.CaptureFixture[str]
) -> None:
    publish("torch", group="g")
    store = ("--store", str(tmp_path / "out"), "--wait", "0")
    wrong = (
        ("--packages", "torch", "--from-run-id", "18", *store),
        ("--packages", "torchvision", "--from-run-id", "17", *store),
        ("--packages", "torch", "--from-run-id", "17", "--artifact-group", "h", *store),
        ("--packages", "torch", "--from-run-id", "17", *store),  # its pages are not written
        ("--packages", "torch", "--find-links-url", "http://127.0.0.1:9/index.html"),
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


def test_a_release_index_is_asked_alone(calls: list[Any], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(installer, "versions", lambda *_: ("7.1",))
    words = (
        "--index-name",
        "nightly",
        "--index-subdir",
        "gfx94X-dcgpu",
        "--pre",
        "--python",
        "3.12",
        "--clean",
    )
    assert front("--packages", "rocm[libraries]", *words) == 0
    made, (_, setuptools), (_, call) = calls
    assert made[2] == {"python": "3.12", "clean": True}
    assert setuptools == ("locked", ("setuptools",))
    assert call.requirements == ("rocm[libraries]", "rocm-sdk-device-gfx942")
    assert call.sources == Sources(index_url=release_index_url("nightly", "gfx94X-dcgpu"))
    assert (call.pre, call.build_isolation) == (True, False)
    assert call.env == {"ROCM_SDK_TARGET_FAMILY": "gfx942"}


@pytest.mark.parametrize(
    ("here", "packages", "required", "told"),
    [
        ((), "torch==2", ("torch[device-gfx942,device-gfx950]==2", "gfx942", "gfx950"), "gfx942"),
        (("gfx950",), "torch", ("torch[device-gfx950]", "gfx950"), "gfx950"),
        # somebody's own choice stays as it is
        (("gfx950",), "torch[device-gfx942]", ("torch[device-gfx942]", "gfx942"), "gfx942"),
        ((), "rocm", ("rocm",), "gfx942"),
        ((), "rocm[libraries]", ("rocm[libraries]", "gfx942", "gfx950"), "gfx942"),
    ],
)
def test_an_index_of_split_packages_is_asked_for_device_code(
    calls: list[Any],
    monkeypatch: pytest.MonkeyPatch,
    here: tuple[str, ...],
    packages: str,
    required: tuple[str, ...],
    told: str,
) -> None:
    monkeypatch.setattr(
        installer, "versions", lambda name, _: ("7.1",) if name == "rocm-sdk-libraries" else ()
    )
    monkeypatch.setattr(device_packages, "detect", lambda: here)
    checked: list[Any] = []
    monkeypatch.setattr(device_packages, "require_device_code", lambda _, targets: checked.append(targets))
    words = ("--index-url", "https://x", "--gpu-family", "gfx94X-dcgpu;gfx950-dcgpu")
    assert front("--packages", packages, *words) == 0
    first, *more = required
    call = calls[-1][1]
    assert call.requirements == (first, *(f"rocm-sdk-device-{one}" for one in more))
    assert call.env == {"ROCM_SDK_TARGET_FAMILY": told}
    assert checked == [(told,) if here else ()]


@pytest.mark.parametrize(
    ("words", "url"),
    [
        (("--index-url", "https://x/v2/", "--index-subdir", "gfx94X-dcgpu"), "https://x/v2/gfx94X-dcgpu/"),
        (("--index-url", "https://x/simple"), "https://x/simple/"),
    ],
)
def test_an_index_may_have_a_folder(words: tuple[str, ...], url: str, calls: list[Any]) -> None:
    assert front("--packages", "torch", *words, "--deps-index-url", "https://deps/") == 0
    call = calls[-1][1]
    assert call.sources == Sources(index_url=url, extra_index_urls=("https://deps/",))


def test_a_dry_run_makes_nothing(
    publish: Callable[..., FileRecord], tmp_path: Path, calls: list[Any], capfd: pytest.CaptureFixture[str]
) -> None:
    one = publish("torch", group="g")
    (tmp_path / "out/17-linux/python/g/index.html").write_text(f'<a href="{one.name}">')
    run = ("--packages", "torch", "--from-run-id", "17", "--store", str(tmp_path / "out"))
    assert front(*run, "--dry-run") == 0
    assert front("--packages", "torch", "--index-url", "https://x", "--dry-run") == 0
    assert calls == []
    said = capfd.readouterr().err
    assert "Would make" in said
    assert "Would install torch from https://x/" in said


def test_later_steps_of_a_job_run_in_the_environment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    for name in ("GITHUB_PATH", "GITHUB_ENV"):
        monkeypatch.setenv(name, str(tmp_path / name))
    assert front("--packages", "torch", "--index-url", "https://x") == 0
    assert "/env/bin/activate" in capfd.readouterr().err
    assert not (tmp_path / "GITHUB_PATH").exists()
    words = ("--activate-in-future-github-actions-steps",)
    assert front("--packages", "torch", "--index-url", "https://x", *words) == 0
    assert (tmp_path / "GITHUB_PATH").read_text() == "/env/bin\n"
    assert "VIRTUAL_ENV<<" in (tmp_path / "GITHUB_ENV").read_text()


def test_a_flat_page_offers_our_names_with_their_addresses(tmp_path: Path, calls: list[Any]) -> None:
    page = f"""
    <a href="torch-2.10.0%2Brocm7.1-cp312-cp312-linux_x86_64.whl#sha256={A}">torch</a>
    <a href="sub/rocm-7.1.tar.gz">rocm</a><a href="numpy-2-py3-none-any.whl">numpy</a><a href="../">up</a>"""
    (tmp_path / "index.html").write_text(page)
    with served(tmp_path) as url:
        torch = "torch-2.10.0%2Brocm7.1-cp312-cp312-linux_x86_64.whl"
        assert setup_venv.page_offers(f"{url}/index.html", cert="") == (
            Offer(
                name="torch-2.10.0+rocm7.1-cp312-cp312-linux_x86_64.whl",
                distribution="torch",
                version="2.10.0+rocm7.1",
                sha256=A,
                url=f"{url}/{torch}",
            ),
            Offer(
                name="rocm-7.1.tar.gz", distribution="rocm", version="7.1", url=f"{url}/sub/rocm-7.1.tar.gz"
            ),
        )
        words = ("--find-links-url", f"{url}/index.html", "--gpu-family", "gfx94X-dcgpu")
        assert front("--packages", "torch", *words) == 0
        _, wanted, place = calls[-1]
        assert wanted.requirements == ("torch==2.10.0+rocm7.1",)
        assert wanted.devices.family == "gfx94X-dcgpu"
        assert place.ours.find_links == (f"{url}/index.html",)
        (tmp_path / "index.html").write_text("<a href='numpy-2-py3-none-any.whl'>")
        with pytest.raises(MissingInputError, match="lists no wheel or sdist of ours"):
            setup_venv.page_offers(f"{url}/index.html", cert="")


def test_a_run_without_a_file_for_the_python_is_said(
    publish: Callable[..., FileRecord], tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    publish("torch", group="g", tag="cp311-cp311-linux_x86_64")
    assert front("--packages", "torch", "--from-run-id", "17", "--store", str(tmp_path / "out")) == 4
    assert "Of the 1 files none is for Python 3.12" in capfd.readouterr().err
