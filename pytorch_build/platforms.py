"""What differs between Linux and Windows, as data and pure functions: either is planned on the other."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path, PurePath

from core.data import Model, read_toml

# GCC 12 and newer see these in sources that are correct, and torch makes warnings errors.
_QUIET = ("-Wno-error=maybe-uninitialized", "-Wno-error=uninitialized", "-Wno-error=restrict")


class Platform(Model):
    """A platform that wheels are built on; `preloads` are ROCm's libraries that torch loads first."""

    name: str
    path_separator: str
    kineto: str
    preloads: tuple[str, ...]

    @property
    def windows(self) -> bool:
        """Whether it is Windows."""
        return self.name == "windows"

    @property
    def flash_flag(self) -> str:
        """The option that chooses flash attention."""
        return f"--enable-pytorch-flash-attention-{self.name}"

    def compiler_settings(self, env: Mapping[str, str], rocm_root: PurePath | None) -> Mapping[str, str]:
        """Return the variables that choose and steer the compilers, on top of `env`."""
        if not self.windows:  # hipcc compiles device code, and `env` chooses the host's compiler
            kept = {name: env.get(name, "").strip() for name in ("CXXFLAGS", "CPPFLAGS")}
            return {name: " ".join(filter(None, (flags, *_QUIET))) for name, flags in kept.items()}
        if rocm_root is None:
            return {}
        llvm = rocm_root / "lib" / "llvm" / "bin"
        clang = str(llvm / "clang-cl.exe")
        # CMake code of HIP reads this path, and backslashes are escapes there.
        return {"CC": clang, "CXX": clang, "HIP_CLANG_PATH": llvm.as_posix()}

    def _key(self, name: str) -> str:
        return name.upper() if self.windows else name

    def find_variable(self, env: Mapping[str, str], name: str) -> str:
        """Read a variable, on Windows in any letter case; an unset one is empty."""
        return next((value for known, value in env.items() if self._key(known) == self._key(name)), "")

    def merge(
        self, base: Mapping[str, str], changes: Mapping[str, str], *, unset: frozenset[str]
    ) -> dict[str, str]:
        """Lay `changes` over `base`, without `unset`, by the platform's idea of equal names."""
        gone = {self._key(name) for name in unset}
        hidden = gone.union(map(self._key, changes))
        kept = {name: value for name, value in base.items() if self._key(name) not in hidden}
        return kept | {name: value for name, value in changes.items() if self._key(name) not in gone}


FILE = Path(__file__).with_suffix(".toml")
PLATFORMS = {name: Platform(name=name, **table) for name, table in read_toml(FILE).items()}
LINUX, WINDOWS = PLATFORMS["linux"], PLATFORMS["windows"]
