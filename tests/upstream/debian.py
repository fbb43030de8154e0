"""A Debian root in which PyTorch compiles, with the project and upstream's tree inside."""

import functools
import re
import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from core import process
from core.cli.options import ROOT

PROJECT, TREE, LIBRARIES = "/srv/wheels", "/srv/pytorch", "/srv/libraries"
SCRIPTS = f"{PROJECT}/tests/upstream/torch_root"
# where packages come from, and what one trusts on the way
_PASSED = re.compile(r"(PIP|UV)_\w+|SSL_CERT_(FILE|DIR)|(REQUESTS|CURL)_CA_BUNDLE|\w+_(proxy|PROXY)")
# parts that need what Debian has no package of, or that take time and show nothing more
SETTINGS = {
    **dict.fromkeys(("USE_DISTRIBUTED", "USE_MKLDNN", "USE_XNNPACK", "USE_FBGEMM", "USE_KINETO"), "0"),
    **dict.fromkeys(("USE_PYTORCH_QNNPACK", "USE_NNPACK", "USE_ITT", "USE_GFLAGS", "USE_GLOG"), "0"),
    **dict.fromkeys(("USE_PRECOMPILED_HEADERS", "BUILD_TEST"), "0"),
    "USE_SYSTEM_LIBS": "ON",
    "BLAS": "Generic",
    "GENERIC_BLAS_LIBRARIES": "blas",
}
# what has most of torch compiled already
PREBUILT = {
    f"CMAKE_{language}_{kind}_LAUNCHER": f"{SCRIPTS}/prebuilt.sh"
    for language in ("C", "CXX")
    for kind in ("COMPILER", "LINKER")
}
NOTHING: Mapping[str, str] = {}
GCC = {"CC": "gcc", "CXX": "g++"}
CLANG = {"CC": "clang-19", "CXX": "clang++-19"}


@dataclass(frozen=True, kw_only=True)
class Machine:
    """The root as a machine, which has what its own packages and these tests put into it."""

    root: Path

    def path(self, inside: str) -> Path:
        return self.root / inside.lstrip("/")

    def words(self, *words: str, env: Mapping[str, str] = NOTHING) -> list[str]:
        """Return the command line that runs `words` in the project's folder, its environment its own."""
        given = {"HOME": "/root", "PATH": "/srv/venv/bin:/usr/sbin:/usr/bin", "LANG": "C.UTF-8"}
        given |= {name: value for name, value in process.inherited().items() if _PASSED.fullmatch(name)}
        given |= {"TERM": "dumb", "UV_PYTHON_DOWNLOADS": "never", **env}
        # such folders of this machine are not in the root
        inside = [f"{name}={value}" for name, value in given.items() if not self._missing(name, value)]
        return ["chroot", str(self.root), "env", "-i", f"--chdir={PROJECT}", *inside, *words]

    def _missing(self, name: str, value: str) -> bool:
        return name.endswith("FIND_LINKS") and value.startswith("/") and not self.path(value).exists()

    def run(self, *words: str, env: Mapping[str, str] = NOTHING, check: bool = True) -> process.Completed:
        return process.capture(self.words(*words, env=env), check=check)

    def nox(
        self, session: str, *words: str, env: Mapping[str, str] = NOTHING, check: bool = True
    ) -> process.Completed:
        return self.run("nox", "-s", session, "-P", "3.13", "--", *words, env=env, check=check)


@functools.cache
def machine(root: Path) -> Machine:
    """Put the commit that is checked out, its lock and upstream's tree into a root."""
    made = Machine(root=root)
    for name in ("SSL_CERT_FILE", "REQUESTS_CA_BUNDLE", "PIP_CERT"):
        file = process.inherited().get(name)
        if file and Path(file).is_file():
            made.path(file).parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(file, made.path(file))
    shutil.rmtree(made.path(PROJECT), ignore_errors=True)
    process.capture(["git", "clone", "--quiet", "--depth=1", ROOT.as_uri(), made.path(PROJECT)])
    made.run("python3", "-m", "venv", "/srv/venv")
    made.run("pip", "install", "--quiet", "-r", "requirements.txt")
    made.run("sh", f"{SCRIPTS}/tree.sh", TREE, LIBRARIES)
    return made


def flag_checks(log: str) -> dict[str, bool]:
    """Map the checks of compiler flags that CMake did to whether they passed."""
    told = re.findall(r"Performing Test (HAS_[FQW]\w+|COMPILER_SUPPORTS_\w+) - (Success|Failed)", log)
    return {name: answer == "Success" for name, answer in told}
