# Keeps the contract of pytorch's torch/utils/cpp_extension.py: BuildExtension, CppExtension and CUDAExtension;
# CXX, CXXFLAGS, CFLAGS, CPPFLAGS, LDFLAGS, PYTORCH_ROCM_ARCH, ROCM_HOME; CUDA sources are hipified for a ROCm torch.
import os
import shlex
import shutil
import subprocess
import sys
from importlib.machinery import EXTENSION_SUFFIXES
from pathlib import Path

import setuptools
from setuptools.command.build_ext import build_ext

import torch
from torch.utils import hipify

TORCH_HOME = Path(torch.__file__).parent
CUDA_HOME = None
IS_HIP_EXTENSION = torch.version.hip is not None
_GPU_SUFFIXES = (".cu", ".hip")


def _rocm_home():
    named = os.environ.get("ROCM_HOME") or os.environ.get("ROCM_PATH")
    hipcc = shutil.which("hipcc")
    return named or (str(Path(hipcc).resolve().parents[1]) if hipcc else None)


ROCM_HOME = _rocm_home() if IS_HIP_EXTENSION else None


def include_paths():
    return [str(TORCH_HOME / "include")]


def library_paths():
    return [str(TORCH_HOME / "lib")]


def CppExtension(name, sources, **options):
    options["include_dirs"] = [*options.get("include_dirs", []), *include_paths()]
    options["library_dirs"] = [*options.get("library_dirs", []), *library_paths()]
    options["libraries"] = [*options.get("libraries", []), "torch", "c10"]
    return setuptools.Extension(name, sources, **options)


def CUDAExtension(name, sources, **options):
    if not IS_HIP_EXTENSION:
        raise OSError("CUDAExtension needs a torch that was built for ROCm.")
    if ROCM_HOME is None:
        raise OSError("ROCM_HOME is not set and hipcc is not on the PATH.")
    options["include_dirs"] = [*options.get("include_dirs", []), str(Path(ROCM_HOME) / "include")]
    options["library_dirs"] = [*options.get("library_dirs", []), str(Path(ROCM_HOME) / "lib")]
    options["libraries"] = [*options.get("libraries", []), "torch_hip", "amdhip64"]
    options["define_macros"] = [*options.get("define_macros", []), ("USE_ROCM", "1")]
    hipified = [str(hipify.copy(Path(source))) if source.endswith(".cu") else source for source in sources]
    return CppExtension(name, hipified, **options)


def _words(name):
    text = os.environ.get(name, "")
    # Backslashes are a part of Windows' paths.
    return shlex.split(text.replace("\\", "/") if sys.platform == "win32" else text)


def _gpu_targets():
    named = os.environ.get("PYTORCH_ROCM_ARCH", "").replace(";", " ").split()
    return named or torch.cuda.get_arch_list()


class BuildExtension(build_ext):
    """Compiles extensions into plain shared objects, which find torch's libraries as torch is loaded before."""

    @classmethod
    def with_options(cls, **_options):
        return cls

    def get_ext_filename(self, fullname):
        return os.path.join(*fullname.split(".")) + EXTENSION_SUFFIXES[-1]

    def build_extension(self, ext):
        objects = [self._compile(ext, source) for source in ext.sources]
        target = Path(self.get_ext_fullpath(ext.name))
        target.parent.mkdir(parents=True, exist_ok=True)
        paths = [f"-L{folder}" for folder in ext.library_dirs]
        libraries = [f"-l{library}" for library in ext.libraries]
        cxx = _words("CXX") or ["c++"]
        # The compiler's own DLLs are on no user's machine.
        static = ["-static-libgcc", "-Wl,-Bstatic"] if sys.platform == "win32" else []
        self._run([*cxx, "-shared", *objects, *_words("LDFLAGS"), *paths, *libraries, *static, "-o", target])

    def _compile(self, ext, source):
        gpu = source.endswith(_GPU_SUFFIXES)
        target = Path(self.build_temp) / f"{source}.o"
        target.parent.mkdir(parents=True, exist_ok=True)
        if gpu:
            compiler = [f"{ROCM_HOME}/bin/hipcc", *(f"--offload-arch={name}" for name in _gpu_targets())]
        else:
            compiler = [*(_words("CXX") or ["c++"]), *_words("CXXFLAGS"), *_words("CFLAGS"), *_words("CPPFLAGS")]
        include = [f"-I{folder}" for folder in ext.include_dirs]
        define = [f"-D{name}" + (f"={value}" if value else "") for name, value in ext.define_macros]
        common = ["-O2", "-std=c++17", "-fPIC", "-fvisibility=hidden"]
        self._run([*compiler, *common, *include, *define, "-c", source, "-o", target])
        return target

    def _run(self, command):
        print(shlex.join(str(word) for word in command), flush=True)
        subprocess.check_call(command)
