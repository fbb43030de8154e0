import json
import re
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path

import pytest
from filelock import FileLock, Timeout

from core import process
from core.env import InstalledDistribution, Interpreter, installer, interpreter
from core.env.installer import (
    InstallerCall,
    Sources,
    Whose,
    digest_of_calls,
    parse_configuration,
    prepared,
    require_none_unplanned,
    require_planned,
    unplanned_packages,
)
from core.errors import CheckError, EnvironmentSetupError, error_with_cause
from core.host_path import ENVIRONMENT_MARKER
from tests.kit.machines import (
    Answer,
    Call,
    VirtualEnvironment,
    answer_processes,
    put_distribution,
    target_in,
)
from tests.kit.repos import write_files
from tests.kit.wheels import record_row
from tests.kit.windows import ON_WINDOWS, SCRIPTS, program_file

LINKS = Sources(find_links=("/wheels",), no_index=True)
INDEX = Sources(index_url="https://mine/simple")

CONSTRAINTS = ("--constraint", "--build-constraint")


@dataclass(kw_only=True)
class Machine:
    """A machine with a virtual environment, and what was called on it."""

    environment: VirtualEnvironment
    calls: list[Call] = field(default_factory=list)
    constraints: dict[str, list[str]] = field(default_factory=dict)

    @property
    def target(self) -> Interpreter:
        """The environment's interpreter."""
        return target_in(self.environment.python.parents[1])

    def run(self, call: Call) -> Answer:
        """Answer a process; keep the constraints of an installer, whose files last as long as it does."""
        self.constraints = {option: read_lines(call, option) for option in CONSTRAINTS}
        return self.environment.run(call)

    def installs(self) -> list[Call]:
        """Return the calls of installers."""
        return [call for call in self.calls if "install" in call.words]

    def install(self, request: InstallerCall, *, cache_dir: Path | None = None) -> Call:
        """Install; return the call of the installer."""
        installer.install(self.target, request, cache_dir=cache_dir)
        return self.installs()[-1]


def read_lines(call: Call, option: str) -> list[str]:
    """Return the lines of the file that an option names."""
    if option not in call.words:
        return []
    return Path(call.option(option)).read_text(encoding="utf-8").splitlines()


def option_values(call: Call, option: str) -> list[str]:
    """Return the words behind an option, which may be there several times."""
    indices = [index for index, word in enumerate(call.words) if word == option]
    return [call.words[index + 1] for index in indices]


@pytest.fixture
def _forgotten_configuration() -> Iterator[None]:
    """Let each test have a configuration of its own, which is otherwise read once."""
    installer.configured_sources.cache_clear()
    yield
    installer.configured_sources.cache_clear()


@pytest.fixture
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, _forgotten_configuration: None) -> Machine:
    """Return a machine whose user has an index and a certificate, and with ROCm in its environment."""
    environment = VirtualEnvironment(folder=tmp_path / "venv")
    environment.installed = {"rocm": "7.1"}
    environment.pip_configuration = "global.index-url='https://mine/simple'\nglobal.cert='/etc/ca.crt'\n"
    machine = Machine(environment=environment)
    machine.calls = answer_processes(monkeypatch, machine.run)
    return machine


# Configuration


@pytest.mark.parametrize(
    ("listed", "sources"),
    [
        ("global.index-url='https://host/a=b/simple'", Sources(index_url="https://host/a=b/simple")),
        (
            "install.extra-index-url='https://x https://y'",
            Sources(extra_index_urls=("https://x", "https://y")),
        ),
        ("global.find-links='\\n/a\\n/b'", Sources(find_links=("/a", "/b"))),
        ("global.find-links='/a'\ninstall.find-links='/b'", Sources(find_links=("/b",))),
        (":env:.find-links='/c'\ninstall.find-links='/b'", Sources(find_links=("/c",))),
        (":env:.cert='/etc/ca.crt'", Sources(cert="/etc/ca.crt")),
        ("list.format='json'\nno setting at all", Sources()),
        ("", Sources()),
    ],
    ids=["index", "indexes", "lines", "install", "variable", "certificate", "others", "nothing"],
)
def test_reads_a_configuration_as_pip_reads_it(listed: str, sources: Sources) -> None:
    assert parse_configuration(listed, {}) == sources


