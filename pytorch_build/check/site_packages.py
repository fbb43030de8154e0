"""What a wheel brings into an environment besides its own package.

No wheel may bring code that runs whenever Python starts, modules of the standard library, or parts of pip and
its like. Wheels of ours are held to what their distribution may bring (`pytorch_build.check.allowed`), with
what a policy adds.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import TYPE_CHECKING

from packaging.utils import canonicalize_name

from pytorch_build.check import error, path_in_site_packages, warning
from pytorch_build.check.allowed import find_allowed
from pytorch_build.check.metadata import SCRIPT_GROUPS, read_entry_points
from pytorch_build.check.policy import USER_TABLE, matches, required_name

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint

    from pytorch_build.check import Finding, WheelView
    from pytorch_build.components.component import AllowedContents

_MODULE_SUFFIXES = (".py", ".pyc", ".pyi", ".so", ".pyd")
_SITE_FOLDERS = ("site-packages", "dist-packages")
_PROGRAM_FOLDERS = ("bin", "Scripts", "scripts", "sbin")

# site.py imports them when Python starts.
STARTUP_MODULES = ("sitecustomize", "usercustomize")

# Modules that PEP 594 and PEP 632 removed are kept alive by packages, so bringing one is no attack.
_REMOVED_MODULES = frozenset(
    [
        "aifc",
        "asynchat",
        "asyncore",
        "audioop",
        "cgi",
        "cgitb",
        "chunk",
        "crypt",
        "distutils",
        "imghdr",
        "imp",
        "lib2to3",
        "mailcap",
        "msilib",
        "nis",
        "nntplib",
        "ossaudiodev",
        "pipes",
        "smtpd",
        "sndhdr",
        "spwd",
        "sunau",
        "telnetlib",
        "uu",
        "xdrlib",
    ]
)
STANDARD_LIBRARY = sys.stdlib_module_names - _REMOVED_MODULES

# Who else brings one of these replaces an installer.
INSTALLER_MODULES: Mapping[str, str] = MappingProxyType(
    {
        "pip": "pip",
        "setuptools": "setuptools",
        "pkg_resources": "setuptools",
        "_distutils_hack": "setuptools",
        "wheel": "wheel",
        "uv": "uv",
    }
)
INSTALLER_PROGRAMS: Mapping[str, str] = MappingProxyType(
    {
        "pip": "pip",
        "pip3": "pip",
        "wheel": "wheel",
        "uv": "uv",
        "uvx": "uv",
        "uvw": "uv",
        "easy_install": "setuptools",
        "python": "Python",
        "python3": "Python",
        "pythonw": "Python",
    }
)
_VERSIONED_PROGRAM = re.compile(r"(pip|python|easy_install)-?\d[\d.]*")
SHARED_NAMES = ("test", "tests", "benchmarks", "examples", "docs")


@dataclass(frozen=True, kw_only=True)
class Installation:
    """What an installer would put into an environment: names of each kind, with the wheel's members.

    `top_level` are the files and folders in site-packages, `data_files` paths below the environment's root.
    """

    top_level: Mapping[str, str]
    programs: Mapping[str, str]
    data_files: Mapping[str, str]
    entry_points: tuple[EntryPoint, ...]


def check(view: WheelView) -> Iterator[Finding]:
    """Yield findings on what a wheel brings into an environment and its distribution may not bring."""
    installation = read_installation(view)
    yield from _find_startup_code(view, installation)
    yield from _find_shadowed_standard_library(view, installation)
    yield from _find_replaced_installers(view, installation)
    for member in view.members:
        parts = member.split("/")
        is_data = parts[0].endswith(".data") and parts[1:2] == ["data"]
        if is_data and installed_path(member) is not None:
            message = "It gets into site-packages by way of the data folder; its place is purelib or platlib."
            yield error(message, member)

    allowed = find_allowed(view.name.distribution, view.options.policy.allowed)
    if allowed is not None:
        yield from _find_unexpected_contents(view, installation, allowed)
        return
    for name, member in installation.top_level.items():
        if module_name(name, member) in SHARED_NAMES:
            message = f"{name} is a top-level name that many wheels have: the one installed last wins."
            yield warning(message, member)


def read_installation(view: WheelView) -> Installation:
    """Return what an installer would put into an environment for a wheel."""
    top_level: dict[str, str] = {}
    programs: dict[str, str] = {}
    data_files: dict[str, str] = {}
    for member in view.members:
        path = installed_path(member)
        if path is not None:
            top_level.setdefault(path.split("/")[0], member)
            continue

        _folder, kind, *parts = member.split("/")
        is_program = kind == "scripts" or (kind == "data" and parts[0] in _PROGRAM_FOLDERS)
        if is_program:
            programs.setdefault(parts[-1], member)
        elif kind == "headers":
            data_files.setdefault("/".join(("include", *parts)), member)
        else:
            data_files.setdefault("/".join(parts), member)

    entry_points = read_entry_points(view.entry_points)
    for entry_point in entry_points:
        if entry_point.group in SCRIPT_GROUPS:
            programs.setdefault(entry_point.name, "")
    return Installation(
        top_level=top_level,
        programs=programs,
        data_files=data_files,
        entry_points=entry_points,
    )


def installed_path(member: str) -> str | None:
    """Return a member's path below site-packages, also by way of ``.data``; None where it goes elsewhere."""
    parts = member.split("/")
    path = path_in_site_packages(member)
    if path or not parts[2:]:
        return path or member
    for position, folder in enumerate(parts[:-1]):
        if parts[1] == "data" and folder in _SITE_FOLDERS:
            return "/".join(parts[position + 1 :])
    return None


