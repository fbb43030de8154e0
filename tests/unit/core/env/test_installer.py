from __future__ import annotations

import os
import sys
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from core import process
from core.env import installer
from core.env.installer import Install, Sources, parse_configuration
from core.errors import EnvironmentSetupError, ProcessError
from tests.unit.target_samples import target_in

if TYPE_CHECKING:
    from collections.abc import Sequence

TARGET = target_in(Path("/venv"))
OWN = Sources(index_url="https://mine/simple", find_links=("/opt/wheels",), cert="/etc/ca.crt")
EXACT = Sources(find_links=("https://host/index.html",), no_index=True)


class Called:
    """What the installer was called with."""

    def __init__(self) -> None:
        self.argv: list[str] = []
        self.env: dict[str, str] = {}

    def __call__(self, argv: Sequence[str], *, env: dict[str, str]) -> None:
        self.argv, self.env = list(argv), env

    def after(self, option: str) -> list[str]:
        return [value for name, value in zip(self.argv, self.argv[1:], strict=False) if name == option]


@pytest.fixture(name="called")
def called_fixture(monkeypatch: pytest.MonkeyPatch) -> Called:
    called = Called()
    monkeypatch.setattr(process, "run", called)
    monkeypatch.setattr(installer, "configured", lambda: OWN)
    monkeypatch.delenv("SSL_CERT_FILE", raising=False)
    return called


def test_a_configuration_is_read_as_pip_reads_it() -> None:
    listed = (
        "global.index-url='https://host/a=b/simple'\n"
        "global.find-links='\\n/opt/wheels\\n/opt/more'\n"
        "global.no-index='no'\n"
        "install.extra-index-url='https://x https://y'\n"
        "install.find-links='/install'\n"
        ":env:.find-links='/env'\n"
        ":env:.cert='/etc/ca.crt'\n"
        "list.format='json'\n"
        "no setting at all\n"
    )
    assert parse_configuration(listed) == Sources(
        index_url="https://host/a=b/simple",
        extra_index_urls=("https://x", "https://y"),
        find_links=("/env",),
        cert="/etc/ca.crt",
    )
    assert parse_configuration("global.find-links='\\n/a\\n/b'").find_links == ("/a", "/b")
    assert parse_configuration("") == Sources()


@pytest.mark.parametrize(
    ("word", "meant"), [("y", True), ("True", True), ("1", True), ("0", False), ("", False)]
)
def test_yes_is_what_pip_takes_for_it(word: str, *, meant: bool) -> None:
    assert parse_configuration(f"global.no-index={word!r}").no_index is meant


@pytest.mark.parametrize(
    ("sources", "hashed", "refreshed"),
    [
        (Sources(find_links=("/wheels",), no_index=True), False, True),
        (Sources(find_links=("/wheels",), no_index=True), True, False),
        (EXACT, False, True),
        (Sources(index_url="https://mine/simple"), False, False),
    ],
)
def test_uv_takes_a_folders_wheels_as_they_are_now(
    called: Called, sources: Sources, *, hashed: bool, refreshed: bool
) -> None:
    installer.install(TARGET, Install(requirements=("a",), sources=sources, hashed=hashed))
    assert ("--refresh" in called.argv) == refreshed


def test_uv_is_given_what_pip_would_read(called: Called) -> None:
    installer.install(TARGET, Install(requirements=("torch==2.13.0",)))
    assert called.argv[1:4] == ["pip", "install", "--no-config"]
    assert called.after("--python") == ["/venv/bin/python"]
    assert called.after("--index-url") == ["https://mine/simple"]
    assert called.after("--find-links") == ["/opt/wheels"]
    assert called.after("--index-strategy") == ["unsafe-best-match"]
    assert called.env["SSL_CERT_FILE"] == "/etc/ca.crt"
    assert called.argv[-1] == "torch==2.13.0"


def test_pip_reads_its_own_configuration(called: Called) -> None:
    installer.install(TARGET, Install(requirements=("torch==2.13.0",)), backend="pip")
    assert called.argv[:5] == [sys.executable, "-m", "pip", "--python", "/venv/bin/python"]
    assert not {"--isolated", "--index-url", "--find-links", "--cert"} & set(called.argv)
    assert called.env.get("PIP_CONFIG_FILE") != os.devnull


@pytest.mark.parametrize("backend", ["uv", "pip"])
def test_exact_sources_are_the_only_ones(
    called: Called, monkeypatch: pytest.MonkeyPatch, backend: Any
) -> None:
    for name in ("UV_INDEX_URL", "UV_EXTRA_INDEX_URL", "UV_DEFAULT_INDEX", "UV_INDEX", "UV_FIND_LINKS"):
        monkeypatch.setenv(name, "https://elsewhere")
    monkeypatch.setenv("UV_CACHE_DIR", "/cache")
    installer.install(TARGET, Install(requirements=("rocm==7.1",), sources=EXACT), backend=backend)
    assert "--no-index" in called.argv
    assert called.after("--find-links") == ["https://host/index.html"]
    assert "https://elsewhere" not in called.env.values()
    assert called.env["UV_CACHE_DIR"] == "/cache"
    assert called.env["PIP_CONFIG_FILE"] == os.devnull
    assert ("--isolated" in called.argv) is (backend == "pip")


