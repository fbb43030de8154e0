from collections.abc import Collection, Mapping
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from core.cli.options import ROOT, Common
from core.env import Interpreter
from core.env.locks import (
    TORCH_TESTS,
    locked_call,
    parse_lock,
    subset,
    target_lock,
    without,
    write_requirements,
)
from core.errors import DataError
from tests.kit.machines import target_in
from tests.kit.repos import write_files

COMPILED_LOCK = Path(__file__).with_name("recorded").joinpath("compiled-lock.txt").read_text()
NAMES = [f"p{number}" for number in range(8)]
OUR_LOCKS = sorted((ROOT / "requirements").glob("*.txt"))

# Who requires whom; cycles are allowed, as real packages have some.
GRAPHS = st.fixed_dictionaries(
    {name: st.lists(st.sampled_from(NAMES), unique=True, max_size=3) for name in NAMES}
)
Graph = Mapping[str, list[str]]


def lock_text(graph: Graph, *, is_of_uv: bool = True) -> str:
    """Return the lock of packages as uv, or pip-compile, writes it."""
    lines = ["# compiled"]
    for name in graph:
        parents = [parent for parent, children in graph.items() if name in children]
        parents.append("-r x.in")

        lines.append(f"{name}==1.{name[1:]} \\")
        lines.append(f"    --hash=sha256:{name}")
        if len(parents) == 1 and not is_of_uv:
            lines.append(f"    # via {parents[0]}")
        else:
            lines.append("    # via")
            lines += [f"    #   {parent}" for parent in parents]
    return "\n".join(lines) + "\n"


def reachable_names(graph: Graph, roots: Collection[str]) -> set[str]:
    """Return the roots, what they require, what that requires, and so on."""
    reached: set[str] = set()
    waiting = list(roots)
    while waiting:
        name = waiting.pop()
        if name not in reached:
            reached.add(name)
            waiting += graph[name]
    return reached


# Parts of a lock


@given(GRAPHS, st.sets(st.sampled_from(NAMES), min_size=1), st.booleans())
def test_a_part_has_its_roots_and_all_that_they_require(
    graph: Graph,
    roots: set[str],
    is_of_uv: bool,  # noqa: FBT001 - hypothesis gives it
) -> None:
    lock = lock_text(graph, is_of_uv=is_of_uv)

    part = subset(lock, roots)

    names = reachable_names(graph, roots)
    assert parse_lock(part) == [locked for locked in parse_lock(lock) if locked.name in names]
    assert subset(part, roots) == part


@given(GRAPHS, st.sets(st.sampled_from(NAMES)))
def test_leaves_out_the_named_packages_alone(graph: Graph, names: set[str]) -> None:
    lock = lock_text(graph)

    rest = parse_lock(without(lock, names))

    assert rest == [locked for locked in parse_lock(lock) if locked.name not in names]


def test_reads_why_each_package_is_in_a_lock() -> None:
    assert {locked.name: locked.parents for locked in parse_lock(COMPILED_LOCK)} == {
        "build": (),
        "packaging": ("build", "viable"),
        "pyproject-hooks": ("build",),
        "viable": (),
        "setuptools": (),
    }


def test_a_part_keeps_hashes_markers_and_annotations() -> None:
    assert subset(COMPILED_LOCK, ["Viable", "setuptools"]).splitlines() == [
        "packaging==26.3 \\",
        "    --hash=sha256:cc",
        "    # via",
        "    #   -r target.in",
        "    #   build",
        "    #   viable",
        'viable[extra]==1.0 ; python_version < "3.12" \\',
        "    --hash=sha256:ee",
        "    # via -r target.in",
        "setuptools==80 \\",
        "    --hash=sha256:ff",
        "    # via -r target.in",
    ]


def test_a_part_keeps_no_settings() -> None:
    assert "index-url" in COMPILED_LOCK
    assert "index-url" not in without(COMPILED_LOCK, [])


def test_compares_names_as_installers_do() -> None:
    assert "pyproject-hooks" not in without(COMPILED_LOCK, ["PyProject_Hooks"])


def test_names_what_a_lock_lacks_and_what_is_nearest() -> None:
    with pytest.raises(DataError) as raised:
        subset(COMPILED_LOCK, ["bild", "build"])

    assert "'bild'" in raised.value.message
    assert "'build'" in raised.value.message


