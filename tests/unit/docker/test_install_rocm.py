"""install_rocm.sh, with programs that only write down how they were called."""

import shlex
import shutil
from collections.abc import Mapping
from pathlib import Path

import pytest

from core import process
from core.cli.options import ROOT

SCRIPT = ROOT / "docker" / "common" / "install_rocm.sh"
PROFILE = Path("etc", "profile.d", "rocm-sdk.sh")
INDEX = "https://rocm.nightlies.amd.com/v2/gfx94X-dcgpu/"
NIGHTLY = {"USE_THEROCK_NIGHTLY": "1", "THEROCK_NIGHTLY_INDEX_URL": INDEX}
PACKAGES = "rocm[libraries,devel]"

# Each program writes a line: its name, its arguments, and the settings of pip that it would read.
NOTE_CALL = """#!/bin/sh
{ printf '%s' "$(basename "$0")"; printf ' %s' "$@"
  env | grep -E '^(PIP_|ROCM_SDK_TARGET_FAMILY)' | sort | sed 's/^/ ENV:/' | tr -d '\\n'; echo; } >>"$CALLS"
"""
PROGRAMS = {
    "apt-get": "",
    "curl": "echo a key",
    "gpg": 'while [ $# -gt 0 ]; do [ "$1" = --output ] && cat >"$2"; shift; done',
    # pip has a certificate if CERT is set, and finds rocm-sdk-libraries in the index if SPLIT is set.
    "python3": '[ "$3 $4 $5" = "config get global.cert" ] && [ -n "${CERT:-}" ] && echo "$CERT" && exit 0\n'
    '[ "$3" = config ] && exit 1; [ "$3" = index ] && [ -z "${SPLIT:-}" ] && exit 1; exit 0',
    "rocm-sdk": 'case "$*" in version) echo 7.10.0a20251121 ;; "path --root") echo /env/devel ;; '
    '"path --cmake") echo /env/devel/lib/cmake ;; esac',
}

pytestmark = [
    pytest.mark.processes,
    pytest.mark.skipif(shutil.which("bash") is None, reason="the images' scripts are bash's"),
]


class Machine:
    """A folder in the place of `/`, and a search path of programs that note their calls."""

    def __init__(self, folder: Path) -> None:
        self.root = folder / "root"
        self.programs = folder / "bin"
        self.log = folder / "calls"
        self.programs.mkdir()
        (self.root / "etc").mkdir(parents=True)
        for name, script in PROGRAMS.items():
            self.install_program(name, script)
        self.set_codename("jammy")

    def install_program(self, name: str, script: str) -> None:
        """Install a program that notes each call and then runs a script."""
        program = self.programs / name
        program.write_text(f"{NOTE_CALL}{script}\n", encoding="utf-8")
        program.chmod(0o755)

    def set_codename(self, name: str) -> None:
        """Set the name of the system's release."""
        (self.root / "etc" / "os-release").write_text(f"VERSION_CODENAME={name}\n", encoding="utf-8")

    def make_folder(self, path: str) -> Path:
        """Make a folder of the system."""
        folder = self.root / path
        folder.mkdir(parents=True)
        return folder

    def run_script(self, variables: Mapping[str, str], *, check: bool = True) -> process.Completed:
        """Run the script."""
        defaults = {
            "PATH": f"{self.programs}:/usr/bin:/bin",
            "CALLS": str(self.log),
            "DESTDIR": str(self.root),
        }
        return process.capture(["/bin/bash", SCRIPT], env={**defaults, **variables}, check=check)

    def calls(self, program: str) -> list[str]:
        """Return the arguments of each call of a program, and the settings of pip."""
        calls: list[str] = []
        for line in self.log.read_text(encoding="utf-8").splitlines():
            name, _, arguments = line.partition(" ")
            if name == program:
                calls.append(arguments)
        return calls

    def only_call(self, program: str, *, argument: str) -> str:
        """Return the only call of a program with this argument."""
        (call,) = [call for call in self.calls(program) if argument in call]
        return call

    def installation(self) -> str:
        """Return the call of pip that installs ROCm."""
        return self.only_call("python3", argument=PACKAGES)

    def run_shell(self, script: str, **variables: str) -> list[str]:
        """Return the lines that a script prints in a shell that has read the profile."""
        profile = shlex.quote(str(self.root / PROFILE))
        completed = process.capture(["/bin/sh", "-euc", f". {profile}; {script}"], env=variables)
        return completed.stdout.splitlines()

    def read_file(self, path: str) -> str:
        """Return the text of a file of the system."""
        return (self.root / path).read_text(encoding="utf-8")


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    """Return a machine without ROCm."""
    return Machine(tmp_path)


