"""This machine's GPUs, and whether the device code that they need is installed."""

import json
import os
import re
from pathlib import Path

from . import _dist_info, _installed

NODES = "/sys/class/kfd/kfd/topology/nodes"


def targets():
    """Return the gfx targets of this machine's GPUs, by the kernel's files; none where those are missing."""
    try:
        nodes = sorted(os.listdir(NODES), key=lambda name: (len(name), name))
    except OSError:
        return []

    found_targets = []
    for node in nodes:
        target = _target_of_node(node)
        if target is not None and target not in found_targets:
            found_targets.append(target)
    return found_targets


def _target_of_node(node):
    """Return the gfx target of one of the kernel's nodes; None for one that is no GPU of ours."""
    try:
        text = Path(NODES, node, "properties").read_text(encoding="utf-8")
    except OSError:
        return None  # a GPU that another container owns is listed, and cannot be read
    version = re.search(r"^gfx_target_version (\d+)$", text, re.MULTILINE)
    if version is None or int(version[1]) == 0:
        return None

    number = int(version[1])
    return f"gfx{number // 10000}{number // 100 % 100:x}{number % 100:x}"


def device_problem(target, version=None):
    """Return what is wrong with the device package of a gfx target, and what to install; None if it is right.

    Args:
        target: The gfx target.
        version: The version that its links name; None for reading it.
    """
    wanted_version = _dist_info.__version__
    requirement = f'pip install "rocm[device-{target}]=={wanted_version}"'
    if version is None:
        marker = _dist_info.ALL_PACKAGES["device"].marker_path(target)
        if marker is None:
            return (
                f"The device code of {target} is not installed, and its first kernel will fail. "
                f"Please install it: {requirement}"
            )
        version = _version_of_listing(marker)

    if _installed.without_post(version) == _installed.without_post(
        wanted_version
    ):
        return None
    return (
        f"The device package of {target} has version {version}, and rocm has {wanted_version}. "
        f"Please install the matching one: {requirement}"
    )


def _version_of_listing(path):
    try:
        return json.loads(Path(path).read_text(encoding="utf-8"))["version"]
    except (OSError, ValueError, KeyError, TypeError):
        return "?"


def device_problems():
    """Return what is wrong with the device code of this machine's GPUs.

    Nothing where libraries hold it themselves.
    """
    if "device" not in _dist_info.ALL_PACKAGES or not _dist_info.has_libraries():
        return []

    problems = []
    for target in targets():
        if target in _dist_info.AVAILABLE_TARGET_FAMILIES:
            problem = device_problem(target)
            if problem is not None:
                problems.append(problem)
    return problems
