"""install_conda.sh with an installer that leaves a conda which only makes folders."""

import hashlib
import os
import shutil
import sys
from pathlib import Path

import pytest

from core import process
from core.cli.options import ROOT

SCRIPT = ROOT / "docker" / "common" / "install_conda.sh"
VERSION = f"{sys.version_info[0]}.{sys.version_info[1]}"
CONDA = '#!/bin/sh\n[ "$1" = create ] && mkdir -p "$5/bin" && echo "$6 $7" >"$5/made"\nexit 0\n'
INSTALLER = f"""#!/bin/sh
mkdir -p "$3/bin"
cat >"$3/bin/conda" <<'CONDA'
{CONDA}CONDA
chmod +x "$3/bin/conda"
"""

pytestmark = [
    pytest.mark.processes,
    pytest.mark.skipif(shutil.which("bash") is None, reason="the images' scripts are bash's"),
]


def install(folder: Path, *, check: bool = True, **env: str) -> process.Completed:
    programs = folder / "bin"
    programs.mkdir()
    curl = programs / "curl"
    curl.write_text(f"#!/bin/sh\ncat >\"$8\" <<'END'\n{INSTALLER}END\n", encoding="utf-8")
    curl.chmod(0o755)
    (programs / "python3").symlink_to(sys.executable)
    own = {"PATH": f"{programs}:/usr/bin:/bin", "DESTDIR": str(folder), "ANACONDA_PYTHON_VERSION": VERSION}
    return process.capture(["/bin/bash", SCRIPT], env={**own, "TMPDIR": str(folder), **env}, check=check)


def profile(folder: Path) -> str:
    text = f'. "{folder}/etc/profile.d/python-env.sh"; . "{folder}/etc/profile.d/python-env.sh"; echo $PATH'
    return process.capture(["/bin/sh", "-euc", text], env={"PATH": "/bin"}).stdout.strip()


def test_an_environment_by_conda_whose_installer_is_checked(tmp_path: Path) -> None:
    digest = hashlib.sha256(INSTALLER.encode()).hexdigest()
    install(tmp_path, CONDA_INSTALLER_URL="https://x.invalid/c.sh", CONDA_INSTALLER_SHA256=digest)
    env = tmp_path / "opt" / "conda" / "envs" / f"py_{VERSION}"
    assert (env / "made").read_text(encoding="utf-8") == f"python={VERSION} pip\n"
    assert profile(tmp_path) == f"/opt/conda/envs/py_{VERSION}/bin:/opt/conda/bin:/bin"
    assert list(tmp_path.glob("tmp.*")) == []


@pytest.mark.parametrize("digest", ["", "0" * 64])
def test_an_installer_of_another_digest_is_not_run(tmp_path: Path, digest: str) -> None:
    url = "https://x.invalid/c.sh"
    refused = install(tmp_path, check=False, CONDA_INSTALLER_URL=url, CONDA_INSTALLER_SHA256=digest)
    assert refused.returncode != 0
    assert not (tmp_path / "opt").exists()
    assert not (tmp_path / "etc").exists()


def test_an_environment_of_the_bases_own_python(tmp_path: Path) -> None:
    install(tmp_path)
    env = tmp_path / "opt" / "conda" / "envs" / f"py_{VERSION}"
    assert os.access(env / "bin" / "python", os.X_OK)
    assert (env / "pyvenv.cfg").is_file()


def test_a_base_with_another_python_is_refused(tmp_path: Path) -> None:
    refused = install(tmp_path, check=False, ANACONDA_PYTHON_VERSION="3.9")
    assert refused.returncode == 1
    assert f"The base's Python is {VERSION}, not 3.9" in refused.stderr