# Nightly wheels

SETTINGS_OF_PIP = {
    "PIP_INDEX_URL": "https://a.invalid",
    "PIP_EXTRA_INDEX_URL": "https://b.invalid",
    "PIP_FIND_LINKS": "/c",
    "PIP_NO_INDEX": "1",
    "PIP_CERT": "/ca.pem",
}


def test_takes_nightly_wheels_from_the_index_alone(machine: Machine) -> None:
    machine.run_script(NIGHTLY | SETTINGS_OF_PIP)

    assert machine.installation() == (
        f"-m pip install --no-build-isolation {PACKAGES} --no-cache-dir --pre "
        f"--index-url {INDEX} ENV:PIP_CERT=/ca.pem ENV:PIP_CONFIG_FILE=/dev/null"
    )


def test_takes_other_packages_from_where_pip_is_configured_to_look(machine: Machine) -> None:
    machine.run_script(NIGHTLY | SETTINGS_OF_PIP)

    assert "https://b.invalid" in machine.only_call("python3", argument="setuptools")


def test_takes_nightly_wheels_without_the_systems_packages(machine: Machine) -> None:
    machine.run_script(NIGHTLY)

    assert machine.calls("apt-get") == []
    assert machine.calls("curl") == []


@pytest.mark.parametrize(
    ("location", "options"),
    [
        ("/wheels", "--no-index --find-links /wheels"),
        ("file:///wheels/", "--no-index --find-links file:///wheels/"),
        ("https://x.invalid/g/index.html", "--no-index --find-links https://x.invalid/g/index.html"),
        ("https://x.invalid/g/simple/", "--index-url https://x.invalid/g/simple/"),
    ],
    ids=["folder", "address of a folder", "page", "index"],
)
def test_takes_nightly_wheels_from_an_index_a_page_or_a_folder(
    machine: Machine, location: str, options: str
) -> None:
    machine.run_script({**NIGHTLY, "THEROCK_NIGHTLY_INDEX_URL": location})

    assert f"{PACKAGES} --no-cache-dir --pre {options} ENV:" in machine.installation()
    query = machine.only_call("python3", argument="index versions")
    assert f"rocm-sdk-libraries --no-cache-dir --pre {options} ENV:" in query


FAMILY = {"ROCM_SDK_TARGET_FAMILY": "gfx110X-all"}
VERSION = {"THEROCK_NIGHTLY_VERSION": "7.10.0a1"}
DEVICES = "rocm-sdk-device-gfx1100==7.10.0a1 rocm-sdk-device-gfx1101==7.10.0a1"
SPLIT = {**FAMILY, **VERSION, "SPLIT": "1", "PYTORCH_ROCM_ARCH": "gfx1100;gfx1101"}


@pytest.mark.parametrize(
    ("variables", "arguments", "family"),
    [
        ({"CERT": "/etc/ssl/own.pem"}, f"--index-url {INDEX} --cert /etc/ssl/own.pem ENV:", ""),
        (VERSION, f"{PACKAGES}==7.10.0a1 --no-cache-dir", ""),
        ({**VERSION, **FAMILY}, f"{PACKAGES}==7.10.0a1", "=gfx110X-all"),
        # Of split packages those for the targets are installed by name, and need no family.
        (SPLIT, f"{PACKAGES}==7.10.0a1 {DEVICES} --no-cache-dir", ""),
    ],
    ids=["certificate", "version", "family", "split packages"],
)
def test_passes_every_setting_to_pip(
    machine: Machine, variables: dict[str, str], arguments: str, family: str
) -> None:
    machine.run_script({**NIGHTLY, **variables})

    call = machine.installation()
    assert arguments in call
    assert call.partition("ENV:ROCM_SDK_TARGET_FAMILY")[2] == family


@pytest.mark.parametrize("folder", ["rocm-6.4.0", "rocm"])
def test_removes_an_older_rocm_and_nothing_else(machine: Machine, folder: str) -> None:
    (machine.make_folder(f"opt/{folder}/bin") / "hipcc").touch()
    if folder != "rocm":
        (machine.root / "opt" / "rocm").symlink_to(folder)
    rocm_tools = machine.make_folder("opt/rocm-tools")
    conda = machine.make_folder("opt/conda")

    machine.run_script(NIGHTLY)

    assert set((machine.root / "opt").iterdir()) == {conda, rocm_tools}


# Profiles of shells

PRINT_VARIABLES = 'echo "$ROCM_SDK_VERSION $ROCM_PATH $ROCM_HOME"; echo "$PATH"; echo "$CMAKE_PREFIX_PATH"'


