"""Environments of reports: variables, users and machines that are not like a developer's own."""

import os
import sys
import zipfile
from pathlib import Path

import pytest

from core import http, process
from core.archive import Member
from core.cli.options import ROOT
from core.env import installer
from core.env.installer import Sources, create_environment, installer_variables
from core.errors import SourceError
from core.http_server import answering
from core.wheel.writer import WheelSpec, write_wheel
from pytorch_build.sources.git import OriginReader
from pytorch_build.sources.snapshots import SnapshotStore, take_snapshot
from tests.kit.repos import commit_files, run_git
from tests.kit.servers import RefusingServer, served
from tests.kit.windows import not_on_windows


# https://github.com/python/mypy/issues/15110
# With PYTHONSAFEPATH `python -m` does not look into the working folder, from which this tool's packages come.
@pytest.mark.processes
@pytest.mark.parametrize(
    ("matrix", "words"),
    [("ci", ["-l"]), (None, ["-s", "resolve", "--", "--help"])],
    ids=["cells of a matrix", "a session"],
)
def test_sessions_find_their_packages_whatever_python_searches(matrix: str | None, words: list[str]) -> None:
    env = process.inherited(PYTHONSAFEPATH="1", MATRIX=matrix)

    completed = process.capture([sys.executable, "-m", "nox", *words], cwd=ROOT, env=env, check=False)

    assert completed.returncode == 0, completed.stdout + completed.stderr


# https://github.com/NixOS/nixpkgs/issues/16591
# PYTHONPATH of a shell brings packages of another Python, and programs import them instead of their own.
@pytest.mark.processes
def test_sessions_import_no_packages_of_the_shell(tmp_path: Path) -> None:
    (tmp_path / "pydantic.py").write_text("raise ImportError('of another Python')\n")
    env = process.inherited(PYTHONPATH=str(tmp_path))
    command = [sys.executable, "-m", "nox", "-s", "resolve", "--", "--help"]

    completed = process.capture(command, cwd=ROOT, env=env, check=False)

    assert completed.returncode == 0, completed.stdout + completed.stderr


# https://github.com/psf/requests/pull/3195, https://github.com/curl/curl/issues/9773
# NO_PROXY names networks, too, and an index of the own network was asked through the proxy.
@pytest.mark.parametrize(
    ("no_proxy", "is_direct"),
    [("example.org, 127.0.0.0/16", True), ("127.9.0.0/16,::/64", False), ("127.0.0.1", True)],
)
def test_asks_networks_directly_that_need_no_proxy(
    no_proxy: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, is_direct: bool
) -> None:
    # This machine is never asked through a proxy, so it stands for another one.
    monkeypatch.setattr(http, "is_loopback", lambda _host: False)
    # Both are one variable on Windows.
    monkeypatch.delenv("no_proxy", raising=False)
    monkeypatch.setenv("NO_PROXY", no_proxy)
    (tmp_path / "page.html").write_text("an index")

    with served(tmp_path) as url, answering(RefusingServer) as proxy:
        monkeypatch.setenv("HTTP_PROXY", proxy)
        answer = http.fetch(f"{url}/page.html")

    assert (answer.text == "an index") is is_direct


