"""This machine's GPUs, and whether the device code that they need is installed."""

import json
import os
import re
from pathlib import Path

from . import _dist_info

NODES = "/sys/class/kfd/kfd/topology/nodes"


def targets():
    """Gfx targets of this machine's GPUs, by the kernel's own files; none where there are no such files."""
    found = {}
    try:
        nodes = sorted(os.listdir(NODES), key=lambda name: (len(name), name))
    except OSError:
        return []
    for node in nodes:
        try:
            text = Path(NODES, node, "properties").read_text(encoding="utf-8")
        except OSError:
            continue  # a GPU that another container owns is listed, and cannot be read
        version = re.search(r"^gfx_target_version (\d+)$", text, re.MULTILINE)
        if version and int(version[1]):
            number = int(version[1])
            found[f"gfx{number // 10000}{number // 100 % 100:x}{number % 100:x}"] = None
    return list(found)


def without_post(version):
    """A version without what only a repackaging changes."""
    return re.sub(r"\.post\d+", "", version)


def device_problem(target, version=None):
    """What is wrong with the device package of a gfx target, and what to install; "" where nothing is.

    Args:
        target: The gfx target.
        version: The version that its links name; None for reading it.
    """
    entry = _dist_info.ALL_PACKAGES["device"]
    want = _dist_info.__version__
    if version is None:
        marker = entry.marker_path(target)
        if marker is None:
            return (
                f"The device code of {target} is not installed, and its first kernel will fail. "
                f'Please install it: pip install "rocm[device-{target}]=={want}"'
            )
        try:
            version = json.loads(Path(marker).read_text(encoding="utf-8"))["version"]
        except (OSError, ValueError, KeyError, TypeError):
            version = "?"
    if without_post(version) == without_post(want):
        return ""
    return (
        f"The device package of {target} has version {version}, and rocm has {want}. "
        f'Please install the matching one: pip install "rocm[device-{target}]=={want}"'
    )


def device_problems():
    """What is wrong with the device code of this machine's GPUs; nothing where libraries hold it themselves."""
    if "device" not in _dist_info.ALL_PACKAGES or not _dist_info.has_libraries():
        return []
    known = [target for target in targets() if target in _dist_info.AVAILABLE_TARGET_FAMILIES]
    return [problem for problem in map(device_problem, known) if problem]
