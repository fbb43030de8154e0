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
        """The command-line option that turns flash attention on."""
        return f"--enable-pytorch-flash-attention-{self.name}"

    def compiler_settings(self, rocm_root: PurePath | None, user_env: Mapping[str, str]) -> Mapping[str, str]:
        """Return CC, CXX and HIP_CLANG_PATH for ROCm's clang on Windows, unless the user names compilers.

        On Linux the user's environment chooses them, or what is usual there.
        """
        if not self.windows or rocm_root is None:
            return {}
        llvm = rocm_root / "lib" / "llvm" / "bin"
        # CMake code of HIP reads this path, and backslashes are escapes there.
        settings = {"HIP_CLANG_PATH": llvm.as_posix()}
        if not self.find_variable(user_env, "CC") and not self.find_variable(user_env, "CXX"):
            clang = str(llvm / "clang-cl.exe")
            settings |= {"CC": clang, "CXX": clang}
        return settings

    def find_variable(self, env: Mapping[str, str], name: str) -> str:
        """Return the value of a variable, on Windows in any letter case; "" where it is unset."""
        for other_name, value in env.items():
            if self._key(other_name) == self._key(name):
                return value
        return ""

    def merge(
        self, base: Mapping[str, str], changes: Mapping[str, str], *, unset: frozenset[str]
    ) -> dict[str, str]:
        """Return `base` with `changes` laid over it, without `unset`; Windows ignores the case of names."""
        unset_keys = {self._key(name) for name in unset}
        hidden_keys = unset_keys.union(map(self._key, changes))
        kept_variables = {name: value for name, value in base.items() if self._key(name) not in hidden_keys}
        kept_changes = {name: value for name, value in changes.items() if self._key(name) not in unset_keys}
        return {**kept_variables, **kept_changes}

    def _key(self, name: str) -> str:
        """Return what a variable's name is compared by: on Windows letter case does not count."""
        return name.upper() if self.windows else name


FILE = Path(__file__).with_suffix(".toml")
PLATFORMS = {name: Platform(name=name, **table) for name, table in read_toml(FILE).items()}
