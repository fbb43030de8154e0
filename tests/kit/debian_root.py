"""A Debian root in which PyTorch compiles, with the project and upstream's tree inside."""

import functools
import re
import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from core import process
from core.cli.options import ROOT

PROJECT = "/srv/wheels"
TREE = "/srv/pytorch"
LIBRARIES = "/srv/libraries"
SCRIPTS = f"{PROJECT}/tests/upstream/torch_root"
# Where packages come from, and what one trusts on the way
_PASSED = re.compile(r"(PIP|UV)_\w+|SSL_CERT_(FILE|DIR)|(REQUESTS|CURL)_CA_BUNDLE|\w+_(proxy|PROXY)")
# Parts that need what Debian has no package of, or that take time and show nothing more
SETTINGS = {
    **dict.fromkeys(("USE_DISTRIBUTED", "USE_MKLDNN", "USE_XNNPACK", "USE_FBGEMM", "USE_KINETO"), "0"),
    **dict.fromkeys(("USE_PYTORCH_QNNPACK", "USE_NNPACK", "USE_ITT", "USE_GFLAGS", "USE_GLOG"), "0"),
    **dict.fromkeys(("USE_PRECOMPILED_HEADERS", "BUILD_TEST"), "0"),
    "USE_SYSTEM_LIBS": "ON",
    "BLAS": "Generic",
    "GENERIC_BLAS_LIBRARIES": "blas",
}
# What has most of torch compiled already
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
        """Return where a path of the root lies outside."""
        return self.root / inside.lstrip("/")

    def words(self, *words: str, env: Mapping[str, str] = NOTHING) -> list[str]:
        """Return the command line that runs `words` in the project's folder, its environment its own."""
        variables = {"HOME": "/root", "PATH": "/srv/venv/bin:/usr/sbin:/usr/bin", "LANG": "C.UTF-8"}
        inherited = process.inherited()
        variables |= {name: inherited[name] for name in inherited if _PASSED.fullmatch(name)}
        variables |= {"TERM": "dumb", "UV_PYTHON_DOWNLOADS": "never", **env}

        settings = [
            f"{name}={value}" for name, value in variables.items() if not self._is_missing(name, value)
        ]
        return ["chroot", str(self.root), "env", "-i", f"--chdir={PROJECT}", *settings, *words]

    def _is_missing(self, name: str, value: str) -> bool:
        """Return whether a variable names a folder of this machine that is not in the root."""
        return name.endswith("FIND_LINKS") and value.startswith("/") and not self.path(value).exists()

    def run(self, *words: str, env: Mapping[str, str] = NOTHING, check: bool = True) -> process.Completed:
        """Run a command in the root."""
        return process.capture(self.words(*words, env=env), check=check)

    def nox(
        self, session: str, *words: str, env: Mapping[str, str] = NOTHING, check: bool = True
    ) -> process.Completed:
        """Run a session of the project in the root."""
        return self.run("nox", "-s", session, "-P", "3.13", "--", *words, env=env, check=check)


@functools.cache
def machine(root: Path) -> Machine:
    """Put the commit that is checked out, its lock and upstream's tree into a root."""
    prepared = Machine(root=root)
    for name in ("SSL_CERT_FILE", "REQUESTS_CA_BUNDLE", "PIP_CERT"):
        file = process.inherited().get(name)
        if file and Path(file).is_file():
            prepared.path(file).parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(file, prepared.path(file))
    shutil.rmtree(prepared.path(PROJECT), ignore_errors=True)
    process.capture(["git", "clone", "--quiet", "--depth=1", ROOT.as_uri(), prepared.path(PROJECT)])
    prepared.run("python3", "-m", "venv", "/srv/venv")
    prepared.run("pip", "install", "--quiet", "-r", "requirements.txt")
    prepared.run("sh", f"{SCRIPTS}/tree.sh", TREE, LIBRARIES)
    return prepared


def flag_checks(log: str) -> dict[str, bool]:
    """Map the checks of compiler flags that CMake did to whether they passed."""
    results = re.findall(r"Performing Test (HAS_[FQW]\w+|COMPILER_SUPPORTS_\w+) - (Success|Failed)", log)
    return {name: result == "Success" for name, result in results}
