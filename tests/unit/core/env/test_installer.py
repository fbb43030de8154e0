import json
import re
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from core import files, process
from core.env import Installed, Interpreter, installer, interpreter
from core.env.installer import (
    MARKER,
    Install,
    Sources,
    digest_of_calls,
    parse_configuration,
    prepared,
    require_planned,
)
from core.errors import CheckError, EnvironmentSetupError, ProcessError, origin
from tests.kit.machines import target_in
from tests.kit.wheels import record_row

TARGET = target_in(Path("/venv"))
OWN = Sources(index_url="https://mine/simple", find_links=("/opt/wheels",), cert="/etc/ca.crt")
EXACT = Sources(find_links=("https://host/index.html",), no_index=True)


def one_installed(name: str, version: str, folder: Path = Path("/nowhere")) -> Installed:
    return Installed(name=name, version=version, extras=(), folder=folder)


class Called:
    def __init__(self) -> None:
        self.argv: list[str] = []
        self.env: dict[str, str] = {}
        self.constraints: dict[str, list[str]] = {}

    def __call__(self, argv: Sequence[str], *, env: dict[str, str], **_: object) -> None:
        self.argv, self.env = list(argv), env
        for option in ("--constraint", "--build-constraint"):
            self.constraints[option] = [
                line for one in self.after(option) for line in Path(one).read_text().splitlines()
            ]

    def after(self, option: str) -> list[str]:
        return [value for name, value in zip(self.argv, self.argv[1:], strict=False) if name == option]


@pytest.fixture(name="called")
def called_fixture(monkeypatch: pytest.MonkeyPatch) -> Called:
    called = Called()
    monkeypatch.setattr(process, "run", called)
    monkeypatch.setattr(installer, "configured", lambda: OWN)
    monkeypatch.setattr(installer, "installed", lambda _: (one_installed("rocm", "7.1"),))
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
    assert parse_configuration(listed, {}) == Sources(
        index_url="https://host/a=b/simple",
        extra_index_urls=("https://x", "https://y"),
        find_links=("/env",),
        cert="/etc/ca.crt",
    )
    assert parse_configuration("global.find-links='\\n/a\\n/b'", {}).find_links == ("/a", "/b")
    assert parse_configuration("", {}) == Sources()
    uv = {"UV_DEFAULT_INDEX": "https://a", "UV_INDEX": "n=https://b?x=1 https://c", "UV_FIND_LINKS": "/d,/e"}
    named = Sources(
        index_url="https://a", extra_index_urls=("https://b?x=1", "https://c"), find_links=("/d", "/e", "/a")
    )
    assert parse_configuration("global.find-links='/a'\nglobal.index-url='https://z'", uv) == named


@pytest.mark.parametrize(
    ("word", "meant"), [("y", True), ("True", True), ("1", True), ("0", False), ("", False)]
)
def test_yes_is_what_pip_takes_for_it(word: str, *, meant: bool) -> None:
    assert parse_configuration(f"global.no-index={word!r}", {}).no_index is meant


@pytest.mark.parametrize(
    ("sources", "hashed", "refreshed"),
    [
        (Sources(find_links=("/wheels",), no_index=True), False, True),
        (Sources(find_links=("/wheels",), no_index=True), True, False),
        (EXACT, False, True),
        (Sources(index_url="https://mine/simple"), False, False),
    ],
)
def test_uv_looks_at_folders_anew(called: Called, sources: Sources, *, hashed: bool, refreshed: bool) -> None:
    installer.install(TARGET, Install(requirements=("a",), sources=sources, hashed=hashed))
    assert ("--refresh" in called.argv) == refreshed