@pytest.mark.parametrize(
    ("variables", "sources"),
    [
        ({"UV_DEFAULT_INDEX": "https://a"}, Sources(index_url="https://a", find_links=("/p",))),
        (
            {"UV_INDEX": "n=https://b?x=1 https://c"},
            Sources(
                index_url="https://pip",
                extra_index_urls=("https://b?x=1", "https://c"),
                find_links=("/p",),
            ),
        ),
        (
            {"UV_FIND_LINKS": "/d,/e"},
            Sources(index_url="https://pip", find_links=("/d", "/e", "/p")),
        ),
    ],
    ids=["default index", "named indexes", "links"],
)
def test_variables_of_uv_come_before_the_configuration_of_pip(
    variables: dict[str, str], sources: Sources
) -> None:
    listed = "global.find-links='/p'\nglobal.index-url='https://pip'"

    assert parse_configuration(listed, variables) == sources


@pytest.mark.parametrize(
    ("word", "is_yes"),
    [("y", True), ("True", True), ("1", True), ("0", False), ("", False), ("no", False)],
)
def test_takes_for_yes_what_pip_takes_for_it(word: str, *, is_yes: bool) -> None:
    assert parse_configuration(f"global.no-index={word!r}", {}).no_index is is_yes


@pytest.mark.processes
@pytest.mark.usefixtures("_forgotten_configuration")
def test_asks_pip_for_the_users_configuration(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "pip.conf").write_text("[global]\nindex-url = https://mine/simple\n")
    monkeypatch.setenv("PIP_CONFIG_FILE", str(tmp_path / "pip.conf"))
    monkeypatch.delenv("PIP_INDEX_URL", raising=False)
    monkeypatch.delenv("UV_DEFAULT_INDEX", raising=False)
    monkeypatch.setenv("PIP_FIND_LINKS", f"{tmp_path} /absent https://mine/")
    monkeypatch.setenv("UV_FIND_LINKS", "/of-uv")

    sources = installer.configured_sources()

    assert sources.index_url == "https://mine/simple"
    # As with pip itself, a folder that is not there is told and left out.
    assert sources.find_links == (str(tmp_path), "https://mine/")
    warnings = capsys.readouterr().err.splitlines()
    assert [warning.split()[1] for warning in warnings] == ["/of-uv,", "/absent,"]


# One call of an installer


@pytest.mark.parametrize(
    ("sources", "is_hashed", "looks_again"),
    [(LINKS, False, True), (LINKS, True, False), (INDEX, False, False)],
    ids=["folder", "folder by digest", "index"],
)
def test_uv_looks_again_at_wheels_that_may_be_built_anew(
    machine: Machine, sources: Sources, *, is_hashed: bool, looks_again: bool
) -> None:
    call = machine.install(InstallerCall(requirements=("a",), sources=sources, hashed=is_hashed))

    assert ("--refresh" in call.words) is looks_again


def test_installs_into_the_environment_from_the_users_sources(machine: Machine) -> None:
    call = machine.install(InstallerCall(requirements=("torch==2.13.0",)))

    assert call.option("--python") == str(machine.environment.python)
    assert call.option("--index-url") == "https://mine/simple"


def test_asks_exact_sources_instead_of_the_users(machine: Machine) -> None:
    call = machine.install(InstallerCall(requirements=("rocm",), sources=EXACT))

    assert option_values(call, "--index-url") == ["https://host/simple"]
    assert call.option("--extra-index-url") == "https://b"


