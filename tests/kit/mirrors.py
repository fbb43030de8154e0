"""The data of a mirror of dependencies: what it is to hold."""

from ci.install.dependencies import MirrorData

MIRROR = MirrorData.model_validate(
    {
        "prefix": "python-deps",
        "pythons": ["3.11", "3.12"],
        "platforms": {
            "linux": {"uv": "x86_64-manylinux_2_28", "pip": ["manylinux_2_28_x86_64"]},
            "windows": {"uv": "x86_64-pc-windows-msvc", "pip": ["win_amd64"]},
        },
        "requirements": {"torch": ["numpy", "rocm"], "vision": ["numpy", "pillow"]},
    }
)
