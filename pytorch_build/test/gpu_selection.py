"""Which GPUs tests run on: a GPU family becomes device variables, set before torch is imported.

How the runtimes read the variables: ``ROCR_VISIBLE_DEVICES`` chooses among the machine's GPUs,
``HIP_VISIBLE_DEVICES`` among what that left (ROCm takes ``CUDA_VISIBLE_DEVICES`` where it is not set),
by index or UUID, in the order given. An index that does not exist ends their list without a word;
here it is an error. ``-1`` ends it on purpose.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from core.errors import CheckError, UsageError
from pytorch_build.test.gpu_facts import HIDING

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from pytorch_build.test.gpu_facts import Gpu, Machine

Policy = Literal["unique", "all"]


@dataclass(frozen=True, kw_only=True)
class Device:
    """A GPU that a process would see."""

    gpu: Gpu
    word: str


@dataclass(frozen=True, kw_only=True)
class Assignment:
    """The GPUs of one series of processes: all of one architecture."""

    target: str
    devices: tuple[Device, ...]
    env: Mapping[str, str | None]

    @property
    def words(self) -> str:
        """The GPUs in words, for people."""
        if not self.devices:
            return "no GPU"
        listed = ", ".join(one.word for one in self.devices)
        return f"{self.target} ({listed})"


def without_gpu() -> Assignment:
    """Give processes no GPU, whatever the machine has."""
    env: dict[str, str | None] = dict.fromkeys(HIDING)
    # empty hides every GPU from both vendors' runtimes
    return Assignment(
        target="", devices=(), env={**env, "HIP_VISIBLE_DEVICES": "", "CUDA_VISIBLE_DEVICES": ""}
    )


def visible(machine: Machine, env: Mapping[str, str]) -> Sequence[Device]:
    """List what a process with these variables would see, with the words that choose among it."""
    if machine.vendor == "nvidia":
        if "CUDA_VISIBLE_DEVICES" not in env:
            # its runtime counts in another order than its programs unless told otherwise
            return [Device(gpu=gpu, word=gpu.uuid) for gpu in machine.gpus]
        return _chosen(machine.gpus, "CUDA_VISIBLE_DEVICES", env)
    if "ROCR_VISIBLE_DEVICES" in env:
        gpus: Sequence[Gpu] = [one.gpu for one in _chosen(machine.gpus, "ROCR_VISIBLE_DEVICES", env)]
    else:
        gpus = machine.gpus
    topmost = "HIP_VISIBLE_DEVICES" if "HIP_VISIBLE_DEVICES" in env else "CUDA_VISIBLE_DEVICES"
    return _chosen(gpus, topmost, env)


def _chosen(gpus: Sequence[Gpu], variable: str, env: Mapping[str, str]) -> Sequence[Device]:
    if variable not in env:
        return [Device(gpu=gpu, word=str(index)) for index, gpu in enumerate(gpus)]
    devices: list[Device] = []
    for word in (part.strip() for part in env[variable].split(",")):
        if word in ("", "-1"):
            break
        device = Device(gpu=gpus[_index(word, gpus, variable, env[variable])], word=word)
        if any(device.gpu is one.gpu for one in devices):
            raise UsageError(f"{variable}={env[variable]} names a GPU twice.", hint=f"Correct {variable}.")
        devices.append(device)
    return devices


def _index(word: str, gpus: Sequence[Gpu], variable: str, value: str) -> int:
    if word.isascii() and word.isdigit():
        if int(word) < len(gpus):
            return int(word)
        found = []
    else:
        # as the runtimes do, a beginning that names one GPU alone is enough
        found = [at for at, gpu in enumerate(gpus) if gpu.uuid and gpu.uuid.lower().startswith(word.lower())]
    if len(found) == 1:
        return found[0]
    known = ", ".join(gpu.uuid for gpu in gpus if gpu.uuid)
    what = f"GPUs 0 to {len(gpus) - 1}" if gpus else "no GPU"
    raise UsageError(
        f"{variable}={value} names {word}, and there {'are' if gpus else 'is'} {what}"
        f"{f' ({known})' if known else ''}.",
        hint=f"Correct {variable}, or take it out.",
    )


def select(
    machine: Machine,
    env: Mapping[str, str],
    *,
    gpu_family: str,
    targets: Sequence[str],
    policy: Policy = "unique",
    any_vendor: bool = False,
) -> Sequence[Assignment]:
    """Choose the GPUs of a family among those that are visible, one assignment an architecture."""
    hint = "Run it on a machine with one, name its family with --gpu-family, or say --allow-no-gpu."
    if not machine.vendor:
        raise CheckError(
            f"Wheels for {gpu_family} are to be tested, and no GPU driver is loaded in this machine "
            "(no /dev/kfd, and neither rocminfo nor offload-arch names a GPU).",
            hint=f"In a container, pass the devices on: --device /dev/kfd --device /dev/dri.\n{hint}",
        )
    if not machine.gpus:
        raise CheckError(
            f"Wheels for {gpu_family} are to be tested; the GPU driver is loaded and shows no GPU.",
            hint="See that this user may open /dev/dri/renderD* (groups video and render), and: rocminfo",
        )
    devices = visible(machine, env)
    if not devices:
        hiding = ", ".join(f"{name}={env[name]}" for name in HIDING if name in env)
        raise CheckError(
            f"This machine has {_listed(machine.gpus)}, and {hiding} hides every GPU.",
            hint="Take the variable out, or name the GPUs that tests may use.",
        )
    other = machine.vendor == "nvidia" and any_vendor
    found = [one for one in devices if other or one.gpu.target in targets]
    if not found:
        raise CheckError(
            f"No visible GPU is of {gpu_family} ({', '.join(targets)}): here is "
            f"{_listed([one.gpu for one in devices])}.",
            hint=hint,
        )
    by_target: dict[str, list[Device]] = {}
    for one in found:
        by_target.setdefault(one.gpu.target, []).append(one)
    return [
        _assigned(machine, target, group if policy == "all" else group[:1], env)
        for target, group in by_target.items()
    ]


def _assigned(machine: Machine, target: str, devices: Sequence[Device], env: Mapping[str, str]) -> Assignment:
    words = ",".join(one.word for one in devices)
    if machine.vendor == "nvidia":
        return Assignment(target=target, devices=tuple(devices), env={"CUDA_VISIBLE_DEVICES": words})
    # the runtime refuses to choose between two variables that say different things
    changes: dict[str, str | None] = {
        name: None for name in ("CUDA_VISIBLE_DEVICES", "GPU_DEVICE_ORDINAL") if name in env
    }
    return Assignment(target=target, devices=tuple(devices), env={**changes, "HIP_VISIBLE_DEVICES": words})


def _listed(gpus: Sequence[Gpu]) -> str:
    counted: dict[str, int] = {}
    for gpu in gpus:
        known = f"{gpu.target} ({gpu.name})" if gpu.name else gpu.target
        counted[known] = counted.get(known, 0) + 1
    return ", ".join(f"{count} x {known}" if count > 1 else known for known, count in counted.items())
