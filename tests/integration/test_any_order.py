"""Documented commands in any order: each does what its page says, or its refusal advises what then works.

The sequences are drawn, so that a failing one can be run again by its seed.
"""

import random
import re
import shlex
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest

from core import process
from tests.kit import sample
from tests.kit.clones import Clone, printed_by
from tests.kit.sample import SampleRun
from tests.kit.store_contents import require_agreement

pytestmark = pytest.mark.nightly

# README, docs/try.md, docs/my-change.md, docs/rehearsal.md, docs/releases.md and docs/operations.md.
BUILD = "invoke ci --torch-ref sample"
BUILD_IN_STORE = "invoke ci --torch-ref sample --run-id 7 --store other"
BUILD_SECOND_REF = "nox -s build_torch index -- --torch-ref second --rocm-run-id local --run-id local-second"
BUILD_SECOND_REF_IN_SAME_RUN = "nox -s build_torch index -- --torch-ref second"
# An option that only the first of these sessions has.
BUILD_WITH_OPTIONS_OF_ONE_SESSION = "nox -s build_torch check_wheels -- --torch-ref sample --no-split"
BUILD_EXTENDED_REF = "invoke ci --torch-ref second --run-id local-extended"
CHANGE = "invoke change --torch-ref sample --pytorch-dir tree"
REBUILD_TRITON = "nox -s build_triton index -- --torch-ref sample --force"
CHECK = "nox -s check_wheels -- --torch-ref sample"
FILTERED_SMOKE_TEST = "nox -s test_smoke -- --torch-ref sample -k matmul"
SMOKE_TEST = "nox -s test_smoke -- --torch-ref sample"
UPLOAD = "nox -s upload"
INDEX = "nox -s index"
REPORT = "nox -s report -- --text"
CLEAN = "nox -s clean"
REHEARSE = "invoke release --type rehearsal"
STAGE_BUILD = "nox -s stage -- --run-id local --gpu-family gfx94X-dcgpu --release-type rehearsal"
PROMOTE = "invoke promote --run-id local-rehearsal --type rehearsal"
PROMOTE_STAGED = "nox -s promote -- --release-type rehearsal"
YANK = (
    "nox -s index -- --check --store out/rehearsal --yank torchvision==0.25.0a0+cpu.sample --reason x --write"
)
WRITE_PAGES = "nox -s index -- --check --store out/rehearsal --write"
REMOVE_SET = "nox -s index -- --check --store out/rehearsal --remove torch-2.10.0a0+cpu.sample --write"

COMMANDS = (
    BUILD,
    BUILD_IN_STORE,
    BUILD_SECOND_REF,
    BUILD_SECOND_REF_IN_SAME_RUN,
    BUILD_EXTENDED_REF,
    BUILD_WITH_OPTIONS_OF_ONE_SESSION,
    CHANGE,
    REBUILD_TRITON,
    CHECK,
    FILTERED_SMOKE_TEST,
    SMOKE_TEST,
    UPLOAD,
    INDEX,
    REPORT,
    CLEAN,
    REHEARSE,
    STAGE_BUILD,
    PROMOTE,
    PROMOTE_STAGED,
    YANK,
    WRITE_PAGES,
    REMOVE_SET,
)

# What once went wrong: a filtered test before a rehearsal, another run's wheels beside those of a rehearsal,
# a second ref in the run of the first, tests and pages before anything is built, a ref that extends the
# sample, options that one of two sessions does not have.
KNOWN_SEQUENCES = (
    (CHECK, SMOKE_TEST, REPORT, CLEAN),
    (BUILD, FILTERED_SMOKE_TEST, REHEARSE, STAGE_BUILD, PROMOTE_STAGED),
    (BUILD, BUILD_SECOND_REF_IN_SAME_RUN, BUILD_IN_STORE, INDEX),
    (BUILD_WITH_OPTIONS_OF_ONE_SESSION, BUILD_EXTENDED_REF),
)

DRAWN_SEQUENCES = 200
COMMANDS_OF_A_SEQUENCE = 6

SECOND_REF = """
[refs.second]
extends = "sample"
torch = { origin = "sample:torch", ref = "main" }
"""

# A command of ours that a hint names, up to the end of its sentence.
NAMED_COMMAND = re.compile(r"\b(?:nox -s|invoke) [^\n;:(]+?(?=[.,]?$|\.\s|[,;]| \(| or )", re.MULTILINE)
# What a person fills in, as in --override-by NAME.
PLACEHOLDER = re.compile(r"\b[A-Z]{2,}\b")
MOST_ADVICE = 6


