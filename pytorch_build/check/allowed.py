"""What wheels of our distributions may bring into an environment: one value for each.

Names are shell patterns. Upstream's wheels of 2026 have what stands here. Whoever builds something that
brings more adds it in a policy, as each finding of `pytorch_build.check.site_packages` says.
"""

from __future__ import annotations

from collections.abc import Mapping
from fnmatch import fnmatchcase
from types import MappingProxyType

from core.data import Model
from rocm_packaging.packages.layouts import packages


class Allowed(Model):
    """What wheels of a distribution may bring.

    Attributes:
        top_level: Files and folders in site-packages.
        programs: Console scripts, and files that are installed beside Python.
        entry_points: ``GROUP:NAME`` of everything that other packages look up.
        requirements: Distributions that METADATA names, with or without an extra.
        data_files: Paths below the environment's root, of the wheel's ``.data/data`` and ``.data/headers``.
        replaces: Distributions that are never installed beside this one, as they hold the same files.
    """

    top_level: tuple[str, ...] = ()
    programs: tuple[str, ...] = ()
    entry_points: tuple[str, ...] = ()
    requirements: tuple[str, ...] = ()
    data_files: tuple[str, ...] = ()
    replaces: tuple[str, ...] = ()

    def __or__(self, addition: Allowed) -> Allowed:
        """Return what either of the two allows."""
        return Allowed(
            top_level=self.top_level + addition.top_level,
            programs=self.programs + addition.programs,
            entry_points=self.entry_points + addition.entry_points,
            requirements=self.requirements + addition.requirements,
            data_files=self.data_files + addition.data_files,
            replaces=self.replaces + addition.replaces,
        )


# auditwheel and delvewheel put copies of libraries into NAME.libs.
TORCH = Allowed(
    top_level=("torch", "torchgen", "functorch", "torch.libs"),
    programs=("torchrun", "torchfrtrace", "convert-caffe2-to-onnx", "convert-onnx-to-caffe2"),
    entry_points=("torchrun.logs_specs:default", "torch.distributed.backends:*"),
    requirements=(
        # of each build
        "filelock", "fsspec", "jinja2", "networkx", "numpy", "setuptools", "sympy", "typing-extensions",
        # with an extra
        "opt-einsum", "optree", "pyyaml",
        # for a GPU
        "triton", "triton-*", "pytorch-triton*", "rocm", "rocm-*", "amd-torch-device-*",
        "cuda-*", "nvidia-*", "intel-*", "mkl", "tbb", "tcmlib", "umf", "onemkl-*", "dpcpp-*", "impi-rt",
    ),
    data_files=("Library/bin/*",),  # MKL and its like, on Windows
)  # fmt: skip

TORCHVISION = Allowed(
    top_level=("torchvision", "torchvision.libs"),
    requirements=("torch", "numpy", "pillow", "gdown", "scipy", "rocm", "rocm-*", "amd-torchvision-device-*"),
)

TORCHAUDIO = Allowed(
    top_level=("torchaudio", "torchaudio.libs", "torio"),
    requirements=("torch", "numpy", "torchcodec", "rocm", "rocm-*"),
)

TRITON = Allowed(
    top_level=("triton", "triton.libs"),
    programs=("proton", "proton-viewer"),
    entry_points=("triton.backends:*",),
    requirements=(
        "filelock", "importlib-metadata", "setuptools", "rocm", "rocm-*",
        # with an extra
        "autopep8", "cmake", "isort", "lit", "llnl-hatchet", "matplotlib", "numpy", "pandas", "pytest",
        "pytest-*", "scipy", "tabulate", "torch",
    ),
    replaces=("triton", "triton-rocm", "pytorch-triton", "pytorch-triton-rocm"),
)  # fmt: skip

APEX = Allowed(
    # Each of its extension modules is at the top level, and each option of its setup.py adds some.
    top_level=("apex", "apex.libs", "*.so", "*.pyd"),
    requirements=("cxxfilt", "einops", "ninja", "numpy", "packaging", "pytest", "pyyaml", "torch", "tqdm"),
)


def rocm_distributions() -> Mapping[str, Allowed]:
    """Return what ROCm's packages may bring: ours, and TheRock's, whose layout they have."""
    folders = packages().payloads
    return {
        "rocm": Allowed(
            top_level=("rocm_sdk",),
            programs=("rocm-sdk",),
            requirements=("rocm-sdk-*", "rocm-profiler", "rocm-bootstrap"),
        ),
        "rocm-bootstrap": Allowed(top_level=("rocm_bootstrap",)),
        "rocm-profiler": Allowed(
            top_level=("rocm_profiler", f"{folders['profiler']}*"),
            programs=tuple(packages().profiler_programs),
            requirements=("rocm-sdk-core",),
        ),
        "rocm-sdk-core": Allowed(
            top_level=("rocm_sdk_core", f"{folders['core']}*"),
            programs=tuple(packages().programs),
        ),
        "rocm-sdk-devel": Allowed(
            top_level=("rocm_sdk_devel", f"{folders['devel']}*"),
            requirements=("rocm-sdk-core",),
        ),
        "rocm-sdk-libraries*": Allowed(
            top_level=("rocm_sdk_libraries*", f"{folders['libraries']}*"),
            requirements=("rocm-sdk-core",),
        ),
        "rocm-sdk-device-*": Allowed(
            top_level=("rocm_sdk_device_*", f"{folders['device']}*"),
            requirements=("rocm-sdk-core", "rocm-sdk-libraries"),
        ),
    }


DISTRIBUTIONS: Mapping[str, Allowed] = MappingProxyType(
    {
        "torch": TORCH,
        "torchvision": TORCHVISION,
        "torchaudio": TORCHAUDIO,
        "triton": TRITON,
        "triton-rocm": TRITON,
        "pytorch-triton": TRITON,
        "pytorch-triton-rocm": TRITON,
        "apex": APEX,
        "amd-torch-device-*": Allowed(
            top_level=("torch",), requirements=("torch", "rocm-sdk-device-*", "amd-torch-device-*")
        ),
        "amd-torchvision-device-*": Allowed(
            top_level=("torchvision",), requirements=("torchvision", "rocm-sdk-device-*")
        ),
    }
)


def find_allowed(distribution: str, additions: Mapping[str, Allowed]) -> Allowed | None:
    """Return what a distribution may bring, with what a policy adds; None where nobody says.

    A distribution that only the policy names is held to that.
    """
    allowed: Allowed | None = None
    for values in (DISTRIBUTIONS, rocm_distributions(), additions):
        for pattern, value in values.items():
            if fnmatchcase(distribution, pattern):
                allowed = value if allowed is None else allowed | value
    return allowed