def test_a_certificate_of_exact_sources_reaches_either(
    called: Called, monkeypatch: pytest.MonkeyPatch
) -> None:
    exact = Sources(index_url="https://host/simple", extra_index_urls=("https://b",), cert="/own.crt")
    installer.install(TARGET, Install(requirements=("rocm",), sources=exact), backend="pip")
    assert called.after("--cert") == ["/own.crt"]
    assert called.after("--extra-index-url") == ["https://b"]
    installer.install(TARGET, Install(requirements=("rocm",), sources=exact))
    assert called.env["SSL_CERT_FILE"] == "/own.crt"
    monkeypatch.setenv("SSL_CERT_FILE", "/persons.crt")
    installer.install(TARGET, Install(requirements=("rocm",), sources=exact))
    assert called.env["SSL_CERT_FILE"] == "/persons.crt"


def test_without_an_index_no_further_one_is_asked(called: Called) -> None:
    sources = Sources(index_url="https://a", extra_index_urls=("https://b",), no_index=True)
    installer.install(TARGET, Install(requirements=("rocm",), sources=sources))
    assert not {"https://a", "https://b"} & set(called.argv)


@pytest.mark.parametrize(("backend", "pre"), [("uv", ["--prerelease", "allow"]), ("pip", ["--pre"])])
def test_every_wish_is_passed_on(called: Called, backend: Any, pre: list[str]) -> None:
    call = Install(
        requirements=("a==1",),
        files=(Path("r.txt"), Path("s.txt")),
        hashed=True,
        dependencies=False,
        build_isolation=False,
        pre=True,
    )
    installer.install(TARGET, call, backend=backend, cache_dir=Path("/cache"))
    assert {"--require-hashes", "--no-deps", "--no-build-isolation"} <= set(called.argv)
    assert called.after("-r") == ["r.txt", "s.txt"]
    assert called.after("--cache-dir") == ["/cache"]
    assert " ".join(pre) in " ".join(called.argv)
    installer.install(TARGET, replace(call, gpu_family="gfx110X-all"), backend=backend)
    assert called.env["ROCM_SDK_TARGET_FAMILY"] == "gfx110X-all"


def test_nothing_is_wished_that_was_not_asked_for(called: Called) -> None:
    installer.install(TARGET, Install(requirements=("a==1",)))
    given = set(called.argv)
    assert (
        not {"--require-hashes", "--no-deps", "--no-build-isolation", "--prerelease", "--cache-dir"} & given
    )


def test_pip_caches_no_build_that_settings_change(called: Called) -> None:
    call = Install(requirements=("rocm==7.1",), sources=EXACT, gpu_family="gfx110X-all")
    installer.install(TARGET, call, backend="pip", cache_dir=Path("/cache"))
    assert "--no-cache-dir" in called.argv
    assert "--cache-dir" not in called.argv  # the later of the two would win
    installer.install(TARGET, call, backend="uv", cache_dir=Path("/cache"))
    assert called.after("--cache-dir") == ["/cache"]
    assert called.after("--config-settings") == ["gpu-family=gfx110X-all"]


def test_what_cannot_be_installed_is_named(called: Called, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_arguments: object, **_options: object) -> None:
        raise ProcessError("uv ended with status 1.")

    monkeypatch.setattr(process, "run", fail)
    call = Install(requirements=("rocm==7.1",), files=(Path("/locks/test.txt"),))
    with pytest.raises(
        EnvironmentSetupError, match=r"rocm==7\.1, test\.txt could not be .* /venv .*3\.12\.1"
    ):
        installer.install(TARGET, call)
    assert called.argv == []


@pytest.mark.parametrize(
    ("returncode", "missing"),
    [(0, []), (1, ["The package `torch` requires `rocm==7.1`, but it's not installed"])],
)
def test_missing_dependencies_are_those_that_are_reported(
    monkeypatch: pytest.MonkeyPatch, returncode: int, missing: list[str]
) -> None:
    said = "Checked 2 packages\nThe package `torch` requires `rocm==7.1`, but it's not installed\n"
    answer = process.Completed(returncode=returncode, stdout="", stderr=said)
    monkeypatch.setattr(process, "capture", lambda *_arguments, **_options: answer)
    assert installer.missing_dependencies(TARGET) == missing


@pytest.mark.processes
def test_the_persons_configuration_is_asked_of_pip(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "pip.conf").write_text("[global]\nindex-url = https://mine/simple\n")
    monkeypatch.setenv("PIP_CONFIG_FILE", str(tmp_path / "pip.conf"))
    monkeypatch.setenv("PIP_FIND_LINKS", "/a /b")
    installer.configured.cache_clear()
    try:
        sources = installer.configured()
    finally:
        installer.configured.cache_clear()
    assert (sources.index_url, sources.find_links) == ("https://mine/simple", ("/a", "/b"))
