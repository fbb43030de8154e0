from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest

from core import process
from core.errors import RocmError, UsageError
from core.installer import Sources
from pytorch_build.rocm import sdk as rocm
from pytorch_build.rocm.sdk import RocmSource
from rocm_packaging import sources

FAMILY = "gfx94X-dcgpu"
SDK = """
import os
__version__ = os.environ.get("FAKE_VERSION", "7.1.0")
"""
DIST_INFO = """
import os
def determine_target_family():
    return os.environ.get("FAKE_FAMILY", "gfx94X-dcgpu")
"""
MAIN = """
import os, sys
answers = {"--root": "root", "--bin": "root/bin", "--cmake": "root/cmake"}
if sys.argv[1] == "targets":
    print(os.environ.get("FAKE_TARGETS", "gfx942;gfx950"))
else:
    print(os.environ.get("FAKE_PATH") or os.path.join(os.environ["FAKE"], answers[sys.argv[2]]))
"""


@pytest.fixture(autouse=True)
def _configuration(monkeypatch: pytest.MonkeyPatch) -> None:
    mine = Sources(index_url="https://mine.invalid", find_links=("/mine",), cert="/ca.pem")
    monkeypatch.setattr(sources, "configured", lambda: mine)


def test_nothing_of_rocm_comes_from_a_persons_own_indexes() -> None:
    links = RocmSource(version="7.1.0", find_links=("/wheels",)).sources
    assert links == Sources(find_links=("/wheels",), no_index=True, cert="/ca.pem")
    urls = RocmSource(version="7.1.0", index_urls=("https://a", "https://b"), find_links=("/wheels",)).sources
    assert (urls.index_url, urls.extra_index_urls, urls.no_index) == ("https://a", ("https://b",), False)
    assert urls.find_links == ("/wheels",)


def test_every_package_is_pinned_by_name() -> None:
    assert rocm.requirements("7.1.0", FAMILY) == (
        "rocm==7.1.0",
        "rocm-sdk-core==7.1.0",
        "rocm-sdk-libraries-gfx94x-dcgpu==7.1.0",
        "rocm-sdk-devel==7.1.0",
    )
    more = rocm.requirements("7.1.0", FAMILY, ("profiler", "device-gfx942"))
    assert more[4:] == ("rocm-profiler==7.1.0", "rocm-sdk-device-gfx942==7.1.0")


def test_several_families_are_refused_before_an_installer_reads_a_marker() -> None:
    with pytest.raises(UsageError, match="one GPU family"):
        rocm.requirements("7.1.0", "gfx94X-dcgpu;gfx110X-all")


def test_the_call_draws_nothing_else_in_and_builds_for_the_family() -> None:
    call = rocm.install_call(RocmSource(version="7.1.0a20250101", find_links=("/wheels",)), FAMILY)
    assert all("==7.1.0a20250101" in one for one in call.requirements)
    assert not call.dependencies
    assert not call.build_isolation
    assert call.pre
    assert call.config_settings == (f"gpu-family={FAMILY}",)
    assert dict(call.env) == {"ROCM_SDK_TARGET_FAMILY": FAMILY}
    assert call.sources is not None
    assert call.sources.no_index


@pytest.mark.parametrize("version", ["", "latest", "7.1.0; rm", "7..1", "7.1.0+a b"])
def test_a_version_of_unknown_form_is_refused_before_anything_is_asked(version: str) -> None:
    with pytest.raises(UsageError):
        rocm.install_call(RocmSource(version=version, find_links=("/wheels",)), FAMILY)


@pytest.mark.parametrize(
    ("name", "word"), [("nightly", "nightlies"), ("dev", "devreleases"), ("", "nightlies")]
)
def test_release_indexes_are_data(name: str, word: str) -> None:
    url = rocm.release_index_url(name, FAMILY)
    assert url.startswith("https://")
    assert word in url
    assert FAMILY in url


def test_an_unknown_release_index_is_refused_with_the_nearest() -> None:
    with pytest.raises(UsageError, match="Did you mean 'nightly'"):
        rocm.release_index_url("nightyl", FAMILY)


