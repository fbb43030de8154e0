"""What differs between Linux and Windows, as data and pure functions: either is planned on the other."""

from collections.abc import Mapping
from pathlib import Path, PurePath

from core.data import Model, read_toml


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

    def compiler_settings(self, rocm_root: PurePath | None) -> Mapping[str, str]:
        """Return the variables that choose the compilers; on Linux the user's environment does."""
        if not self.windows or rocm_root is None:
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
