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
    # when CI builds it: `ci/families.toml` explains, and `ci.plan.data` checks it
    linux: dict[str, Any] | None = None
    windows: dict[str, Any] | None = None


class _FamiliesFile(Model):
    targets: tuple[str, ...]
    families: dict[str, _FamilyTable]

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        owners: dict[str, str] = {}
        for name, table in self.families.items():
            if not table.targets and name not in {*self.targets, CPU}:
                close = nearest(name, {one for one, its in self.families.items() if its.targets})
                raise ValueError(f"families.{name} has no targets. {close}")
            for target in table.targets:
                if target not in self.targets:
                    close = nearest(target, self.targets)
                    raise ValueError(f"families.{name}.targets: unknown gfx target {target!r}. {close}")
                if table.default and owners.setdefault(target, name) != name:
                    raise ValueError(f"{target} has two default families, {owners[target]} and {name}.")
        return self


_file = data_file(FAMILIES_FILE, _FamiliesFile)


@read_once
def families() -> Mapping[str, Family]:
    """Return every family by name: those of the data, the user's own too, each gfx target, and ``cpu``."""
    data = _file()
    tables = {name: table.targets for name, table in data.families.items() if table.targets}
    named = {name: Family(name=name, targets=targets) for name, targets in tables.items()}
    single = {target: Family(name=target, targets=(target,)) for target in data.targets}
    return {**named, **single, CPU: Family(name=CPU, targets=())}


def _known_name(name: str) -> str:
    if name not in families():
        raise ValueError(f"unknown GPU family {name!r}. {nearest(name, families())}")
    return name


FamilyName = Annotated[str, AfterValidator(_known_name)]


def family(name: str) -> Family:
    """Find a family by name; a list (``a;b`` or ``a,b``) is the union of its members."""
    names = [part.strip() for part in re.split(r"[;,]", name) if part.strip()]
    if not names:
        raise UsageError("The GPU family is empty.", hint=_listing())
    members = [_known(part) for part in names]
    if len(members) == 1:
        return members[0]
    if any(member.name == CPU for member in members):
        raise UsageError(f"GPU family {name!r}: {CPU} cannot be combined with GPU families.")
    targets = dict.fromkeys(target for member in members for target in member.targets)
    return Family(name=";".join(dict.fromkeys(member.name for member in members)), targets=tuple(targets))


def _known(name: str) -> Family:
    known = families()
    if name not in known:
        raise UsageError(f"Unknown GPU family {name!r}. {nearest(name, known)}", hint=_CHOOSE)
    return known[name]


def group_families(group: str) -> str:
    """Return the families that an artifact group is for, joined by ``;``, without a variant; "" for none.

    ``gfx94X-dcgpu-gfx110X-all-asan`` is for ``gfx94X-dcgpu;gfx110X-all``.
    """
    found, rest = [], group
    while known := [one for one in families() if f"{rest}-".startswith(f"{one}-")]:
        found.append(max(known, key=len))
        rest = rest[len(found[-1]) + 1 :]
    return ";".join(found)


def gpu_targets(name: str) -> tuple[str, ...]:
    """Expand a family, or a list of families, into gfx targets; ``cpu`` has none."""
    return family(name).targets


def parents(target: str) -> tuple[str, ...]:
    """Return the groups of targets that packages of device code are also made for: sub-family, family.

    ``gfx1151`` is in ``gfx115x`` and ``gfx11``, ``gfx942`` in ``gfx9-4`` and ``gfx9``. Source: the bundles
    of rocm-bootstrap, which follow from a target's version: major, and minor (one hexadecimal digit).
    """
    found = _VERSION.fullmatch(target)
    return (sub_family(found[1], found[2]), f"gfx{found[1]}") if found else ()


def sub_family(major: str, minor: str) -> str:
    """Return the name of a group of targets with one major and minor version."""
    return f"gfx{major}{minor}x" if major == "11" else f"gfx{major}-{minor}"


def detect(kfd_root: Path = KFD_NODES) -> tuple[str, ...]:
    """Find this machine's gfx targets, such as ``("gfx942",)``, each once, in the order of its GPUs.

    The kernel's topology files come first (no program is needed), then ``offload-arch``, then ``rocminfo``.
    """
    versions = (node.get("gfx_target_version", 0) for node in kernel_nodes(kfd_root))
    found = tuple(dict.fromkeys(map(target_of_version, filter(None, versions))))
    return found or _program_targets("offload-arch") or _program_targets("rocminfo")


def kernel_nodes(kfd_root: Path) -> Iterator[Mapping[str, int]]:
    """Read the properties of each node of the kernel's topology, in the order of the nodes' numbers."""
    files = kfd_root.glob("*/properties")
    for file in sorted(files, key=lambda one: (len(one.parent.name), one.parent.name)):
        with suppress(OSError):  # a GPU that another container owns may be listed but not readable
            yield {name: int(value) for name, value in _PROPERTY.findall(file.read_text(encoding="utf-8"))}


def target_of_version(version: int) -> str:
    """Turn the kernel's ``gfx_target_version`` into a gfx target.

    The number is decimal, major * 10000 + minor * 100 + stepping; in the target's name
    minor and stepping are one hexadecimal digit each: 90010 is ``gfx90a``.
    """
    return f"gfx{version // 10000}{version // 100 % 100:x}{version % 100:x}"


def _program_targets(program: str) -> tuple[str, ...]:
    path = process.which(program)
    if path is None:
        return ()
    # these programs fail on machines without a GPU, which is an answer here
    said = process.capture([path], check=False)
    words = (word.partition(":")[0] for word in said.stdout.split()) if said.returncode == 0 else ()
    return tuple(dict.fromkeys(word for word in words if _TARGET.fullmatch(word)))


def default_family(detected: Iterable[str]) -> str:
    """Choose the family to build for on a machine with these gfx targets.

    A discrete GPU counts before the processor's integrated one.
    """
    targets = tuple(detected)
    if not targets:
        raise UsageError("No GPU was found in this machine: the GPU family must be given.", hint=_listing())
    integrated = families()[_INTEGRATED].targets
    discrete = [target for target in targets if target not in integrated]
    tables = _file().families.items()
    defaults = {target: name for name, table in tables if table.default for target in table.targets}
    chosen = {defaults.get(target) or _known(target).name for target in discrete or targets}
    if len(chosen) > 1:
        raise UsageError(
            f"This machine has GPUs of several families: {', '.join(targets)}.",
            hint=f"Choose: --gpu-family {' or --gpu-family '.join(sorted(chosen))}.",
        )
    return chosen.pop()


def _listing() -> str:
    names = ", ".join(name for name, table in _file().families.items() if table.targets)
    return f"Families: {names}.\n{_CHOOSE}"
