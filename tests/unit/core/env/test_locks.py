from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from core.cli.options import ROOT, Common
from core.env import Interpreter
from core.env.installer import TORCH_TESTS, kept, locked_call, parse_lock, subset, target_lock, without
from core.errors import DataError
from tests.kit.machines import target_in

COMPILED = Path(__file__).with_name("recorded").joinpath("compiled-lock.txt").read_text()
NAMES = [f"p{number}" for number in range(8)]
REAL = sorted((ROOT / "requirements").glob("*.txt"))


@st.composite
def graphs(draw: st.DrawFn) -> dict[str, list[str]]:
    """Draw who requires whom; cycles are allowed, as real packages have some."""
    return {name: draw(st.lists(st.sampled_from(NAMES), unique=True, max_size=3)) for name in NAMES}


def lock_of(graph: dict[str, list[str]], *, uv: bool) -> str:
    lines = ["# compiled"]
    for name in graph:
        parents = [parent for parent, children in graph.items() if name in children] + ["-r x.in"]
        lines += [f"{name}==1.{name[1:]} \\", f"    --hash=sha256:{name}"]
        if len(parents) == 1 and not uv:
            lines.append(f"    # via {parents[0]}")
        else:
            lines += ["    # via", *(f"    #   {parent}" for parent in parents)]
    return "\n".join(lines) + "\n"


def closure(graph: dict[str, list[str]], roots: set[str]) -> set[str]:
    reached: set[str] = set()
    waiting = list(roots)
    while waiting:
        name = waiting.pop()
        if name not in reached:
            reached.add(name)
            waiting += graph[name]
    return reached


@given(graphs(), st.sets(st.sampled_from(NAMES), min_size=1), st.booleans())
def test_a_part_is_its_roots_and_all_they_require(
    graph: dict[str, list[str]],
    roots: set[str],
    uv: bool,  # noqa: FBT001 - hypothesis gives it
) -> None:
    text = lock_of(graph, uv=uv)
    part = subset(text, roots)
    assert {one.name for one in parse_lock(part)} == closure(graph, roots)
    assert parse_lock(part) == [one for one in parse_lock(text) if one.name in closure(graph, roots)]
    assert subset(part, roots) == part


@given(graphs(), st.sets(st.sampled_from(NAMES)))
def test_what_is_left_out_is_all_that_goes(graph: dict[str, list[str]], names: set[str]) -> None:
    text = lock_of(graph, uv=True)
    assert parse_lock(without(text, names)) == [one for one in parse_lock(text) if one.name not in names]


def test_a_compiled_lock_is_read_with_its_annotations() -> None:
    assert [(one.name, one.via) for one in parse_lock(COMPILED)] == [
        ("build", ()),
        ("packaging", ("build", "viable")),
        ("pyproject-hooks", ("build",)),
        ("viable", ()),
        ("setuptools", ()),
    ]


def test_a_part_keeps_hashes_and_markers_and_no_settings() -> None:
    assert subset(COMPILED, ["Viable", "setuptools"]) == (
        "packaging==26.3 \\\n    --hash=sha256:cc\n    # via\n    #   -r target.in\n    #   build\n"
        '    #   viable\nviable[extra]==1.0 ; python_version < "3.12" \\\n    --hash=sha256:ee\n'
        "    # via -r target.in\nsetuptools==80 \\\n    --hash=sha256:ff\n    # via -r target.in\n"
    )
    assert "index-url" not in without(COMPILED, [])


def test_names_are_compared_as_packages_are() -> None:
    assert "pyproject-hooks" not in without(COMPILED, ["PyProject_Hooks"])


def test_what_the_lock_lacks_is_named() -> None:
    with pytest.raises(DataError, match=r"The lock has no 'bild'\. Did you mean 'build'\?"):
        subset(COMPILED, ["bild", "build"])


@pytest.mark.parametrize("path", REAL, ids=lambda path: path.name)
def test_every_requirement_of_our_locks_is_hashed_and_there_for_a_reason(path: Path) -> None:
    locked = parse_lock(path.read_text(encoding="utf-8"))
    names = {one.name for one in locked}
    assert locked
    for one in locked:
        assert "--hash=sha256:" in one.text
        assert one.via or "# via" in one.text
        assert set(one.via) <= names


def test_a_kept_part_is_found_by_its_text_alone(tmp_path: Path) -> None:
    first, again, other = (kept(tmp_path / "locks", "venv", text) for text in ("a==1\n", "a==1\n", "a==2\n"))
    assert first == again != other
    assert (first.read_bytes(), other.read_bytes()) == (b"a==1\n", b"a==2\n")
    assert first.name.startswith("venv-")


def target(version: str = "3.12.4", **facts: Any) -> Interpreter:
    return target_in(Path("/env"), version=version, **facts)


@pytest.fixture
def common(tmp_path: Path) -> Common:
    return Common(root=tmp_path, platform="linux")


@pytest.fixture
def lock(common: Common) -> Path:
    path = common.root / "requirements" / "target-linux-3.12.txt"
    path.parent.mkdir()
    path.write_text(COMPILED)
    (path.parent / "target.in").write_text("numpy\n")
    return path


def test_a_lock_is_one_a_python(common: Common, lock: Path) -> None:
    assert target_lock(common, target()) == lock
    assert target_lock(common, target("3.13.0")) is None
    assert target_lock(common, target(free_threaded=True)) == lock


def test_the_whole_lock_is_installed_as_it_stands(common: Common, lock: Path) -> None:
    call = locked_call(common, target())
    assert call.files == (lock,)
    assert call.hashed


def test_tests_have_a_lock_of_their_own(common: Common, lock: Path) -> None:
    own = lock.with_name("torch-tests-linux-3.12.txt")
    own.write_text("expecttest==0.3.0 \\\n    --hash=sha256:ee\n")
    assert locked_call(common, target(), lock=TORCH_TESTS).files == (own,)


@pytest.mark.usefixtures("lock")
def test_a_part_of_the_lock_keeps_what_it_requires(common: Common) -> None:
    call = locked_call(common, target(), only=("viable",))
    text = call.files[0].read_text()
    assert call.hashed
    assert "viable[extra]==1.0" in text
    assert "packaging==26.3" in text
    assert "setuptools" not in text
    with pytest.raises(DataError):
        locked_call(common, target(), only=("flit",))


def test_a_refs_own_requirement_takes_the_place_of_the_locked_one(common: Common, lock: Path) -> None:
    call = locked_call(common, target(), replaced=("Setuptools<70",))
    text = call.files[0].read_text()
    assert "setuptools" not in text
    assert "build==1.6.1" in text
    assert "setuptools" in lock.read_text()


def test_a_python_without_one_is_told(common: Common, lock: Path, capsys: pytest.CaptureFixture[str]) -> None:
    call = locked_call(common, target("3.14.0"))
    assert (call.files, call.hashed) == ((lock.parent / "target.in",), False)
    assert "no lock for Python 3.14" in capsys.readouterr().err
    assert locked_call(common, target("3.14.0"), only=("pytest",)).requirements == ("pytest",)