def test_shells_find_rocm(machine: Machine) -> None:
    machine.run_script(NIGHTLY)

    assert machine.run_shell(PRINT_VARIABLES, PATH="/bin") == [
        "7.10.0a20251121 /env/devel /env/devel",
        "/env/devel/bin:/bin",
        "/env/devel/lib/cmake",
    ]


def test_a_shell_that_reads_the_profile_twice_finds_rocm_once(machine: Machine) -> None:
    machine.run_script(NIGHTLY)

    script = f'. "{machine.root / PROFILE}"; {PRINT_VARIABLES}'
    _versions, path, prefixes = machine.run_shell(script, PATH="/bin", CMAKE_PREFIX_PATH="/mine")

    assert path == "/env/devel/bin:/bin"
    assert prefixes == "/env/devel/lib/cmake:/mine"


@pytest.mark.parametrize("script", ["echo", "exit 3"], ids=["prints nothing", "fails"])
def test_fails_where_rocm_sdk_does_not_print_its_folders(machine: Machine, script: str) -> None:
    machine.install_program("rocm-sdk", script)

    assert machine.run_script(NIGHTLY, check=False).returncode != 0
    assert not (machine.root / PROFILE).exists()


# AMD's packages

WITHOUT_NIGHTLY = pytest.mark.parametrize(
    "flag", [{}, {"USE_THEROCK_NIGHTLY": "0"}, {"USE_THEROCK_NIGHTLY": ""}], ids=["unset", "no", "empty"]
)


@WITHOUT_NIGHTLY
def test_installs_amds_packages_without_the_flag(machine: Machine, flag: dict[str, str]) -> None:
    machine.run_script({**flag, "ROCM_VERSION": "6.4"})

    call = machine.only_call("apt-get", argument="rocm-dev")
    assert {"install", "rocm-dev", "rocm-libs", "miopen-hip-dev", "rccl-dev"} <= set(call.split())
    assert machine.calls("python3") == []


@WITHOUT_NIGHTLY
def test_adds_amds_repository_with_its_key_and_a_pin(machine: Machine, flag: dict[str, str]) -> None:
    machine.run_script({**flag, "ROCM_VERSION": "6.4"})

    assert machine.read_file("etc/apt/sources.list.d/rocm.list") == (
        "deb [arch=amd64 signed-by=/etc/apt/keyrings/rocm.gpg] "
        "https://repo.radeon.com/rocm/apt/6.4 jammy main\n"
    )
    assert machine.read_file("etc/apt/keyrings/rocm.gpg") == "a key\n"
    assert "Pin-Priority: 600" in machine.read_file("etc/apt/preferences.d/rocm-pin-600")


def test_shells_find_amds_packages(machine: Machine) -> None:
    machine.run_script({"ROCM_VERSION": "6.4"})

    assert machine.run_shell('echo "$ROCM_PATH $PATH"', PATH="/bin") == ["/opt/rocm /opt/rocm/bin:/bin"]


@pytest.mark.parametrize(
    ("codename", "suite"),
    [("jammy", "jammy"), ("noble", "noble"), ("bookworm", "jammy"), ("trixie", "noble")],
)
def test_debian_takes_packages_of_the_nearest_ubuntu(machine: Machine, codename: str, suite: str) -> None:
    machine.set_codename(codename)

    machine.run_script({"ROCM_VERSION": "6.4.1"})

    line = machine.read_file("etc/apt/sources.list.d/rocm.list")
    assert line.endswith(f"/rocm/apt/6.4.1 {suite} main\n")


# Refusals


@pytest.mark.parametrize(
    ("variables", "complaint"),
    [
        ({"USE_THEROCK_NIGHTLY": "yes"}, "USE_THEROCK_NIGHTLY=yes"),
        ({"USE_THEROCK_NIGHTLY": "1"}, "THEROCK_NIGHTLY_INDEX_URL"),
        ({"ROCM_VERSION": "6.4; rm -rf x"}, "ROCM_VERSION=6.4; rm -rf x"),
        ({}, "ROCM_VERSION="),
        ({"ROCM_VERSION": "6.4"}, "no ROCm packages"),
    ],
    ids=["unknown flag", "no index", "malformed version", "no settings", "unknown system"],
)
def test_changes_nothing_where_its_settings_make_no_sense(
    machine: Machine, variables: dict[str, str], complaint: str
) -> None:
    folder = machine.make_folder("opt/rocm")
    machine.set_codename("sid")

    completed = machine.run_script(variables, check=False)

    assert completed.returncode == 1
    assert complaint in completed.stderr
    assert folder.is_dir()
    assert not machine.log.exists()
