"""What is asked of a run of upstream's tests, and what it runs on: the tree, the GPUs, the environment."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from core import console, process
from core.errors import CheckError
from pytorch_build.test import configurations, gpu_selection, plugin
from pytorch_build.test.gpu_facts import this_machine
from pytorch_build.test.results import DEFAULT_CONFIG
from pytorch_build.test.sharding import Shard

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from core.env import Interpreter
    from pytorch_build.context import Context
    from pytorch_build.test.configurations import LimitsTable
    from pytorch_build.test.gpu_selection import Assignment, Policy
    from pytorch_build.test.upstream_tests import Tests, Torch

# what of the caller's own could change what is tested, or where it writes
_OTHERS = (
    *("PYTHONPATH", "PYTHONHOME", "PYTHONSTARTUP", "PYTHONWARNINGS", "PYTEST_ADDOPTS", "PYTEST_PLUGINS"),
    *("CI", "GITHUB_ACTIONS", "TEST_CONFIG", "PYTORCH_TEST_WITH_INDUCTOR", "PYTORCH_TEST_WITH_DYNAMO"),
    *("LD_LIBRARY_PATH", "ROCM_PATH", "ROCM_HOME", "HIP_PATH"),
)


@dataclass(frozen=True, kw_only=True)
class TorchTests:
    """What is asked for."""

    config: str = DEFAULT_CONFIG
    shard: Shard = field(default_factory=Shard)
    include: tuple[str, ...] = ()
    exclude: tuple[str, ...] = ()
    expression: str = ""
    pytest_arguments: tuple[str, ...] = ()
    tree: Path | None = None
    allow_version_mismatch: bool = False
    allow_no_gpu: bool = False
    other_gpu: bool = False
    gpus: Policy | None = None
    workers: int = 1
    skips: tuple[Path, ...] = ()
    durations: Path | None = None
    limits: LimitsTable | None = None
    mirrors: Mapping[str, str] = field(default_factory=dict)

    @property
    def choices(self) -> list[str]:
        """What was chosen among the tests, or put in their place: no promotion rests on such results."""
        words = [word for name in self.include for word in ("--include", name)]
        words += [word for name in self.exclude for word in ("--exclude", name)]
        words += ["-k", self.expression] if self.expression else []
        words += ["--pytorch-dir", str(self.tree)] if self.tree else []
        words += ["--allow-version-mismatch"] if self.allow_version_mismatch else []
        words += ["--other-gpu"] if self.other_gpu else []
        words += [word for path in self.skips for word in ("--skips", str(path))]
        return [*words, *self.pytest_arguments]


def assignments(context: Context, asked: TorchTests, env: Mapping[str, str]) -> Sequence[Assignment]:
    """Choose the GPUs; one without any for family ``cpu``, and where that is allowed."""
    if not context.gpu and not asked.other_gpu:
        return [gpu_selection.without_gpu()]
    try:
        return gpu_selection.select(
            this_machine(),
            env,
            gpu_family=context.gpu_family,
            targets=context.gpu_targets,
            policy=asked.gpus or configurations.configuration(asked.config).gpus,
            any_vendor=asked.other_gpu,
        )
    except CheckError as problem:
        # the sample's device code is none that a GPU could run
        if not (asked.allow_no_gpu or context.ref.local_label):
            raise
        console.say(f"{problem.message} Tests run without a GPU.")
        return [gpu_selection.without_gpu()]


@dataclass(frozen=True, kw_only=True)
class Bench:
    """Where tests run: wheels are installed, the tree and the GPUs are chosen."""

    context: Context
    target: Interpreter
    tests: Tests
    torch: Torch
    assignments: Sequence[Assignment]

    @property
    def gpu(self) -> bool:
        """Whether there is a GPU to run on."""
        return any(one.devices for one in self.assignments)


def environment(bench: Bench, assigned: Assignment, folder: Path) -> Mapping[str, str]:
    """Give the environment of a test file's processes: the GPUs, upstream's switches, caches of its own."""
    target, tree = bench.target, bench.tests.tree
    folders = {
        "HOME": "home",
        "USERPROFILE": "home",
        "XDG_CACHE_HOME": "cache",
        "TMPDIR": "tmp",
        "TEMP": "tmp",
        "TMP": "tmp",
        "TORCHINDUCTOR_CACHE_DIR": "inductor",
        "TRITON_CACHE_DIR": "triton",
        "TRITON_HOME": "home",
        "TORCH_HOME": "torch",
        "TORCH_EXTENSIONS_DIR": "extensions",
        "MIOPEN_CUSTOM_CACHE_DIR": "miopen",
        "MIOPEN_USER_DB_PATH": "miopen",
    }
    for name in set(folders.values()):
        (folder / name).mkdir(parents=True, exist_ok=True)
    changes: dict[str, str | None] = {
        **dict.fromkeys(_OTHERS),
        **{name: str(folder / below) for name, below in folders.items()},
        **assigned.env,
        "PATH": f"{target.scripts}{_separator(bench)}{process.inherited().get('PATH', '')}",
        "VIRTUAL_ENV": str(target.prefix),
        "PYTHONPATH": _separator(bench).join((str(tree / "test"), str(plugin.TARGET))),
        "PYTHONUNBUFFERED": "1",
        "PYTORCH_TESTING_DEVICE_ONLY_FOR": "cuda" if assigned.devices else "cpu",
        "PYTORCH_PRINT_REPRO_ON_FAILURE": "0",
        "PYTORCH_TEST_WITH_ROCM": "1" if bench.torch.hip else "0",
        # one thread a process, because matrices of tests are small and machines are shared
        "OPENBLAS_NUM_THREADS": "1",
    }
    return process.inherited(**changes)


def _separator(bench: Bench) -> str:
    return ";" if bench.context.common.outputs.platform == "windows" else ":"
