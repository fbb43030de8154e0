"""Builds the `rocm` wheel on the machine that installs it: its requirements follow the GPU."""

import importlib.util
from pathlib import Path

from setuptools import find_packages, setup

HERE = Path(__file__).resolve().parent


def load_dist_info():
    """Return the module of this distribution's facts, without importing the package around it."""
    spec = importlib.util.spec_from_file_location(
        "rocm_dist_info", HERE / "src" / "rocm_sdk" / "_dist_info.py"
    )
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


dist_info = load_dist_info()
family = dist_info.determine_target_family()
print(
    f"rocm: libraries for the GPU family {family} (set ROCM_SDK_TARGET_FAMILY to choose another)"
)

setup(
    name="rocm",
    version=dist_info.__version__,
    description="ROCm in a Python environment",
    license="MIT",
    long_description=(HERE / "README.md").read_text(encoding="utf-8"),
    long_description_content_type="text/markdown",
    python_requires=">=3.10",
    package_dir={"": "src"},
    packages=find_packages(where="src"),
    install_requires=[dist_info.ALL_PACKAGES["core"].get_dist_package_require()],
    extras_require=dist_info.get_extras(),
    entry_points={"console_scripts": ["rocm-sdk = rocm_sdk.__main__:main"]},
)
