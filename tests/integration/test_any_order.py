"""Documented commands in any order: each does what its page says, or its refusal advises what then works.

The sequences are drawn, so that a failing one can be run again by its seed. Most begin where commands that
take minutes have been run: once, held as every command is, and what they left is copied.
"""

import random
import re
import shlex
import shutil
import sys
from collections.abc import Sequence
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
BUILD_SECOND_REF = "nox -s build_torch -- --torch-ref second --rocm-run-id local --run-id local-second"
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
    ("nothing", (CHECK, SMOKE_TEST, REPORT, CLEAN)),
    ("first command", (FILTERED_SMOKE_TEST, REHEARSE, STAGE_BUILD, PROMOTE_STAGED)),
    ("first command", (BUILD_SECOND_REF_IN_SAME_RUN, BUILD_IN_STORE, INDEX)),
    ("nothing", (BUILD_WITH_OPTIONS_OF_ONE_SESSION, BUILD_EXTENDED_REF)),
)

# What has been run before a sequence, in this order. The sample's run brings README's first command.
BEGINNINGS = {
    "nothing": (),
    "first command": (BUILD,),
    "everything": (BUILD, BUILD_IN_STORE, BUILD_EXTENDED_REF, CHANGE, REHEARSE, PROMOTE),
}
# How many of a dozen sequences begin so.
WEIGHTS = {"nothing": 2, "first command": 4, "everything": 6}

DRAWN_SEQUENCES = 200
COMMANDS_OF_A_SEQUENCE = 6

# What commands leave in the clone, but for its environments.
CHANGED_FOLDERS = (*sample.STATE, "other", "tree")

SECOND_REF = """
[refs.second]
extends = "sample"
torch = { origin = "sample:torch", ref = "main" }
"""

# A command of ours that a hint names, up to the end of its sentence.
NAMED_COMMAND = re.compile(r"\b(?:nox -s|invoke) [^\n;:(]+?(?=[.,]?$|\.\s|[,;]| \(| or )", re.MULTILINE)
# An option with the values that it may have, as in "Give one with --torch-version: 2.10.0, 2.11.0".
OFFERED_VALUES = re.compile(r"(?P<option>--[\w-]+): (?P<value>[^\s,]+)")
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
        if actions:
            self.hold(actions[0], [*sequence, command], depth=depth + 1)
            self.hold(command, [*sequence, command, actions[0]], depth=depth + 1)
            return

        # Where the hint offers no values either, a person decides.
        offer = OFFERED_VALUES.search(hint)
        if offer is not None:
            corrected = with_option(command, offer["option"], offer["value"])
            self.hold(corrected, [*sequence, command], depth=depth + 1)

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


def with_option(command: str, option: str, value: str) -> str:
    """Return a command with one option more, which a session of nox gets behind two dashes."""
    is_without_dashes = command.startswith("nox ") and " -- " not in command
    dashes = " --" if is_without_dashes else ""
    return f"{command}{dashes} {option} {value}"


def draw_sequence(seed: int) -> tuple[str, Sequence[str]]:
    """Draw the name of a beginning, and the commands that follow it."""
    draw = random.Random(seed)  # noqa: S311 - the same sequences each time
    [beginning] = draw.choices(list(WEIGHTS), weights=list(WEIGHTS.values()))
    return beginning, draw.choices(COMMANDS, k=COMMANDS_OF_A_SEQUENCE)


@dataclass(frozen=True, kw_only=True)
class Workshop:
    """The clone in which the sample's pipeline ran, lent to a sequence."""

    sample_run: SampleRun

    @property
    def kept_folder(self) -> Path:
        """Where what the commands of "everything" left is kept."""
        return self.sample_run.folder / "everything"

    @property
    def has_everything(self) -> bool:
        """Whether somebody has run the commands of "everything" to their end."""
        return (self.kept_folder / sample.COMPLETE).exists()

    def run(self, beginning: str, sequence: Sequence[str]) -> None:
        """Run a sequence of commands behind a beginning, and hold each."""
        is_restored = beginning == "everything" and self.has_everything
        is_built = beginning != "nothing" and not is_restored
        with sample.lend_workshop(self.sample_run, is_built=is_built) as path:
            checkout = Checkout(clone=Clone(path=path))
            (path / "pytorch-build.toml").write_text(SECOND_REF)
            if is_restored:
                sample.copy_state(self.kept_folder, path, names=CHANGED_FOLDERS)
            else:
                change_tree(checkout.clone)
            if beginning == "everything" and not is_restored:
                self.make_everything(checkout)

            whole_sequence = [*BEGINNINGS[beginning], *sequence]
            for command in sequence:
                checkout.hold(command, whole_sequence)

    def make_everything(self, checkout: Checkout) -> None:
        """Run the commands of "everything" behind README's first, and keep what they leave."""
        commands = BEGINNINGS["everything"]
        for command in commands[1:]:
            checkout.hold(command, commands)
        shutil.rmtree(self.kept_folder, ignore_errors=True)
        sample.copy_state(checkout.clone.path, self.kept_folder, names=CHANGED_FOLDERS)
        (self.kept_folder / sample.COMPLETE).touch()


def change_tree(clone: Clone) -> None:
    """Check out a tree of torch, and change it."""
    clone.run_checked(
        "nox", "-s", "checkout", "--", "--torch-ref=sample", "--components=torch", "--checkout-dir=tree"
    )
    module = clone.path / "tree" / "torch" / "__init__.py"
    module.write_text(f"{module.read_text()}\n# changed\n")


@pytest.fixture
def workshop(sample_run: SampleRun) -> Workshop:
    return Workshop(sample_run=sample_run)


@pytest.mark.parametrize(
    ("beginning", "sequence"),
    KNOWN_SEQUENCES,
    ids=["nothing-built", "rehearsal", "second-ref", "extended-ref"],
)
def test_commands_that_once_disturbed_each_other_do_not(
    workshop: Workshop, beginning: str, sequence: Sequence[str]
) -> None:
    workshop.run(beginning, sequence)


@pytest.mark.parametrize("seed", range(DRAWN_SEQUENCES))
def test_commands_in_any_order_keep_their_promises(workshop: Workshop, seed: int) -> None:
    beginning, sequence = draw_sequence(seed)
    workshop.run(beginning, sequence)
