"""install_rocm.sh with programs that only write down how they were called."""

import shlex
import shutil
from collections import ChainMap
from collections.abc import Callable, Mapping
from pathlib import Path

import pytest

from core import process
from core.cli.options import ROOT

SCRIPT = ROOT / "docker" / "common" / "install_rocm.sh"
PROFILE = Path("etc", "profile.d", "rocm-sdk.sh")
INDEX = "https://rocm.nightlies.amd.com/v2/gfx94X-dcgpu/"
NIGHTLY = {"USE_THEROCK_NIGHTLY": "1", "THEROCK_NIGHTLY_INDEX_URL": INDEX}
# every program writes a line of its words, and of the settings of pip that it would read
RECORD = """#!/bin/sh
{ printf '%s' "$(basename "$0")"; printf ' %s' "$@"
  env | grep -E '^(PIP_|ROCM_SDK_TARGET_FAMILY)' | sort | sed 's/^/ ENV:/' | tr -d '\\n'; echo; } >>"$CALLS"
"""
ANSWERS = {
    "apt-get": "",
    "curl": "echo a key",
    "gpg": 'while [ $# -gt 0 ]; do [ "$1" = --output ] && cat >"$2"; shift; done',
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
    """A folder in the place of `/`, and a search path of programs that do nothing."""

    def __init__(self, folder: Path) -> None:
        self.root = folder / "root"
        self.bin = folder / "bin"
        self.log = folder / "calls"
        self.bin.mkdir()
        (self.root / "etc").mkdir(parents=True)
        for name, answer in ANSWERS.items():
            self.answer(name, answer)
        self.codename("jammy")

    def answer(self, name: str, script: str) -> None:
        program = self.bin / name
        program.write_text(f"{RECORD}{script}\n", encoding="utf-8")
        program.chmod(0o755)

    def codename(self, name: str) -> None:
        (self.root / "etc" / "os-release").write_text(f"VERSION_CODENAME={name}\n", encoding="utf-8")

    def install(self, *settings: Mapping[str, str], check: bool = True, **env: str) -> process.Completed:
        own = {"PATH": f"{self.bin}:/usr/bin:/bin", "CALLS": str(self.log), "DESTDIR": str(self.root)}
        return process.capture(
            ["/bin/bash", SCRIPT], env={**own, **ChainMap(env, *map(dict, settings))}, check=check
        )

    def calls(self, program: str) -> list[str]:
        lines = self.log.read_text(encoding="utf-8").splitlines()
        return [line.removeprefix(f"{program} ") for line in lines if line.startswith(f"{program} ")]

    def pip_of_rocm(self) -> str:
        found = [call for call in self.calls("python3") if "rocm[libraries,devel]" in call]
        assert len(found) == 1
        return found[0]

    def shell(self, script: str, **env: str) -> list[str]:
        words = f". {shlex.quote(str(self.root / PROFILE))}; {script}"
        return process.capture(["/bin/sh", "-euc", words], env=env).stdout.splitlines()


@pytest.fixture(name="machine")
def machine_fixture(tmp_path: Path) -> Machine:
    return Machine(tmp_path)


@pytest.fixture(name="make")
def make_fixture(machine: Machine) -> Callable[[str], Path]:
    def make(path: str) -> Path:
        made = machine.root / path
        made.mkdir(parents=True)
        return made

    return make


def test_nightly_wheels_come_from_the_index_alone(machine: Machine) -> None:
    strangers = {
        "PIP_INDEX_URL": "https://a.invalid",
        "PIP_EXTRA_INDEX_URL": "https://b.invalid",
        "PIP_FIND_LINKS": "/c",
        "PIP_NO_INDEX": "1",
        "PIP_CERT": "/ca.pem",
    }
    machine.install(NIGHTLY, strangers)
    call = machine.pip_of_rocm()
    assert call == (
        "-m pip install --no-build-isolation rocm[libraries,devel] --no-cache-dir --pre "
        f"--index-url {INDEX} ENV:PIP_CERT=/ca.pem ENV:PIP_CONFIG_FILE=/dev/null"
    )
    before = next(call for call in machine.calls("python3") if "setuptools" in call)
    assert "https://b.invalid" in before  # what is not ROCm's comes as pip is configured
    assert machine.calls("apt-get") == machine.calls("curl") == []


@pytest.mark.parametrize(
    ("place", "options"),
    [
        ("/wheels", "--no-index --find-links /wheels"),
        ("file:///wheels/", "--no-index --find-links file:///wheels/"),
        ("https://x.invalid/g/index.html", "--no-index --find-links https://x.invalid/g/index.html"),
        ("https://x.invalid/g/simple/", "--index-url https://x.invalid/g/simple/"),
    ],
)
def test_the_place_may_be_an_index_a_page_or_a_folder(machine: Machine, place: str, options: str) -> None:
    machine.install(NIGHTLY, THEROCK_NIGHTLY_INDEX_URL=place)
    assert f"rocm[libraries,devel] --no-cache-dir --pre {options} ENV:" in machine.pip_of_rocm()
    (asked,) = [call for call in machine.calls("python3") if "index versions" in call]
    assert f"rocm-sdk-libraries --no-cache-dir --pre {options} ENV:" in asked


FAMILY = {"ROCM_SDK_TARGET_FAMILY": "gfx110X-all"}
VERSION = {"THEROCK_NIGHTLY_VERSION": "7.10.0a1"}
DEVICES = "rocm-sdk-device-gfx1100==7.10.0a1 rocm-sdk-device-gfx1101==7.10.0a1"
SPLIT = {**FAMILY, **VERSION, "SPLIT": "1", "PYTORCH_ROCM_ARCH": "gfx1100;gfx1101"}


@pytest.mark.parametrize(
    ("env", "said", "family"),
    [
        ({"CERT": "/etc/ssl/own.pem"}, f"--index-url {INDEX} --cert /etc/ssl/own.pem ENV:", ""),
        (VERSION, "rocm[libraries,devel]==7.10.0a1 --no-cache-dir", ""),
        ({**VERSION, **FAMILY}, "rocm[libraries,devel]==7.10.0a1", "=gfx110X-all"),
        (SPLIT, f"rocm[libraries,devel]==7.10.0a1 {DEVICES} --no-cache-dir", ""),
    ],
    ids=["certificate", "version", "family", "split"],
)
def test_all_settings_are_given_to_pip(machine: Machine, env: dict[str, str], said: str, family: str) -> None:
    machine.install(NIGHTLY, env)
    call = machine.pip_of_rocm()
    assert said in call
    assert call.partition("ENV:ROCM_SDK_TARGET_FAMILY")[2] == family


@pytest.mark.parametrize("folder", ["rocm-6.4.0", "rocm"])
def test_an_older_rocm_is_removed_alone(machine: Machine, make: Callable[[str], Path], folder: str) -> None:
    (make(f"opt/{folder}/bin") / "hipcc").touch()
    if folder != "rocm":
        (machine.root / "opt" / "rocm").symlink_to(folder)
    for kept in ("opt/rocm-tools", "opt/conda"):
        make(kept)
    machine.install(NIGHTLY)
    assert sorted(path.name for path in (machine.root / "opt").iterdir()) == ["conda", "rocm-tools"]


def test_shells_learn_where_rocm_is(machine: Machine) -> None:
    machine.install(NIGHTLY)
    show = 'echo "$ROCM_SDK_VERSION $ROCM_PATH $ROCM_HOME"; echo "$PATH"; echo "$CMAKE_PREFIX_PATH"'
    assert machine.shell(show, PATH="/bin") == [
        "7.10.0a20251121 /env/devel /env/devel",
        "/env/devel/bin:/bin",
        "/env/devel/lib/cmake",
    ]
    twice = f'. "{machine.root / PROFILE}"; {show}'
    assert machine.shell(twice, PATH="/bin", CMAKE_PREFIX_PATH="/mine")[1:] == [
        "/env/devel/bin:/bin",
        "/env/devel/lib/cmake:/mine",
    ]


@pytest.mark.parametrize("answer", ["echo", "exit 3"])
def test_a_rocm_that_does_not_say_where_it_is_fails_the_build(machine: Machine, answer: str) -> None:
    machine.answer("rocm-sdk", answer)
    assert machine.install(NIGHTLY, check=False).returncode != 0
    assert not (machine.root / PROFILE).exists()


@pytest.mark.parametrize("flag", [{}, {"USE_THEROCK_NIGHTLY": "0"}, {"USE_THEROCK_NIGHTLY": ""}])
def test_without_the_flag_amds_packages_are_installed(machine: Machine, flag: dict[str, str]) -> None:
    machine.install(flag, ROCM_VERSION="6.4")
    etc = machine.root / "etc"
    assert (etc / "apt" / "sources.list.d" / "rocm.list").read_text(encoding="utf-8") == (
        "deb [arch=amd64 signed-by=/etc/apt/keyrings/rocm.gpg] "
        "https://repo.radeon.com/rocm/apt/6.4 jammy main\n"
    )
    assert (etc / "apt" / "keyrings" / "rocm.gpg").read_text(encoding="utf-8") == "a key\n"
    assert "Pin-Priority: 600" in (etc / "apt" / "preferences.d" / "rocm-pin-600").read_text()
    installed = next(call for call in machine.calls("apt-get") if call.startswith("install")).split()
    assert {"rocm-dev", "rocm-libs", "miopen-hip-dev", "rccl-dev"} <= set(installed)
    assert machine.calls("python3") == []
    assert machine.shell('echo "$ROCM_PATH $PATH"', PATH="/bin") == ["/opt/rocm /opt/rocm/bin:/bin"]


@pytest.mark.parametrize(
    ("codename", "suite"),
    [("jammy", "jammy"), ("noble", "noble"), ("bookworm", "jammy"), ("trixie", "noble")],
)
def test_debian_takes_packages_of_the_nearest_ubuntu(machine: Machine, codename: str, suite: str) -> None:
    machine.codename(codename)
    machine.install(ROCM_VERSION="6.4.1")
    line = (machine.root / "etc" / "apt" / "sources.list.d" / "rocm.list").read_text(encoding="utf-8")
    assert line.endswith(f"/rocm/apt/6.4.1 {suite} main\n")


@pytest.mark.parametrize(
    ("env", "said"),
    [
        ({"USE_THEROCK_NIGHTLY": "yes"}, "USE_THEROCK_NIGHTLY=yes is neither 0 nor 1"),
        ({"USE_THEROCK_NIGHTLY": "1"}, "needs THEROCK_NIGHTLY_INDEX_URL"),
        ({"ROCM_VERSION": "6.4; rm -rf x"}, "is no version"),
        ({}, "ROCM_VERSION= is no version"),
        ({"ROCM_VERSION": "6.4"}, "AMD has no ROCm packages for this base"),
    ],
)
def test_what_cannot_be_meant_or_had_is_refused_before_anything_changes(
    machine: Machine, make: Callable[[str], Path], env: dict[str, str], said: str
) -> None:
    kept = make("opt/rocm")
    machine.codename("sid")
    refused = machine.install(env, check=False)
    assert refused.returncode == 1
    assert said in refused.stderr
    assert kept.is_dir()
    assert not machine.log.exists()