@dataclass(frozen=True, kw_only=True)
class Checkout:
    """A clone in which commands run, with environments that are there already."""

    clone: Clone

    def run(self, command: str) -> process.Completed:
        """Run a command as somebody types it in the clone."""
        words = shlex.split(command)
        return process.capture(
            [sys.executable, "-m", *words],
            cwd=self.clone.path,
            env=self.clone.variables(NOX_CURRENT_SESSION=None),
            check=False,
        )

    def hold(self, command: str, sequence: Sequence[str], *, depth: int = 0) -> None:
        """Run a command; where it is refused, require that what it advises works, and then the command."""
        context = f"{command}, in {' && '.join(sequence)}"
        assert depth <= MOST_ADVICE, f"{context}: advice leads to advice, {MOST_ADVICE} times"

        completed = self.run(command)
        self.require_agreement(context)
        if completed.returncode == 0:
            return

        printed = printed_by(completed)
        assert "Traceback" not in printed, f"{context}\n{printed[-4000:]}"
        hint = hint_of(printed)
        assert hint, f"{context} is refused without a word on what to do\n{printed[-4000:]}"
        actions = named_commands(hint)
        # Where no command can be run as it stands, a person decides.
        if actions:
            self.hold(actions[0], [*sequence, command], depth=depth + 1)
            self.hold(command, [*sequence, command, actions[0]], depth=depth + 1)

    def require_agreement(self, context: str) -> None:
        """Require that pages, records and files of every store in the clone agree."""
        for store in (self.clone.path / "out", self.clone.path / "other"):
            require_agreement(store, context)


def hint_of(printed: str) -> str:
    """Return the lines of an error behind its first, up to what nox adds."""
    _before, _mark, error = printed.partition("\nerror: ")
    lines: list[str] = []
    for line in error.splitlines()[1:]:
        if line.startswith("nox > "):
            break
        lines.append(line)
    return "\n".join(lines)


def named_commands(hint: str) -> list[str]:
    """Return the commands of ours that a hint names and that can be run as they stand."""
    commands = [match.group().rstrip(" .,") for match in NAMED_COMMAND.finditer(hint)]
    return [command for command in commands if not PLACEHOLDER.search(command)]


def draw_sequence(seed: int) -> Sequence[str]:
    """Draw commands, in half of the sequences behind README's first command."""
    draw = random.Random(seed)  # noqa: S311 - the same sequences each time
    beginning = [BUILD] if draw.random() < 0.5 else []
    return [*beginning, *draw.choices(COMMANDS, k=COMMANDS_OF_A_SEQUENCE)]


@dataclass(frozen=True, kw_only=True)
class Workshop:
    """A clone of one's own for a sequence, as the sample's pipeline has left it."""

    path: Path

    def prepare(self, *, is_built: bool) -> Checkout:
        """Return the clone after README's first command, or before any.

        It has a second ref and a changed tree.
        """
        clone = Clone(path=self.path)
        if not is_built:
            sample.delete_outputs(self.path)
        (self.path / "pytorch-build.toml").write_text(SECOND_REF)
        clone.run_checked(
            "nox", "-s", "checkout", "--", "--torch-ref=sample", "--components=torch", "--checkout-dir=tree"
        )
        module = self.path / "tree" / "torch" / "__init__.py"
        module.write_text(f"{module.read_text()}\n# changed\n")
        return Checkout(clone=clone)

    def run(self, sequence: Sequence[str]) -> None:
        """Run a sequence of commands, and hold each. README's first command has been run already."""
        is_built = sequence[0] == BUILD
        checkout = self.prepare(is_built=is_built)
        for command in sequence[1:] if is_built else sequence:
            checkout.hold(command, sequence)


@pytest.fixture
def workshop(sample_run: SampleRun) -> Iterator[Workshop]:
    with sample.lend_workshop(sample_run) as path:
        yield Workshop(path=path)


@pytest.mark.parametrize(
    "sequence", KNOWN_SEQUENCES, ids=["nothing-built", "rehearsal", "second-ref", "extended-ref"]
)
def test_commands_that_once_disturbed_each_other_do_not(workshop: Workshop, sequence: Sequence[str]) -> None:
    workshop.run(sequence)


@pytest.mark.parametrize("seed", range(DRAWN_SEQUENCES))
def test_commands_in_any_order_keep_their_promises(workshop: Workshop, seed: int) -> None:
    workshop.run(draw_sequence(seed))
