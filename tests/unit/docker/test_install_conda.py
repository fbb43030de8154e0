"""install_conda.sh, with an installer whose conda only makes folders."""

import os
import shutil
import sys
from pathlib import Path

import pytest

from core import process
from core.cli.options import ROOT
from tests.kit.wheels import sha256

SCRIPT = ROOT / "docker" / "common" / "install_conda.sh"
VERSION = f"{sys.version_info[0]}.{sys.version_info[1]}"
URL = "https://x.invalid/c.sh"
# It is called as: conda create --yes --quiet --prefix FOLDER PACKAGE PACKAGE
CONDA = '#!/bin/sh\n[ "$1" = create ] && mkdir -p "$5/bin" && echo "$6 $7" >"$5/packages"\nexit 0\n'
INSTALLER = f"""#!/bin/sh
mkdir -p "$3/bin"
cat >"$3/bin/conda" <<'CONDA'
{CONDA}CONDA
chmod +x "$3/bin/conda"
"""
DIGEST_OF_INSTALLER = sha256(INSTALLER.encode())

pytestmark = [
    pytest.mark.processes,
    pytest.mark.skipif(shutil.which("bash") is None, reason="the images' scripts are bash's"),
]


def run_script(root: Path, *, check: bool = True, **variables: str) -> process.Completed:
    """Run the script with a folder in the place of ``/`` and a curl that writes the installer."""
    programs = root / "bin"
    programs.mkdir()
    curl = programs / "curl"
    curl.write_text(f"#!/bin/sh\ncat >\"$8\" <<'END'\n{INSTALLER}END\n", encoding="utf-8")
    curl.chmod(0o755)
    (programs / "python3").symlink_to(sys.executable)

    defaults = {
        "PATH": f"{programs}:/usr/bin:/bin",
        "DESTDIR": str(root),
        "ANACONDA_PYTHON_VERSION": VERSION,
        "TMPDIR": str(root),
    }
    return process.capture(["/bin/bash", SCRIPT], env=defaults | variables, check=check)


def environment_in(root: Path) -> Path:
    """Return the folder of the environment."""
    return root / "opt" / "conda" / "envs" / f"py_{VERSION}"


def login_path(root: Path) -> str:
    """Return the PATH of a shell that has read the profile twice."""
    profile = root / "etc" / "profile.d" / "python-env.sh"
    script = f'. "{profile}"; . "{profile}"; echo $PATH'
    return process.capture(["/bin/sh", "-euc", script], env={"PATH": "/bin"}).stdout.strip()


def test_makes_an_environment_with_a_conda_whose_installer_has_its_digest(tmp_path: Path) -> None:
    run_script(tmp_path, CONDA_INSTALLER_URL=URL, CONDA_INSTALLER_SHA256=DIGEST_OF_INSTALLER)

    packages = environment_in(tmp_path) / "packages"
    assert packages.read_text(encoding="utf-8") == f"python={VERSION} pip\n"
    assert list(tmp_path.glob("tmp.*")) == [], "the installer is deleted"


def test_a_shell_that_reads_the_profile_twice_finds_the_environment_once(tmp_path: Path) -> None:
    run_script(tmp_path, CONDA_INSTALLER_URL=URL, CONDA_INSTALLER_SHA256=DIGEST_OF_INSTALLER)

    assert login_path(tmp_path) == f"/opt/conda/envs/py_{VERSION}/bin:/opt/conda/bin:/bin"


@pytest.mark.parametrize("digest", ["", "0" * 64], ids=["no digest", "other digest"])
def test_does_not_run_an_installer_without_its_digest(tmp_path: Path, digest: str) -> None:
    completed = run_script(tmp_path, check=False, CONDA_INSTALLER_URL=URL, CONDA_INSTALLER_SHA256=digest)

    assert completed.returncode != 0
    assert not (tmp_path / "opt").exists()
    assert not (tmp_path / "etc").exists()


@pytest.mark.nightly
def test_makes_an_environment_of_the_python_of_the_base_image(tmp_path: Path) -> None:
    run_script(tmp_path)

    environment = environment_in(tmp_path)
    assert os.access(environment / "bin" / "python", os.X_OK)
    assert (environment / "pyvenv.cfg").is_file()


def test_rejects_a_base_image_with_another_python(tmp_path: Path) -> None:
    completed = run_script(tmp_path, check=False, ANACONDA_PYTHON_VERSION="3.9")

    assert completed.returncode == 1
    assert f"{VERSION}, not 3.9" in completed.stderr