@pytest.mark.parametrize("path", OUR_LOCKS, ids=lambda path: path.name)
def test_every_requirement_of_our_locks_is_hashed(path: Path) -> None:
    locked = parse_lock(path.read_text(encoding="utf-8"))

    assert locked
    assert [requirement.name for requirement in locked if "--hash=sha256:" not in requirement.text] == []


@pytest.mark.parametrize("path", OUR_LOCKS, ids=lambda path: path.name)
def test_every_requirement_of_our_locks_is_there_for_a_reason(path: Path) -> None:
    locked = parse_lock(path.read_text(encoding="utf-8"))

    names = {requirement.name for requirement in locked}
    assert [requirement.name for requirement in locked if "# via" not in requirement.text] == []
    assert [requirement.name for requirement in locked if not names.issuperset(requirement.parents)] == []


def test_finds_a_kept_part_by_its_text_alone(tmp_path: Path) -> None:
    first = write_requirements(tmp_path / "locks", "venv", "a==1\n")
    second = write_requirements(tmp_path / "locks", "venv", "a==2\n")

    assert write_requirements(tmp_path / "locks", "venv", "a==1\n") == first
    assert first.read_bytes() == b"a==1\n"
    assert second.read_bytes() == b"a==2\n"
    assert first.name.startswith("venv-")


# Locks of a target environment


@pytest.fixture
def common(tmp_path: Path) -> Common:
    """Return options for a checkout of the test's own."""
    return Common(root=tmp_path, platform="linux")


@pytest.fixture
def lock(common: Common) -> Path:
    """Return the checkout's lock for Python 3.12; for others there are only unlocked requirements."""
    folder = common.root / "requirements"
    write_files(folder, {"target-linux-3.12.txt": COMPILED_LOCK, "target.in": "numpy\n"})
    return folder / "target-linux-3.12.txt"


def python(version: str = "3.12.4", *, is_free_threaded: bool = False) -> Interpreter:
    """Return an interpreter."""
    return target_in(Path("/env"), version=version, free_threaded=is_free_threaded)


def test_each_python_has_a_lock_of_its_own(common: Common, lock: Path) -> None:
    assert target_lock(common, python()) == lock
    assert target_lock(common, python("3.13.0")) is None


def test_a_free_threaded_python_has_the_lock_of_its_version(common: Common, lock: Path) -> None:
    assert target_lock(common, python(is_free_threaded=True)) == lock


def test_installs_a_complete_lock_as_it_stands(common: Common, lock: Path) -> None:
    request = locked_call(common, python())

    assert request.files == (lock,)
    assert request.hashed


def test_tests_of_torch_have_a_lock_of_their_own(common: Common, lock: Path) -> None:
    tests_lock = lock.with_name("torch-tests-linux-3.12.txt")
    tests_lock.write_text("expecttest==0.3.0 \\\n    --hash=sha256:ee\n")

    assert locked_call(common, python(), lock=TORCH_TESTS).files == (tests_lock,)


@pytest.mark.usefixtures("lock")
def test_installs_a_part_of_a_lock_with_what_it_requires(common: Common) -> None:
    request = locked_call(common, python(), only=("viable",))

    locked = parse_lock(request.files[0].read_text())
    assert {requirement.name for requirement in locked} == {"viable", "packaging"}
    assert request.hashed


@pytest.mark.usefixtures("lock")
def test_rejects_a_part_that_the_lock_lacks(common: Common) -> None:
    with pytest.raises(DataError, match="flit"):
        locked_call(common, python(), only=("flit",))


def test_a_requirement_of_a_ref_replaces_the_locked_one(common: Common, lock: Path) -> None:
    request = locked_call(common, python(), replaced=("Setuptools<70",))

    text = request.files[0].read_text()
    assert "setuptools" not in text
    assert "build==1.6.1" in text
    assert "setuptools" in lock.read_text(), "the lock itself stays"


def test_installs_unlocked_requirements_for_a_python_without_a_lock(
    common: Common, lock: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    request = locked_call(common, python("3.14.0"))

    assert request.files == (lock.with_name("target.in"),)
    assert not request.hashed
    assert "Python 3.14" in capsys.readouterr().err


@pytest.mark.usefixtures("lock")
def test_installs_named_requirements_for_a_python_without_a_lock(common: Common) -> None:
    request = locked_call(common, python("3.14.0"), only=("pytest",))

    assert request.requirements == ("pytest",)
    assert request.files == ()