def test_pip_is_told_what_sdists_must_not_read(called: Called, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PIP_CONFIG_FILE", "/users/pip.conf")
    for name in ("PIP_INDEX_URL", "UV_INDEX_URL", "UV_INDEX_A_PASSWORD", "GITHUB_TOKEN", "GITHUB_ENV"):
        monkeypatch.setenv(name, "https://user:word@host/simple")
    monkeypatch.setenv("https_proxy", "http://user:word@proxy:3128")
    installer.install(TARGET, Install(requirements=("torch==2.13.0",)), backend="pip")
    assert called.argv[:5] == [sys.executable, "-m", "pip", "--python", "/venv/bin/python"]
    assert called.after("--index-url") == ["https://mine/simple"]
    assert not {"--isolated", "--cert"} & set(called.argv)
    assert called.env["PIP_CONFIG_FILE"] == "/users/pip.conf"
    # which pip itself logs in at
    assert {name for name, value in called.env.items() if "word" in value} == {"https_proxy"}


def test_a_certificate_of_exact_sources_reaches_both(called: Called, monkeypatch: pytest.MonkeyPatch) -> None:
    exact = Sources(index_url="https://host/simple", extra_index_urls=("https://b",), cert="/own.crt")
    installer.install(TARGET, Install(requirements=("rocm",), sources=exact), backend="pip")
    assert called.after("--cert") == ["/own.crt"]
    assert called.after("--extra-index-url") == ["https://b"]
    installer.install(TARGET, Install(requirements=("rocm",), sources=exact))
    assert called.env["SSL_CERT_FILE"] == "/own.crt"
    monkeypatch.setenv("SSL_CERT_FILE", "/users.crt")
    installer.install(TARGET, Install(requirements=("rocm",), sources=exact))
    assert called.env["SSL_CERT_FILE"] == "/users.crt"


@pytest.mark.parametrize("backend", ["uv", "pip"])
def test_every_wish_is_passed_on(called: Called, backend: Any) -> None:
    call = Install(
        requirements=("a==1",),
        files=(Path("r.txt"), Path("s.txt")),
        hashed=True,
        dependencies=False,
        build_isolation=False,
    )
    installer.install(TARGET, call, backend=backend, cache_dir=Path("/cache"))
    assert {"--require-hashes", "--no-deps", "--no-build-isolation"} <= set(called.argv)
    assert called.after("-r") == ["r.txt", "s.txt"]
    assert called.after("--cache-dir") == ["/cache"]
    installer.install(TARGET, replace(call, gpu_family="gfx110X-all"), backend=backend)
    assert called.env["ROCM_SDK_TARGET_FAMILY"] == "gfx110X-all"


def test_pip_caches_no_build_that_settings_change(called: Called) -> None:
    call = Install(requirements=("rocm==7.1",), sources=EXACT, gpu_family="gfx110X-all")
    installer.install(TARGET, call, backend="pip", cache_dir=Path("/cache"))
    assert "--no-cache-dir" in called.argv
    assert "--cache-dir" not in called.argv  # the later of the two would win
    installer.install(TARGET, call, backend="uv", cache_dir=Path("/cache"))
    assert called.after("--cache-dir") == ["/cache"]
    assert called.after("--config-settings") == ["gpu-family=gfx110X-all"]


@pytest.mark.parametrize(
    ("whose", "refused", "builds"),
    [("others", True, True), ("prebuilt", False, True), ("ours", False, False)],
)
def test_names_of_ours_are_kept_for_us(called: Called, whose: Any, *, refused: bool, builds: bool) -> None:
    wheel = "/dist/torch-2.13.0-py3-none-any.whl"
    installer.install(TARGET, Install(requirements=(wheel, "numpy"), whose=whose))
    lines = called.constraints["--constraint"]
    assert ("rocm==7.1" in lines) is builds, "what is there stays"
    assert ("triton<0.dev0" in lines) is refused
    assert not any(line.startswith("torch<") for line in lines), "the wheel itself"
    assert ("torch<0.dev0" in called.constraints["--build-constraint"]) is builds
    installer.install(TARGET, Install(requirements=("a",), hashed=True, build_isolation=False, whose=whose))
    assert called.constraints == {"--constraint": [], "--build-constraint": []}


@pytest.mark.parametrize(
    ("found", "said"),
    [
        ([("rocm", "7.1"), ("rocm-sdk-core", "7.1.0")], ""),
        ([("rocm", "7.1")], "rocm-sdk-core 7.1 is missing"),
        ([("rocm", "7.2"), ("rocm-sdk-core", "7.1")], "rocm is 7.2, not 7.1"),
        ([("rocm", "7.1"), ("rocm", "7.1"), ("rocm-sdk-core", "7.1")], "rocm is there 2 times"),
        ([("rocm", "7.1"), ("rocm-sdk-core", "7.1"), ("rocm-x", "1")], "rocm-x 1 is not one of those"),
        ([("rocm", "7.1"), ("rocm-sdk-core", "7.1"), ("numpy", "1")], ""),
    ],
)
def test_what_is_installed_is_what_was_planned(
    monkeypatch: pytest.MonkeyPatch, found: list[tuple[str, str]], said: str
) -> None:
    monkeypatch.setattr(installer, "installed", lambda _: tuple(one_installed(*one) for one in found))
    planned = {"rocm": "7.1", "rocm-sdk-core": "7.1"}
    if said:
        with pytest.raises(CheckError, match=re.escape(said)):
            require_planned(TARGET, planned)
    else:
        assert require_planned(TARGET, planned) == []
    if "not one of those" in said:
        assert require_planned(TARGET, planned, more=True) == ["rocm-x 1"]


def test_a_file_that_another_package_wrote_over_is_found(tmp_path: Path) -> None:
    folder = tmp_path / "rocm-7.1.dist-info"
    folder.mkdir()
    lines = [record_row(name, data) for name, data in {"a.py": b"ours", "big": b"x" * (2 << 20)}.items()]
    (folder / "RECORD").write_text("".join([*lines, "a.pyc,,\n", "gone.py,sha256=x,3\n"]))
    one = one_installed("rocm", "7.1", folder)
    for data, altered in ((b"ours", ""), (b"oura", "a.py"), (b"longer", "a.py")):
        (tmp_path / "a.py").write_bytes(data)
        (tmp_path / "big").write_bytes(b"y" * (2 << 20))
        assert one.altered == altered
    (tmp_path / "a.py").write_bytes(b"ours")
    (tmp_path / "big").write_bytes(b"y")
    assert one.altered == "big"


def test_what_cannot_be_installed_is_named(called: Called, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_arguments: object, **_options: object) -> None:
        raise ProcessError("uv ended with status 1.")

    monkeypatch.setattr(process, "run", fail)
    call = Install(requirements=("rocm==7.1",), files=(Path("/locks/test.txt"),))
    with pytest.raises(EnvironmentSetupError, match=r"rocm==7\.1, test.txt could not be .* /venv .*3\.12\.1"):
        installer.install(TARGET, call)
    assert called.argv == []


@pytest.mark.processes
def test_the_persons_configuration_is_asked_of_pip(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "pip.conf").write_text("[global]\nindex-url = https://mine/simple\n")
    monkeypatch.setenv("PIP_CONFIG_FILE", str(tmp_path / "pip.conf"))
    # of pip's folders, those that are not there are said and left out, as pip itself does
    monkeypatch.setenv("PIP_FIND_LINKS", f"{tmp_path} /a https://mine/")
    monkeypatch.setenv("UV_FIND_LINKS", "/b")
    installer.configured.cache_clear()
    try:
        sources = installer.configured()
    finally:
        installer.configured.cache_clear()
    assert (sources.index_url, sources.find_links) == (
        "https://mine/simple",
        (str(tmp_path), "https://mine/"),
    )
    said = capsys.readouterr().err.splitlines()
    assert [line.split()[1] for line in said] == ["/b,", "/a,"]


CALLS = (Install(requirements=("a==1",)), Install(requirements=("b==2",)))


@pytest.fixture(name="target")
def target_fixture(tmp_path: Path) -> Interpreter:
    (tmp_path / "venv").mkdir()
    return target_in(tmp_path / "venv")


@pytest.fixture(name="done")
def done_fixture(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    done: list[str] = []

    def run(argv: Sequence[object], **_: object) -> None:
        done.append(" ".join(str(word) for word in argv[1:]))

    def install(_target: Interpreter, call: Install, *, backend: str, cache_dir: Path | None) -> None:
        done.append(f"{backend} installs {call.requirements[0]} with {cache_dir}")

    monkeypatch.setattr(process, "run", run)
    monkeypatch.setattr(installer, "install", install)
    monkeypatch.setattr(installer, "installed", lambda _: ())
    return done


@pytest.mark.parametrize(("backend", "maker"), [("uv", "venv --no-config"), ("pip", "-m virtualenv")])
def test_a_venv_is_made_and_marked(target: Interpreter, done: list[str], backend: Any, maker: str) -> None:
    with prepared(target, CALLS, digest="d1", backend=backend, cache_dir=Path("/cache")):
        assert json.loads((target.prefix / MARKER).read_text()) == {"digest": "d1"}
    assert done == [
        f"{maker} --quiet --clear --python /usr/bin/python3.12 {target.prefix}",
        f"{backend} installs a==1 with /cache",
        f"{backend} installs b==2 with /cache",
    ]


def test_the_same_digest_is_used_as_it_is(target: Interpreter, done: list[str]) -> None:
    for digest, made in (("d1", True), ("d1", False), ("d2", True), ("d1", True)):
        done.clear()
        with prepared(target, CALLS, digest=digest):
            pass
        assert bool(done) is made, digest
    done.clear()
    with prepared(target, CALLS, digest="d1", force=True):
        pass
    assert len(done) == 3


def test_a_half_filled_environment_is_made_anew(
    target: Interpreter, done: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    with prepared(target, CALLS, digest="d1"):
        pass

    def fail(*_arguments: object, **_options: object) -> None:
        raise EnvironmentSetupError("b==2 could not be installed.")

    with monkeypatch.context() as patch:
        patch.setattr(installer, "install", fail)
        with pytest.raises(EnvironmentSetupError), prepared(target, CALLS, digest="d2"):
            pytest.fail("It was used half filled.")
    assert not (target.prefix / MARKER).exists()
    done.clear()
    with prepared(target, CALLS, digest="d1"):
        pass
    assert len(done) == 3


def test_one_that_cannot_be_emptied_is_named(target: Interpreter, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(_argv: object, **_: object) -> None:
        raise ProcessError("uv ended with status 1.")

    monkeypatch.setattr(process, "run", fail)
    problem = pytest.raises(EnvironmentSetupError, match=r"Could not create the environment .*venv")
    with problem, prepared(target, CALLS, digest="d1"):
        pass


def test_a_bare_interpreter_is_left_alone(tmp_path: Path, done: list[str]) -> None:
    bare = target_in(tmp_path, virtual=False)
    problem = pytest.raises(EnvironmentSetupError, match="is not a virtual environment")
    with problem, prepared(bare, CALLS, digest="d1"):
        pass
    assert done == []


def test_the_lock_lies_beside_it_and_is_held(target: Interpreter, monkeypatch: pytest.MonkeyPatch) -> None:
    from contextlib import contextmanager

    held: list[Path] = []

    @contextmanager
    def locked(path: Path, *, what: str) -> Any:
        assert what == str(target.prefix)
        held.append(path)
        yield
        held.remove(path)

    monkeypatch.setattr(files, "locked", locked)
    (target.prefix / MARKER).write_text('{"digest": "d1"}')
    with prepared(target, CALLS, digest="d1"):
        assert held == [target.prefix.parent / ".venv.lock"]
    assert held == []


def test_a_digest_covers_all_that_an_environment_is_made_from(tmp_path: Path) -> None:
    target = target_in(tmp_path)
    lock = tmp_path / "lock.txt"
    lock.write_text("a==1")
    call = Install(requirements=("a==1",), files=(lock,))
    digest = digest_of_calls(target, [call])
    assert digest == digest_of_calls(target_in(tmp_path / "elsewhere"), [call])
    others = [
        digest_of_calls(target_in(tmp_path, version="3.12.2"), [call]),
        digest_of_calls(target_in(tmp_path, base_executable=Path("/other")), [call]),
        digest_of_calls(target, [call, call]),
        digest_of_calls(target, [Install(requirements=("a==2",), files=(lock,))]),
        digest_of_calls(
            target, [Install(requirements=("a==1",), files=(lock,), sources=Sources(no_index=True))]
        ),
        digest_of_calls(target, [Install(requirements=("a==1",), files=(lock,), gpu_family="gfx110X-all")]),
        digest_of_calls(target, [call], salt=["abc"]),
    ]
    lock.write_text("a==2")
    others.append(digest_of_calls(target, [call]))
    assert len({digest, *others}) == len(others) + 1


@pytest.mark.processes
@pytest.mark.parametrize("backend", ["uv", "pip"])
def test_a_failed_installation_has_the_installers_first_error_and_a_log(tmp_path: Path, backend: Any) -> None:
    process.capture([sys.executable, "-m", "venv", "--without-pip", tmp_path / "venv"])
    target = interpreter(tmp_path / "venv" / "bin" / "python")
    call = Install(requirements=("absent==9",), sources=Sources(find_links=(str(tmp_path),), no_index=True))
    failed = pytest.raises(EnvironmentSetupError, match="absent==9 could not be installed")
    with failed as caught, prepared(target, [call], digest="d", backend=backend):
        pass
    said = origin(caught.value)
    assert said is not None
    assert said.cause is not None
    assert (said.cause.tool, said.log) == (backend, tmp_path / ".venv.log")
    assert "absent" in said.cause.message
