"""GPU families: the gfx targets each stands for, and which one this machine's GPU needs."""

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Self

from pydantic import AfterValidator, model_validator

from core import process
from core.data import Model, cached_by_user_file, data_file
from core.errors import UsageError, nearest

CPU = "cpu"
FAMILIES_FILE = Path(__file__).with_name("families.toml")
KFD_NODES = Path("/sys/class/kfd/kfd/topology/nodes")

_TARGET = re.compile(r"gfx[0-9a-f]{3,4}")
_VERSION = re.compile(r"gfx([0-9]+)([0-9a-f])[0-9a-f]")
_PROPERTY = re.compile(r"^(\w+) (\d+)$", re.MULTILINE)
_INTEGRATED = "igpu-all"
Targets = tuple[str, ...]  # such as gfx942
_CHOOSE = (
    "Choose one with --gpu-family; a single gfx target (gfx1151) is one, too. --gpu-family cpu builds "
    "without ROCm, and --torch-ref sample tries everything out on a small sample."
)


@dataclass(frozen=True, kw_only=True)
class Family:
    """A GPU family, such as ``gfx94X-dcgpu``; names joined by ``;`` name a union, ``cpu`` has no targets."""

    name: str
    targets: Targets


class _FamilyTable(Model):
    targets: Targets = ()
    default: bool = False
    # When CI builds it: `ci/families.toml` explains, and `ci.plan.data` checks it.
    linux: dict[str, Any] | None = None
    windows: dict[str, Any] | None = None


class _FamiliesFile(Model):
    targets: Targets
    families: dict[str, _FamilyTable]

    @model_validator(mode="after")
    def _check_tables(self) -> Self:
        for name, table in self.families.items():
            self._require_targets(name, table)
            for target in table.targets:
                self._require_known_target(name, target)
        self._require_single_defaults()
        return self

    def _require_targets(self, name: str, table: _FamilyTable) -> None:
        # A table may also say when CI builds a single target, or for CPUs.
        if table.targets or name == CPU or name in self.targets:
            return
        suggestion = nearest(name, self.named_targets)
        raise ValueError(f"families.{name} has no targets. {suggestion}")

    def _require_known_target(self, name: str, target: str) -> None:
        if target in self.targets:
            return
        key = f"families.{name}.targets"
        suggestion = nearest(target, self.targets)
        raise ValueError(f"{key}: unknown gfx target {target!r}. {suggestion}")

    def _require_single_defaults(self) -> None:
        default_families: dict[str, str] = {}
        for name, table in self.families.items():
            if not table.default:
                continue
            for target in table.targets:
                other_name = default_families.setdefault(target, name)
                if other_name == name:
                    continue
                names = f"{other_name} and {name}"
                raise ValueError(f"{target} has two default families, {names}.")

    @property
    def named_targets(self) -> Mapping[str, Targets]:
        """The targets of each family that has some; other tables say when CI builds a single target."""
        targets_by_name: dict[str, Targets] = {}
        for name, table in self.families.items():
            if table.targets:
                targets_by_name[name] = table.targets
        return targets_by_name


_families_file = data_file(FAMILIES_FILE, _FamiliesFile)


@cached_by_user_file
def families() -> Mapping[str, Family]:
    """Return every family by name: those of the data, the user's own too, each gfx target, and ``cpu``."""
    data = _families_file()
    by_name: dict[str, Family] = {}
    for name, targets in data.named_targets.items():
        by_name[name] = Family(name=name, targets=targets)
    for target in data.targets:
        by_name[target] = Family(name=target, targets=(target,))
    by_name[CPU] = Family(name=CPU, targets=())
    return by_name


def _known_name(name: str) -> str:
    known_names = families()
    if name not in known_names:
        suggestion = nearest(name, known_names)
        raise ValueError(f"unknown GPU family {name!r}. {suggestion}")
    return name


FamilyName = Annotated[str, AfterValidator(_known_name)]


def family(name: str) -> Family:
    """Return a family by name; a list (``a;b`` or ``a,b``) is the union of its members."""
    names = _names_in_list(name)
    if not names:
        raise UsageError("The GPU family is empty.", hint=_listing())

    members = [_require_family(member_name) for member_name in names]
    if len(members) == 1:
        return members[0]
    return _union(name, members)


def _names_in_list(text: str) -> list[str]:
    names: list[str] = []
    parts = re.split(r"[;,]", text)
    for part in parts:
        name = part.strip()
        if name:
            names.append(name)
    return names


def _union(name: str, members: Sequence[Family]) -> Family:
    """Return several families as one; what they share is in it once."""
    # As sets, which keep their order.
    member_names: dict[str, None] = {}
    targets: dict[str, None] = {}
    for member in members:
        if member.name == CPU:
            message = f"GPU family {name!r}: {CPU} cannot be combined with GPU families."
            raise UsageError(message)
        member_names[member.name] = None
        for target in member.targets:
            targets[target] = None

    joined_names = ";".join(member_names)
    return Family(name=joined_names, targets=tuple(targets))


def _require_family(name: str) -> Family:
    by_name = families()
    member = by_name.get(name)
    if member is None:
        suggestion = nearest(name, by_name)
        raise UsageError(f"Unknown GPU family {name!r}. {suggestion}", hint=_CHOOSE)
    return member