def module_name(top_level_name: str, member: str) -> str | None:
    """Return the name that a file or folder in site-packages is imported by; None for no module."""
    is_folder = installed_path(member) != top_level_name
    if is_folder:
        return top_level_name
    if top_level_name.endswith(_MODULE_SUFFIXES):
        return top_level_name.partition(".")[0]
    return None


def _find_startup_code(view: WheelView, installation: Installation) -> Iterator[Finding]:
    """Yield errors for files that run whenever Python starts, unless the policy allows them."""
    distribution = view.name.distribution
    usual_files = view.options.policy.startup_files.get(distribution, ())
    for name, member in installation.top_level.items():
        if matches(name, usual_files):
            continue
        if name.endswith(".pth") or module_name(name, member) in STARTUP_MODULES:
            addition = f'startup_files.{distribution} = ["{name}"]'
            yield error(f"{name} is read whenever Python starts. {_how_to_allow(addition)}", member)


def _find_shadowed_standard_library(view: WheelView, installation: Installation) -> Iterator[Finding]:
    """Yield findings on modules with the names of modules of the standard library."""
    for name, member in installation.top_level.items():
        module = module_name(name, member)
        if module not in STANDARD_LIBRARY:
            continue
        # Backports have the name of what they were for an older Python.
        is_backport = canonicalize_name(module) == view.name.distribution
        message = f"Python has a module {module} of its own."
        yield warning(message, member) if is_backport else error(message, member)


def _find_replaced_installers(view: WheelView, installation: Installation) -> Iterator[Finding]:
    """Yield errors for modules and programs of pip and its like in another's wheel."""
    distribution = view.name.distribution
    for name, member in installation.top_level.items():
        owner = INSTALLER_MODULES.get(module_name(name, member) or "")
        if owner is not None and owner != distribution:
            yield error(f"{name} belongs to {owner}, and would replace it.", member)

    for name, member in installation.programs.items():
        program = name.lower().removesuffix(".exe").removesuffix("-script.py")
        if _VERSIONED_PROGRAM.fullmatch(program):
            program = program.rstrip("0123456789.-")
        owner = INSTALLER_PROGRAMS.get(program)
        if owner is not None and owner != distribution:
            yield error(f"A program named {name} would replace that of {owner}.", member)


def _find_unexpected_contents(
    view: WheelView, installation: Installation, allowed: AllowedContents
) -> Iterator[Finding]:
    """Yield errors for modules, programs and requirements that a distribution may not bring."""
    distribution = view.name.distribution
    top_level: dict[str, str] = {}
    for name, member in installation.top_level.items():
        module = module_name(name, member) or name
        if not name.endswith(".dist-info") and not matches(module, allowed.top_level):
            top_level[name] = member
    other_entry_points: dict[str, str] = {}
    for entry_point in installation.entry_points:
        if entry_point.group not in SCRIPT_GROUPS:
            other_entry_points[f"{entry_point.group}:{entry_point.name}"] = ""
    requirements: dict[str, str] = {}
    for text in view.metadata.requires_dist if view.metadata else ():
        name = required_name(text)  # "" where the checks of METADATA report it
        # An extra may name the distribution itself, with other extras.
        if name not in {"", distribution}:
            requirements[name] = ""

    # Where a policy adds to them, with what each is called.
    members_by_kind = {
        ("top_level", "top-level name"): (top_level, allowed.top_level),
        ("programs", "program"): (installation.programs, allowed.programs),
        ("data_files", "data file"): (installation.data_files, allowed.data_files),
        ("entry_points", "entry point"): (other_entry_points, allowed.entry_points),
        ("requirements", "requirement"): (requirements, allowed.requirements),
    }
    for (key, kind), (members, patterns) in members_by_kind.items():
        for name, member in members.items():
            if not matches(name, patterns):
                addition = f'allowed.{distribution}.{key} = ["{name}"]'
                yield error(f"{distribution} has no {kind} {name}. {_how_to_allow(addition)}", member)


def _how_to_allow(addition: str) -> str:
    """Return the sentence on where a user adds a line that allows what was found."""
    return (
        f"If that is right, say so: {addition} in a file for --policy, "
        f"or {USER_TABLE}.{addition} in pytorch-build.toml."
    )
