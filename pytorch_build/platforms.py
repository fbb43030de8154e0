"""What differs between Linux and Windows, as data and pure functions: either is planned on the other."""

from collections.abc import Mapping
from pathlib import Path, PurePath

from core.data import Model, read_toml


class Platform(Model):
    """A platform that wheels are built on.

    Attributes:
        name: Its name.
        path_separator: What separates the folders of a PATH.
        kineto: Whether torch is built with kineto, as its switch has it.
        preloads: ROCm's libraries that torch loads first.
    """

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

    def find_variable(self, env: Mapping[str, str], name: str) -> str:
        """Return the value of a variable, on Windows in any letter case; "" where it is unset."""
        for other_name, value in env.items():
            if self._key(other_name) == self._key(name):
                return value
        return ""

    def merge(
        self, base: Mapping[str, str], changes: Mapping[str, str], *, unset: frozenset[str]
    ) -> dict[str, str]:
        """Lay `changes` over `base`, without `unset`, by the platform's idea of equal names."""
        unset_keys = {self._key(name) for name in unset}
        hidden_keys = unset_keys.union(map(self._key, changes))
        kept_variables = {name: value for name, value in base.items() if self._key(name) not in hidden_keys}
        kept_changes = {name: value for name, value in changes.items() if self._key(name) not in unset_keys}
        return {**kept_variables, **kept_changes}

    def _key(self, name: str) -> str:
        """Return what two spellings of one variable's name have in common."""
        return name.upper() if self.windows else name


FILE = Path(__file__).with_suffix(".toml")
PLATFORMS = {name: Platform(name=name, **table) for name, table in read_toml(FILE).items()}