def group_families(group: str) -> str:
    """Return the families that an artifact group is for, joined by ``;``, without a variant; "" for none.

    ``gfx94X-dcgpu-gfx110X-all-asan`` is for ``gfx94X-dcgpu;gfx110X-all``.
    """
    group_members: list[str] = []
    remaining_name = group
    while (name := _longest_family_at_start(remaining_name)) is not None:
        group_members.append(name)
        remaining_name = remaining_name.removeprefix(name).removeprefix("-")
    return ";".join(group_members)


def _longest_family_at_start(group: str) -> str | None:
    """Return the family that a group's name begins with; one family's name may begin like another's."""
    names = [name for name in families() if _begins_with(group, name)]
    return max(names, key=len, default=None)


def _begins_with(group: str, name: str) -> bool:
    if group == name:
        return True
    return group.startswith(f"{name}-")


def gpu_targets(name: str) -> Targets:
    """Expand a family, or a list of families, into gfx targets; ``cpu`` has none."""
    return family(name).targets


def parents(target: str) -> Targets:
    """Return the groups of targets that packages of device code are also made for: sub-family, family.

    ``gfx1151`` is in ``gfx115x`` and ``gfx11``, ``gfx942`` in ``gfx9-4`` and ``gfx9``. Source: the bundles
    of rocm-bootstrap, which follow from a target's version: major, and minor (one hexadecimal digit).
    """
    version = _VERSION.fullmatch(target)
    if version is None:
        return ()
    major, minor = version.groups()
    family_name = f"gfx{major}"
    return sub_family(major, minor), family_name


def sub_family(major: str, minor: str) -> str:
    """Return the name of a group of targets with one major and minor version."""
    if major == "11":
        return f"gfx{major}{minor}x"
    return f"gfx{major}-{minor}"


def detect(kfd_root: Path = KFD_NODES) -> Targets:
    """Find this machine's gfx targets, such as ``("gfx942",)``, each once, in the order of its GPUs.

    The kernel's topology files come first (no program is needed), then ``offload-arch``, then ``rocminfo``.
    """
    targets = _targets_by_kernel(kfd_root)
    if targets:
        return targets

    for program in ("offload-arch", "rocminfo"):
        targets = _targets_by_program(program)
        if targets:
            return targets
    return ()


def _targets_by_kernel(kfd_root: Path) -> Targets:
    targets: dict[str, None] = {}
    for node in kernel_nodes(kfd_root):
        version = node.get("gfx_target_version", 0)
        # A processor's node has version 0.
        if version != 0:
            target = target_of_version(version)
            targets[target] = None
    return tuple(targets)


def kernel_nodes(kfd_root: Path) -> Iterator[Mapping[str, int]]:
    """Read the properties of each node of the kernel's topology, in the order of the nodes' numbers."""
    files = kfd_root.glob("*/properties")
    for file in sorted(files, key=_node_order):
        # A GPU that another container owns may be listed but not readable.
        with suppress(OSError):
            text = file.read_text(encoding="utf-8")
            properties = _PROPERTY.findall(text)
            yield {name: int(number) for name, number in properties}


def _node_order(file: Path) -> tuple[int, str]:
    """Order nodes by their numbers: 10 comes after 9."""
    number = file.parent.name
    digits = len(number)
    return digits, number


def target_of_version(version: int) -> str:
    """Turn the kernel's ``gfx_target_version`` into a gfx target.

    The number is decimal, major * 10000 + minor * 100 + stepping; in the target's name
    minor and stepping are one hexadecimal digit each: 90010 is ``gfx90a``.
    """
    major = version // 10000
    minor = version // 100 % 100
    stepping = version % 100
    return f"gfx{major}{minor:x}{stepping:x}"


def _targets_by_program(program: str) -> Targets:
    """Return the targets that a program of ROCm lists, such as ``gfx90a:sramecc+:xnack-``."""
    executable = process.which(program)
    if executable is None:
        return ()

    completed = process.capture([executable], check=False)
    # These programs fail on machines without a GPU, which is an answer here.
    if completed.returncode != 0:
        return ()

    targets: dict[str, None] = {}
    for word in completed.stdout.split():
        target, _colon, _features = word.partition(":")
        if _TARGET.fullmatch(target) is not None:
            targets[target] = None
    return tuple(targets)


def default_family(detected: Iterable[str]) -> str:
    """Choose the family to build for on a machine with these gfx targets.

    A discrete GPU counts before the processor's integrated one.
    """
    targets = tuple(detected)
    if not targets:
        raise UsageError(
            "No GPU was found in this machine: the GPU family must be given.",
            hint=_listing(),
        )

    integrated = families()[_INTEGRATED]
    discrete_targets = [target for target in targets if target not in integrated.targets]
    counted_targets = discrete_targets or targets
    names = {_default_family_of(target) for target in counted_targets}
    if len(names) > 1:
        listed_targets = ", ".join(targets)
        listed_names = " or --gpu-family ".join(sorted(names))
        raise UsageError(
            f"This machine has GPUs of several families: {listed_targets}.",
            hint=f"Choose: --gpu-family {listed_names}.",
        )
    return names.pop()


def _default_family_of(target: str) -> str:
    data = _families_file()
    for name, table in data.families.items():
        if table.default and target in table.targets:
            return name

    # A target alone is a family, too.
    target_family = _require_family(target)
    return target_family.name


def _listing() -> str:
    data = _families_file()
    named_targets = data.named_targets
    names = ", ".join(named_targets)
    return f"Families: {names}.\n{_CHOOSE}"
