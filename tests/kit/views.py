"""What checks read of a wheel (`WheelView`), without a wheel that was written and read."""

from collections.abc import Mapping, Sequence
from dataclasses import replace

from core.binaries.elf import ElfFacts
from core.wheel import WheelInfo, WheelMetadata, parse_wheel_name
from pytorch_build.check import Binary, DeviceFacts, Expectation, WheelView
from pytorch_build.check.policy import CheckOptions, Policy
from tests.kit.wheels import metadata_text

BINARY_SIZE = 1000
HOST_LIBRARY = ElfFacts(machine="EM_X86_64", kind="ET_DYN", stack="RW", dynamic=True)


def wheel_view(
    filename: str = "torch-2.10.0a0+cpu-cp312-cp312-linux_x86_64.whl",
    *,
    files: Mapping[str, int | ElfFacts | DeviceFacts] | None = None,
    requires: Sequence[str] = (),
    size: int = 100_000_000,
    is_pure: bool = False,
    entry_points: str = "",
    options: CheckOptions | None = None,
) -> WheelView:
    """Return the view of a wheel: a file is its size, or the facts of a compiled one."""
    name = parse_wheel_name(filename)
    members: dict[str, int] = {}
    binaries: list[Binary] = []
    for path, content in sorted((files or {}).items()):
        members[path] = content if isinstance(content, int) else BINARY_SIZE
        if isinstance(content, ElfFacts):
            binaries.append(Binary(name=path, elf=content))
        elif isinstance(content, DeviceFacts):
            binaries.append(Binary(name=path, elf=HOST_LIBRARY, device=content))

    metadata = WheelMetadata(
        name=name.distribution,
        version=name.version,
        requires_dist=tuple(requires),
        requires_python="",
        provides_extra=(),
        license="BSD-3-Clause",
        raw=metadata_text(
            name=name.distribution,
            version=str(name.version),
            fields=[("Requires-Dist", text) for text in requires],
        ).encode(),
    )
    info = WheelInfo(
        wheel_version="1.0",
        root_is_purelib=is_pure,
        tags=frozenset(str(tag) for tag in name.tags),
        build="".join(str(part) for part in name.build_tag),
    )
    return WheelView(
        name=name,
        size=size,
        members=members,
        metadata=metadata,
        info=info,
        entry_points=entry_points,
        binaries=tuple(binaries),
        options=options or CheckOptions(),
    )


def judged_by(view: WheelView, policy: Policy, expectation: Expectation | None = None) -> WheelView:
    """Return a view that is judged by another policy, and by what is expected of its wheel."""
    return replace(view, options=replace(view.options, policy=policy), expectation=expectation)