@pytest.mark.parametrize(
    ("name", "ours"),
    [
        ("rocm", True),
        ("rocm-sdk-core", True),
        ("rocm-sdk-libraries-gfx94x-dcgpu", True),
        ("rocm-profiler", True),
        ("rocm-docs-core", False),
        ("torch", False),
    ],
)
def test_which_distributions_are_rocms(name: str, *, ours: bool) -> None:
    assert rocm.is_rocm(name) is ours


def test_a_run_without_rocm_has_none(run: Any) -> None:
    run.built("torch")
    assert rocm.in_run(run.common(), FAMILY) is None


def test_a_runs_rocm_is_found_with_its_digests_and_nothing_else(run: Any) -> None:
    run.rocm("7.1.0")
    newest = run.rocm("7.2.0")
    run.rocm("7.3.0", group="gfx110X-all")
    run.built("torch")
    found = rocm.in_run(run.common(), FAMILY)
    assert found is not None
    assert found.version == "7.2.0"
    assert dict(found.digests) == {one.name: one.sha256 for one in newest}
    assert found.find_links == (str(run.root / "out" / "local-linux" / "python" / FAMILY),)
    assert found.sources.no_index


@pytest.fixture
def sdk(run: Any, tmp_path: Path) -> tuple[Any, dict[str, str]]:
    """Give an interpreter in whose environment a small rocm_sdk answers."""
    package = tmp_path / "site" / "rocm_sdk"
    package.mkdir(parents=True)
    for name, text in (("__init__", SDK), ("_dist_info", DIST_INFO), ("__main__", MAIN)):
        (package / f"{name}.py").write_text(text)
    for folder in ("root/bin", "root/cmake"):
        (tmp_path / folder).mkdir(parents=True)
    env = process.inherited(PYTHONPATH=str(package.parent), FAKE=str(tmp_path))
    return run.target(executable=Path(sys.executable)), env


@pytest.mark.processes
def test_an_installed_sdk_is_asked_for_its_facts(sdk: Any, tmp_path: Path) -> None:
    target, env = sdk
    answer = rocm.ask(target, version="7.1.0", family=FAMILY, env=env)
    assert (answer.root, answer.bin) == (tmp_path / "root", tmp_path / "root" / "bin")
    assert answer.cmake == tmp_path / "root" / "cmake"
    assert answer.targets == ("gfx942", "gfx950")


@pytest.mark.processes
@pytest.mark.parametrize(
    ("said", "words"),
    [
        ({"FAKE_VERSION": "7.0.0"}, "is 7.0.0, not 7.1.0"),
        ({"FAKE_FAMILY": "gfx110X-all"}, "is for 'gfx110X-all', not 'gfx94X-dcgpu'"),
        ({"FAKE_PATH": "relative"}, "answered 'relative', which is no folder"),
        ({"FAKE_PATH": "/nonexistent/folder"}, "which is no folder"),
        ({"FAKE_PATH": " "}, "gave an empty answer to path --root"),
        ({"FAKE_TARGETS": ";"}, "names no GPU targets"),
        ({"FAKE_TARGETS": " "}, "gave an empty answer"),
        ({"PYTHONPATH": ""}, "does not answer"),
    ],
)
def test_other_and_empty_answers_are_refused(sdk: Any, said: dict[str, str], words: str) -> None:
    target, env = sdk
    with pytest.raises(RocmError) as caught:
        rocm.ask(target, version="7.1.0", family=FAMILY, env={**env, **said})
    assert words in caught.value.message


@pytest.mark.processes
def test_an_answer_that_is_no_json_is_refused(sdk: Any, tmp_path: Path) -> None:
    target, env = sdk
    init = tmp_path / "site" / "rocm_sdk" / "__init__.py"
    init.write_text("print('hello')\n" + init.read_text())
    with pytest.raises(RocmError, match="answered 'hello"):
        rocm.ask(target, version="7.1.0", family=FAMILY, env=env)