def test_the_installer_logs_in_at_the_users_proxy(machine: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("https_proxy", "http://user:word@proxy:3128")

    call = machine.install(InstallerCall(requirements=("torch==2.13.0",)))

    assert call.variables["HTTPS_PROXY" if ON_WINDOWS else "https_proxy"] == "http://user:word@proxy:3128"


def test_makes_an_environment_with_pip_for_its_user(machine: Machine) -> None:
    target = machine.target

    installer.create_environment(target.prefix, target.base_executable, with_pip=True)

    assert machine.calls[-1].words[1:3] == ("-m", "virtualenv")


@pytest.mark.parametrize(
    "name", ["PIP_INDEX_URL", "UV_INDEX_URL", "UV_INDEX_A_PASSWORD", "GITHUB_TOKEN", "GITHUB_ENV"]
)
def test_the_code_of_sdists_reads_no_password(
    machine: Machine, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    monkeypatch.setenv(name, "https://user:word@host/simple")

    call = machine.install(InstallerCall(requirements=("torch==2.13.0",)))

    assert name not in call.variables


EXACT = Sources(index_url="https://host/simple", extra_index_urls=("https://b",), cert="/own.crt")


@pytest.mark.parametrize(
    ("users_certificate", "certificate"), [(None, "/own.crt"), ("/users.crt", "/users.crt")]
)
def test_uv_gets_the_certificate_of_the_user_or_of_exact_sources(
    machine: Machine, monkeypatch: pytest.MonkeyPatch, users_certificate: str | None, certificate: str
) -> None:
    if users_certificate is not None:
        monkeypatch.setenv("SSL_CERT_FILE", users_certificate)

    call = machine.install(InstallerCall(requirements=("rocm",), sources=EXACT))

    assert call.variables["SSL_CERT_FILE"] == certificate


def test_passes_every_wish_to_the_installer(machine: Machine, tmp_path: Path) -> None:
    write_files(tmp_path, {"r.txt": "a==1\n", "s.txt": "b==1\n"})
    files = (tmp_path / "r.txt", tmp_path / "s.txt")
    request = InstallerCall(
        requirements=("c==1",), files=files, hashed=True, dependencies=False, build_isolation=False
    )

    call = machine.install(request, cache_dir=Path("/cache"))

    assert {"--require-hashes", "--no-deps", "--no-build-isolation", "c==1"} <= set(call.words)
    assert option_values(call, "-r") == [str(file) for file in files]
    assert call.option("--cache-dir") == str(Path("/cache"))


def test_tells_builds_of_sdists_their_gpu_family(machine: Machine) -> None:
    call = machine.install(InstallerCall(requirements=("rocm",), gpu_family="gfx110X-all"))

    assert call.variables["ROCM_SDK_TARGET_FAMILY"] == "gfx110X-all"
    assert call.option("--config-settings") == "gpu-family=gfx110X-all"


def test_uv_caches_builds_apart_by_their_settings(machine: Machine) -> None:
    request = InstallerCall(requirements=("rocm==7.1",), gpu_family="gfx110X-all")

    call = machine.install(request, cache_dir=Path("/cache"))

    assert call.option("--cache-dir") == str(Path("/cache"))


def test_names_what_could_not_be_installed(machine: Machine, tmp_path: Path) -> None:
    (tmp_path / "test.txt").write_text("")
    machine.environment.unavailable.add("rocm==7.1")

    with pytest.raises(EnvironmentSetupError) as raised:
        machine.install(InstallerCall(requirements=("rocm==7.1",), files=(tmp_path / "test.txt",)))

    assert "rocm==7.1, test.txt" in raised.value.message
    assert str(machine.environment.folder) in raised.value.message
    assert "3.12.1" in raised.value.message


# Names of ours

WHEEL = "/dist/torch-2.13.0-py3-none-any.whl"


@pytest.mark.parametrize(
    ("whose", "refuses_names", "keeps_versions"),
    [("others", True, True), ("prebuilt", False, True), ("ours", False, False)],
)
def test_others_may_not_bring_packages_of_our_names(
    machine: Machine, whose: Whose, *, refuses_names: bool, keeps_versions: bool
) -> None:
    machine.install(InstallerCall(requirements=(WHEEL, "numpy"), whose=whose))

    constraints = machine.constraints["--constraint"]
    assert ("triton<0.dev0" in constraints) is refuses_names
    assert ("rocm==7.1" in constraints) is keeps_versions, "what is installed stays"
    assert "torch<0.dev0" not in constraints, "the wheel is torch"


@pytest.mark.parametrize(("whose", "refuses"), [("others", True), ("prebuilt", True), ("ours", False)])
def test_builds_of_others_may_not_bring_packages_of_our_names(
    machine: Machine, whose: Whose, *, refuses: bool
) -> None:
    machine.install(InstallerCall(requirements=(WHEEL, "numpy"), whose=whose))

    assert ("torch<0.dev0" in machine.constraints["--build-constraint"]) is refuses


@pytest.mark.parametrize("whose", ["others", "prebuilt", "ours"])
def test_files_by_digest_need_no_constraints(machine: Machine, whose: Whose) -> None:
    machine.install(InstallerCall(requirements=("a",), hashed=True, build_isolation=False, whose=whose))

    assert machine.constraints == {"--constraint": [], "--build-constraint": []}


PLANNED = {"rocm": "7.1", "rocm-sdk-core": "7.1"}


@pytest.mark.parametrize(
    "installed",
    [
        {"rocm": "7.1", "rocm-sdk-core": "7.1.0"},
        {"rocm": "7.1", "rocm-sdk-core": "7.1", "numpy": "1"},
    ],
    ids=["equal versions", "others besides"],
)
def test_accepts_an_environment_with_the_planned_packages(
    machine: Machine, installed: dict[str, str]
) -> None:
    machine.environment.installed = installed

    require_planned(machine.target, PLANNED)
    require_none_unplanned(machine.target, PLANNED)


@pytest.mark.parametrize(
    ("installed", "mentioned"),
    [
        ({"rocm": "7.1"}, ["rocm-sdk-core 7.1"]),
        ({"rocm": "7.2", "rocm-sdk-core": "7.1"}, ["7.2", "not 7.1"]),
    ],
    ids=["missing", "other version"],
)
def test_rejects_an_environment_without_the_planned_packages(
    machine: Machine, installed: dict[str, str], mentioned: list[str]
) -> None:
    machine.environment.installed = installed

    with pytest.raises(CheckError) as raised:
        require_planned(machine.target, PLANNED)

    assert all(name in raised.value.message for name in mentioned)


def test_rejects_a_package_that_is_installed_twice(machine: Machine) -> None:
    put_distribution(machine.environment.site_packages, "rocm", "7.1.0")

    with pytest.raises(CheckError, match=r"rocm .* 2 times"):
        require_planned(machine.target, {"rocm": "7.1"})


def test_rejects_a_strangers_package_of_our_names(machine: Machine) -> None:
    machine.environment.installed = {**PLANNED, "rocm-x": "1", "numpy": "2"}

    assert unplanned_packages(machine.target, PLANNED) == ["rocm-x 1"]
    with pytest.raises(CheckError, match="rocm-x 1"):
        require_none_unplanned(machine.target, PLANNED)


@pytest.fixture
def installed_rocm(tmp_path: Path) -> InstalledDistribution:
    """Return an installed package with a small file, and one that is too large to be hashed."""
    folder = tmp_path / "rocm-7.1.dist-info"
    folder.mkdir()
    (tmp_path / "a.py").write_bytes(b"ours")
    (tmp_path / "big").write_bytes(b"x" * (2 << 20))

    rows = [record_row("a.py", b"ours"), record_row("big", b"x" * (2 << 20))]
    # Byte code has no digest, and a user may delete files.
    rows += ["a.pyc,,\n", "gone.py,sha256=x,3\n"]
    (folder / "RECORD").write_text("".join(rows))
    return InstalledDistribution(name="rocm", version="7.1", extras=(), folder=folder)


def test_an_installed_package_is_unaltered(installed_rocm: InstalledDistribution) -> None:
    assert installed_rocm.altered_file() is None


@pytest.mark.parametrize(
    ("name", "content", "altered"),
    [
        ("a.py", b"oura", "a.py"),
        ("a.py", b"longer", "a.py"),
        ("big", b"y", "big"),
        ("big", b"y" * (2 << 20), None),
    ],
    ids=["content", "size", "size of a large file", "content of a large file"],
)
def test_finds_a_file_that_another_package_wrote_over(
    installed_rocm: InstalledDistribution, tmp_path: Path, name: str, content: bytes, altered: str | None
) -> None:
    (tmp_path / name).write_bytes(content)

    assert installed_rocm.altered_file() == altered


# Environments that are kept

FIRST = InstallerCall(requirements=("a==1",))
SECOND = InstallerCall(requirements=("b==2",))


def prepare(machine: Machine, digest: str, *, force: bool = False) -> list[str]:
    """Prepare the environment; return the calls that this took, without questions and programs' paths."""
    count = len(machine.calls)
    with prepared(machine.target, (FIRST, SECOND), digest=digest, cache_dir=Path("/cache"), force=force):
        pass
    commands = [" ".join(call.words[1:]) for call in machine.calls[count:]]
    return [command for command in commands if "venv" in command or "virtualenv" in command]


def read_marker(machine: Machine) -> dict[str, str]:
    """Return what is written into the environment about how it was made."""
    marker: dict[str, str] = json.loads((machine.environment.folder / ENVIRONMENT_MARKER).read_text())
    return marker


def test_makes_an_environment_and_installs_into_it(machine: Machine) -> None:
    commands = prepare(machine, "d1")

    target = machine.target
    assert (
        commands[0] == f"venv --no-config --quiet --clear --python {target.base_executable} {target.prefix}"
    )
    assert [call.option("--cache-dir") for call in machine.installs()] == [str(Path("/cache"))] * 2
    assert machine.environment.installed == {"a": "1", "b": "2"}


def test_marks_an_environment_with_its_digest(machine: Machine) -> None:
    prepare(machine, "d1")

    assert read_marker(machine) == {"digest": "d1"}


def test_uses_an_environment_with_the_same_digest_as_it_is(machine: Machine) -> None:
    prepare(machine, "d1")

    assert prepare(machine, "d1") == []


@pytest.mark.parametrize(("digest", "force"), [("d2", False), ("d1", True)], ids=["other digest", "forced"])
def test_makes_an_environment_anew(machine: Machine, digest: str, *, force: bool) -> None:
    prepare(machine, "d1")

    assert prepare(machine, digest, force=force) != []
    assert read_marker(machine) == {"digest": digest}


def test_makes_an_environment_anew_that_was_left_incomplete(machine: Machine) -> None:
    prepare(machine, "d1")
    machine.environment.unavailable.add("b==2")

    with pytest.raises(EnvironmentSetupError):
        prepare(machine, "d2")
    assert not (machine.environment.folder / ENVIRONMENT_MARKER).exists()

    machine.environment.unavailable.clear()
    assert prepare(machine, "d1") != []


def test_names_an_environment_that_cannot_be_made(machine: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    answer_processes(monkeypatch, lambda _call: Answer(status=1))

    with pytest.raises(EnvironmentSetupError, match=re.escape(str(machine.environment.folder))):
        prepare(machine, "d1")


def test_leaves_a_bare_interpreter_alone(machine: Machine) -> None:
    bare = replace(machine.target, virtual=False)

    with (
        pytest.raises(EnvironmentSetupError, match=re.escape(str(bare.executable))),
        prepared(bare, (FIRST,), digest="d1"),
    ):
        pytest.fail("It was used.")

    assert machine.calls == []


def test_holds_a_lock_beside_the_environment_while_it_is_used(machine: Machine) -> None:
    # Emptying the environment would take a lock inside with it.
    lock = FileLock(machine.environment.folder.with_name(".venv.lock"))

    with prepared(machine.target, (FIRST,), digest="d1"), pytest.raises(Timeout):
        lock.acquire(timeout=0)

    lock.acquire(timeout=0)
    lock.release()


# Digests


@pytest.fixture
def request_with_file(tmp_path: Path) -> InstallerCall:
    """Return an installation of a requirement and of a file with one."""
    (tmp_path / "lock.txt").write_text("a==1")
    return InstallerCall(requirements=("a==1",), files=(tmp_path / "lock.txt",))


def test_a_digest_does_not_cover_where_an_environment_lies(
    request_with_file: InstallerCall, tmp_path: Path
) -> None:
    digest = digest_of_calls(target_in(tmp_path / "here"), [request_with_file])

    assert digest == digest_of_calls(target_in(tmp_path / "there"), [request_with_file])


def test_a_digest_covers_the_interpreter(request_with_file: InstallerCall, tmp_path: Path) -> None:
    targets = [
        target_in(tmp_path),
        target_in(tmp_path, version="3.12.2"),
        target_in(tmp_path, base_executable=Path("/other")),
    ]

    assert len({digest_of_calls(target, [request_with_file]) for target in targets}) == len(targets)


def test_a_digest_covers_what_is_installed(request_with_file: InstallerCall, tmp_path: Path) -> None:
    requests = [
        [request_with_file],
        [request_with_file, request_with_file],
        [replace(request_with_file, requirements=("a==2",))],
        [replace(request_with_file, sources=Sources(no_index=True))],
        [replace(request_with_file, gpu_family="gfx110X-all")],
    ]

    digests = {digest_of_calls(target_in(tmp_path), calls) for calls in requests}

    assert len(digests) == len(requests)


def test_a_digest_does_not_cover_where_hashed_files_come_from(
    request_with_file: InstallerCall, tmp_path: Path
) -> None:
    requests = [
        replace(request_with_file, hashed=True, sources=Sources(index_url=f"http://127.0.0.1:{port}/"))
        for port in (4001, 4002)
    ]

    digests = {digest_of_calls(target_in(tmp_path), [call]) for call in requests}

    assert len(digests) == 1


def test_a_digest_covers_the_content_of_files_and_the_callers_salt(
    request_with_file: InstallerCall, tmp_path: Path
) -> None:
    target = target_in(tmp_path)
    digest = digest_of_calls(target, [request_with_file])
    salted = digest_of_calls(target, [request_with_file], salt=["abc"])

    (tmp_path / "lock.txt").write_text("a==2")

    changed = digest_of_calls(target, [request_with_file])
    assert len({digest, salted, changed}) == 3


# Real installers


@pytest.mark.processes
def test_a_failed_installation_has_the_installers_error_and_a_log(tmp_path: Path) -> None:
    process.capture([sys.executable, "-m", "venv", "--without-pip", tmp_path / "venv"])
    target = interpreter(tmp_path / "venv" / SCRIPTS / program_file("python"))
    sources = Sources(find_links=(str(tmp_path),), no_index=True)

    with (
        pytest.raises(EnvironmentSetupError, match="absent==9") as raised,
        prepared(target, [InstallerCall(requirements=("absent==9",), sources=sources)], digest="d"),
    ):
        pytest.fail("It was used.")

    problem = error_with_cause(raised.value)
    assert problem is not None
    assert problem.cause is not None
    assert problem.cause.tool == "uv"
    assert "absent" in problem.cause.message
    assert problem.log == tmp_path / ".venv.log"
