"""GPU families: the gfx targets each stands for, and which one this machine's GPU needs."""

import re
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Self

from pydantic import AfterValidator, model_validator

from core import process
from core.data import Model, data_file, read_once
from core.errors import UsageError, nearest

CPU = "cpu"
FAMILIES_FILE = Path(__file__).with_name("families.toml")
KFD_NODES = Path("/sys/class/kfd/kfd/topology/nodes")

_TARGET = re.compile(r"gfx[0-9a-f]{3,4}")
_VERSION = re.compile(r"gfx([0-9]+)([0-9a-f])[0-9a-f]")
_PROPERTY = re.compile(r"^(\w+) (\d+)$", re.MULTILINE)
_INTEGRATED = "igpu-all"
_CHOOSE = (
    "Choose one with --gpu-family; a single gfx target (gfx1151) is one, too. --gpu-family cpu builds "
    "without ROCm, and --torch-ref sample tries everything out on a small sample."
)


@dataclass(frozen=True, kw_only=True)
class Family:
    """A GPU family, such as ``gfx94X-dcgpu``; names joined by ``;`` name a union, ``cpu`` has no targets."""

    name: str
    targets: tuple[str, ...]


class _FamilyTable(Model):
    targets: tuple[str, ...] = ()
    default: bool = False
    # When CI builds it: `ci/families.toml` explains, and `ci.plan.data` checks it.
    linux: dict[str, Any] | None = None
    windows: dict[str, Any] | None = None


class _FamiliesFile(Model):
    targets: tuple[str, ...]
    families: dict[str, _FamilyTable]

    @model_validator(mode="after")
    def _check_tables(self) -> Self:
        default_families: dict[str, str] = {}
        for name, table in self.families.items():
            self._require_known_targets(name, table)
            if not table.default:
                continue
            for target in table.targets:
                other_name = default_families.setdefault(target, name)
                if other_name != name:
                    raise ValueError(f"{target} has two default families, {other_name} and {name}.")
        return self

    def _require_known_targets(self, name: str, table: _FamilyTable) -> None:
        if not table.targets and name not in {*self.targets, CPU}:
            suggestion = nearest(name, self.named_targets)
            raise ValueError(f"families.{name} has no targets. {suggestion}")
        for target in table.targets:
            if target not in self.targets:
                suggestion = nearest(target, self.targets)
                raise ValueError(f"families.{name}.targets: unknown gfx target {target!r}. {suggestion}")

    @property
    def named_targets(self) -> Mapping[str, tuple[str, ...]]:
        """The targets of each family that has some; other tables say when CI builds a single target."""
        return {name: table.targets for name, table in self.families.items() if table.targets}


_file = data_file(FAMILIES_FILE, _FamiliesFile)


@read_once
def families() -> Mapping[str, Family]:
    """Return every family by name: those of the data, the user's own too, each gfx target, and ``cpu``."""
    by_name: dict[str, Family] = {}
    for name, targets in _file().named_targets.items():
        by_name[name] = Family(name=name, targets=targets)
    for target in _file().targets:
        by_name[target] = Family(name=target, targets=(target,))
    by_name[CPU] = Family(name=CPU, targets=())
    return by_name


def _known_name(name: str) -> str:
    if name not in families():
        raise ValueError(f"unknown GPU family {name!r}. {nearest(name, families())}")
    return name


FamilyName = Annotated[str, AfterValidator(_known_name)]


def family(name: str) -> Family:
    """Return a family by name; a list (``a;b`` or ``a,b``) is the union of its members."""
    names = [part.strip() for part in re.split(r"[;,]", name) if part.strip()]
    if not names:
        raise UsageError("The GPU family is empty.", hint=_listing())
    members = [_require_family(part) for part in names]
    if len(members) == 1:
        return members[0]

    # As sets, which keep their order.
    member_names: dict[str, None] = {}
    targets: dict[str, None] = {}
    for member in members:
        if member.name == CPU:
            raise UsageError(f"GPU family {name!r}: {CPU} cannot be combined with GPU families.")
        member_names[member.name] = None
        targets.update(dict.fromkeys(member.targets))
    return Family(name=";".join(member_names), targets=tuple(targets))


def _require_family(name: str) -> Family:
    by_name = families()
    if name not in by_name:
        raise UsageError(f"Unknown GPU family {name!r}. {nearest(name, by_name)}", hint=_CHOOSE)
    return by_name[name]


