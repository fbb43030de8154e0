"""triton: ROCm's fork on Linux, triton-windows on Windows (which the refs leave off by default)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from core.errors import MissingInputError, SourceError
from pytorch_build.build.plans.common import (
    Steps,
    build_command,
    build_requires,
    close,
    common_env,
    setup_command,
)

if TYPE_CHECKING:
    from pytorch_build.build.plans.common import BuildPlan, Context

_SUFFIX = "TRITON_WHEEL_VERSION_SUFFIX"
# upstream's builds of LLVM for triton, by the first digits of LLVM's commit
_LLVM = "https://oaitriton.blob.core.windows.net/public/llvm-builds/llvm-{commit:.8}-windows-x64.tar.gz"


def plan(context: Context) -> BuildPlan:
    """Plan triton's wheel."""
    tree = context.facts.tree
    env = common_env(context) | dict(tree.build_env)
    env[_SUFFIX] = env.get(_SUFFIX, "") + _version_suffix(context)
    # ROCm's CMake folder is on CMAKE_PREFIX_PATH, and MLIR must not find ROCm's LLVM there.
    env["TRITON_APPEND_CMAKE_ARGS"] = "-DCMAKE_FIND_USE_CMAKE_ENVIRONMENT_PATH=FALSE"
    if context.windows:
        env |= _windows_env(context)
        folder, build = "", build_command(context)
    else:
        # Up to triton 3.3 setup.py lay in python/.
        folder = "python" if "python/setup.py" in tree.files else ""
        build = setup_command(context, "bdist_wheel", folder=folder)
    own = ("build", "wheel") if context.windows else ("setuptools", "wheel", *build_requires(context))
    name = context.request.ref_env.get("TRITON_WHEEL_NAME", env.get("TRITON_WHEEL_NAME", "triton"))
    steps = Steps(
        distribution=name,
        env=env,
        commands=(build,),
        import_code="import triton; print(triton.__version__)",
        folder=folder,
        uninstall=() if context.windows else (name,),
        requirements_files=() if context.windows else ("python/requirements.txt",),
        requirements=own,
        install=not context.windows,
    )
    return close(context, steps)


def _version_suffix(context: Context) -> str:
    """Say what setup.py must be told to add; the commit it adds by itself, in front."""
    version, git = context.request.version, context.facts.tree.git_suffix.lower()
    base, plus, local = version.partition("+")
    if not git:
        return plus + local
    rest = f"+{local}".removeprefix(git)
    if rest and not rest.startswith("."):
        raise SourceError(
            f"triton's setup.py adds its commit to the version, {base}{git}, and {version} is to be built.",
            hint="The source lock is older than the tree: run `nox -s resolve` again.",
        )
    return rest


def _windows_env(context: Context) -> dict[str, str]:
    llvm = context.facts.llvm
    if llvm is None:
        wanted = _LLVM.format(commit=context.facts.tree.llvm_hash or "COMMIT")
        raise MissingInputError(
            "triton on Windows is built against an LLVM of its own, and none was given.",
            hint=f"Unpack {wanted} and name its folder in LLVM_SYSPATH.",
        )
    return {
        "LLVM_BUILD_DIR": str(llvm),
        "LLVM_INCLUDE_DIRS": str(llvm / "include"),
        "LLVM_LIBRARY_DIR": str(llvm / "lib"),
        "LLVM_SYSPATH": str(llvm),
        "TRITON_BUILD_PROTON": "OFF",
        "TRITON_WHEEL_NAME": "triton",
    }