# https://github.com/wntrblm/nox/issues/948, https://github.com/wntrblm/nox/issues/816
# uv chose the Python and the environment of these variables, not those of its arguments.
@pytest.mark.parametrize("name", ["UV_PYTHON", "UV_SYSTEM_PYTHON", "UV_NO_BUILD", "UV_EXCLUDE_NEWER"])
def test_installs_as_arguments_say_whatever_uv_is_told(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(name, "1")

    assert name not in installer_variables(Sources())


@pytest.mark.processes
def test_makes_an_environment_whatever_uv_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("UV_PYTHON", "3.8")
    monkeypatch.setenv("UV_SYSTEM_PYTHON", "true")

    create_environment(tmp_path / "venv", Path(sys.executable))

    assert (tmp_path / "venv" / "pyvenv.cfg").is_file()


# https://github.com/astral-sh/uv/issues/1339, https://github.com/astral-sh/uv/issues/11441
# What pip's configuration says of certificates and proxies counts for pip alone, and nobody said so.
@pytest.mark.parametrize("setting", ["trusted-host", "proxy"])
def test_names_the_settings_of_pip_that_it_does_not_use(
    setting: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    listing = f"global.{setting}='index.example'\n"
    completed = process.Completed(returncode=0, stdout=listing, stderr="")
    monkeypatch.setattr(process, "capture", lambda *_words, **_options: completed)

    installer.configured_sources.__wrapped__()

    assert setting in capsys.readouterr().err


# https://github.com/pytorch/pytorch/issues/140765
# A container runs as a user whom the machine does not know: there is no name and no home.
def test_asks_an_address_for_a_user_without_a_home(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse_to_name_a_home() -> Path:
        raise RuntimeError("Could not determine home directory.")

    monkeypatch.delenv("NETRC", raising=False)
    monkeypatch.setattr(Path, "home", refuse_to_name_a_home)

    assert "cannot be reached" in str(http.fetch("http://127.0.0.1:1/").problem)


# https://github.com/git/git/pull/1261, https://github.com/gitgitgadget/git/pull/2072
# With safe.bareRepository=explicit, git 3's default, git looks for no bare repository by itself.
@pytest.mark.processes
def test_reads_an_origin_where_git_finds_no_bare_repository(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    commit = commit_files(tmp_path / "origin", {"version.txt": "1\n"})
    (tmp_path / ".gitconfig").write_text("[safe]\n\tbareRepository = explicit\n")
    monkeypatch.setenv("GIT_CONFIG_GLOBAL", os.fspath(tmp_path / ".gitconfig"))
    reader = OriginReader(cache=tmp_path / "cache")

    for _time in ("first", "second"):
        texts = reader.read_texts(str(tmp_path / "origin"), commit, ("version.txt",))
        assert texts == {"version.txt": "1\n"}
    assert "damaged" not in capsys.readouterr().err


# https://github.com/pypa/wheel/issues/418, https://github.com/NixOS/nixpkgs/issues/20716
# SOURCE_DATE_EPOCH is 0 or 1 in Nix: "ZIP does not support timestamps before 1980".
@pytest.mark.parametrize("epoch", [0, 1, 315532799])
def test_writes_wheels_of_a_time_before_1980(tmp_path: Path, epoch: int) -> None:
    spec = WheelSpec(distribution="rocm", version="7.1.0", tag="py3-none-any", metadata="")

    wheel = write_wheel(tmp_path, spec, [Member(name="rocm/__init__.py", source=b"")], epoch=epoch).path

    with zipfile.ZipFile(wheel) as archive:
        assert {member.date_time for member in archive.infolist()} == {(1980, 1, 1, 0, 0, 0)}


# https://github.com/kisslinux/kiss/issues/295
# With umask 077 what a person packs can be read by nobody else.
@not_on_windows("Windows keeps no such permissions")
def test_files_of_wheels_can_be_read_whatever_the_umask(tmp_path: Path) -> None:
    tool = tmp_path / "hipcc"
    tool.touch(mode=0o700)
    members = [Member(name="rocm/hipcc", source=tool, executable=True), Member(name="rocm/a.py", source=b"")]
    spec = WheelSpec(distribution="rocm", version="7.1.0", tag="py3-none-any", metadata="")
    umask = os.umask(0o077)
    try:
        wheel = write_wheel(tmp_path, spec, members).path
    finally:
        os.umask(umask)

    assert wheel.stat().st_mode & 0o777 == 0o644
    with zipfile.ZipFile(wheel) as archive:
        modes = {member.filename: member.external_attr >> 16 & 0o777 for member in archive.infolist()}
    assert modes["rocm/hipcc"] == 0o755
    assert modes["rocm/a.py"] == 0o644


# https://github.com/pypa/pip/issues/11608
# `pip list | head -1` ended in a BrokenPipeError, and another one when Python ended.
@pytest.mark.processes
def test_a_reader_that_goes_away_ends_nothing(tmp_path: Path) -> None:
    program = tmp_path / "program.py"
    program.write_text(
        "from core import console\nfor _ in range(9999): console.result('x' * 99)\nconsole.say('end')\n"
    )
    pipeline = f"'{sys.executable}' '{program}' | head -n 1; exit ${{PIPESTATUS[0]}}"
    env = process.inherited(PYTHONPATH=str(ROOT))

    completed = process.capture(["bash", "-c", pipeline], env=env, check=False)

    assert completed.returncode == 0
    assert completed.stdout == f"{'x' * 99}\n"
    assert completed.stderr == "end\n"


# https://github.com/pytest-dev/pytest/issues/4359, https://github.com/pantsbuild/pants/issues/16601
# PYTEST_ADDOPTS of the user chose other tests in an inner pytest, or moved its report.
@pytest.mark.parametrize("name", ["PYTEST_ADDOPTS", "PYTEST_PLUGINS", "PYTEST_DISABLE_PLUGIN_AUTOLOAD"])
def test_a_users_options_of_pytest_choose_no_tests(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(name, "-k nothing")

    assert name not in process.handed_on()


# https://github.com/gitpython-developers/GitPython/issues/1475, https://github.com/zed-industries/zed/issues/24070
# Repositories of SHA-256, git 3's default, were read as if they had other commits.
@pytest.mark.processes
def test_refuses_a_tree_with_commits_of_sha_256(tmp_path: Path) -> None:
    tree = tmp_path / "tree"
    tree.mkdir()
    run_git(tree, "init", "--quiet", "--object-format=sha256")
    commit_files(tree, {"setup.py": ""})

    with pytest.raises(SourceError, match="SHA-256"):
        take_snapshot(tree, SnapshotStore(tmp_path / "snapshots"))


@pytest.mark.processes
def test_reads_an_origin_where_new_repositories_are_of_sha_256(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    commit = commit_files(tmp_path / "origin", {"version.txt": "1\n"})
    monkeypatch.setenv("GIT_DEFAULT_HASH", "sha256")

    assert OriginReader(cache=tmp_path / "cache").resolve_commit(str(tmp_path / "origin"), commit) == commit