def group_families(group: str) -> str:
    """Return the families that an artifact group is for, joined by ``;``, without a variant; "" for none.

    ``gfx94X-dcgpu-gfx110X-all-asan`` is for ``gfx94X-dcgpu;gfx110X-all``.
    """
    group_members: list[str] = []
    remaining_name = group
    while True:
        candidates = [name for name in families() if f"{remaining_name}-".startswith(f"{name}-")]
        if not candidates:
            return ";".join(group_members)
        # One family's name may begin like another's.
        longest_name = max(candidates, key=len)
        group_members.append(longest_name)
        remaining_name = remaining_name[len(longest_name) + 1 :]


def gpu_targets(name: str) -> tuple[str, ...]:
    """Expand a family, or a list of families, into gfx targets; ``cpu`` has none."""
    return family(name).targets


def parents(target: str) -> tuple[str, ...]:
    """Return the groups of targets that packages of device code are also made for: sub-family, family.

    ``gfx1151`` is in ``gfx115x`` and ``gfx11``, ``gfx942`` in ``gfx9-4`` and ``gfx9``. Source: the bundles
    of rocm-bootstrap, which follow from a target's version: major, and minor (one hexadecimal digit).
    """
    version = _VERSION.fullmatch(target)
    if version is None:
        return ()
    return sub_family(version[1], version[2]), f"gfx{version[1]}"


def sub_family(major: str, minor: str) -> str:
    """Return the name of a group of targets with one major and minor version."""
    return f"gfx{major}{minor}x" if major == "11" else f"gfx{major}-{minor}"


def detect(kfd_root: Path = KFD_NODES) -> tuple[str, ...]:
    """Find this machine's gfx targets, such as ``("gfx942",)``, each once, in the order of its GPUs.

    The kernel's topology files come first (no program is needed), then ``offload-arch``, then ``rocminfo``.
    """
    targets: dict[str, None] = {}
    for node in kernel_nodes(kfd_root):
        version = node.get("gfx_target_version", 0)
        # A processor's node has version 0.
        if version:
            targets[target_of_version(version)] = None
    return tuple(targets) or _targets_by_program("offload-arch") or _targets_by_program("rocminfo")


def kernel_nodes(kfd_root: Path) -> Iterator[Mapping[str, int]]:
    """Read the properties of each node of the kernel's topology, in the order of the nodes' numbers."""
    files = kfd_root.glob("*/properties")
    # By number: 10 comes after 9.
    for file in sorted(files, key=lambda file: (len(file.parent.name), file.parent.name)):
        # A GPU that another container owns may be listed but not readable.
        with suppress(OSError):
            properties = _PROPERTY.findall(file.read_text(encoding="utf-8"))
            yield {name: int(value) for name, value in properties}


def target_of_version(version: int) -> str:
    """Turn the kernel's ``gfx_target_version`` into a gfx target.

    The number is decimal, major * 10000 + minor * 100 + stepping; in the target's name
    minor and stepping are one hexadecimal digit each: 90010 is ``gfx90a``.
    """
    return f"gfx{version // 10000}{version // 100 % 100:x}{version % 100:x}"


def _targets_by_program(program: str) -> tuple[str, ...]:
    """Return the targets that a program of ROCm lists, such as ``gfx90a:sramecc+:xnack-``."""
    path = process.which(program)
    if path is None:
        return ()
    completed = process.capture([path], check=False)
    # These programs fail on machines without a GPU, which is an answer here.
    if completed.returncode != 0:
        return ()

    targets: dict[str, None] = {}
    for word in completed.stdout.split():
        target = word.partition(":")[0]
        if _TARGET.fullmatch(target):
            targets[target] = None
    return tuple(targets)


def default_family(detected: Iterable[str]) -> str:
    """Choose the family to build for on a machine with these gfx targets.

    A discrete GPU counts before the processor's integrated one.
    """
    targets = tuple(detected)
    if not targets:
        raise UsageError("No GPU was found in this machine: the GPU family must be given.", hint=_listing())

    integrated = families()[_INTEGRATED].targets
    discrete = [target for target in targets if target not in integrated]
    names = {_default_family_of(target) for target in discrete or targets}
    if len(names) > 1:
        raise UsageError(
            f"This machine has GPUs of several families: {', '.join(targets)}.",
            hint=f"Choose: --gpu-family {' or --gpu-family '.join(sorted(names))}.",
        )
    return names.pop()


def _default_family_of(target: str) -> str:
    for name, table in _file().families.items():
        if table.default and target in table.targets:
            return name
    return _require_family(target).name


def _listing() -> str:
    names = ", ".join(_file().named_targets)
    return f"Families: {names}.\n{_CHOOSE}"
