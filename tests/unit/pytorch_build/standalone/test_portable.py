import hashlib
import sys
import zipfile
from collections.abc import Mapping
from pathlib import Path

import pytest

from core import process
from core.errors import CheckError, WheelError
from core.wheel import read_wheel_info
from core.wheel.record import verify_record
from pytorch_build.check.policy import load_policy
from pytorch_build.standalone import portable
from pytorch_build.standalone.libraries import BinaryNeeds
from pytorch_build.standalone.portable import BinaryPatch, Portability
from tests.kit.binaries import elf_file
from tests.kit.wheels import write_wheel
from tests.kit.windows import not_on_windows

LINUX_TAG = "cp312-cp312-linux_x86_64"
NOT_PORTABLE = ("linux_x86_64",)
MANYLINUX_2_34 = ("manylinux_2_34_x86_64",)
MANYLINUX_2_17 = ("manylinux_2_17_x86_64", "manylinux2014_x86_64")
FOO = Path("/lib/libfoo.so.1.2")
OTHER_FOO = Path("/opt/lib/libfoo.so.1.2")

needs_auditwheel = pytest.mark.skipif(sys.platform != "linux", reason="auditwheel is for Linux")


def portability(
    satisfied: tuple[str, ...],
    *,
    reachable: tuple[str, ...] = MANYLINUX_2_34,
    external: Mapping[str, tuple[Path, ...]] | None = None,
    search: tuple[str, ...] = (),
) -> Portability:
    """Return what a wheel is worth: its tags, those with the external libraries inside, and these."""
    libraries = external or {}
    binaries = {"demo/a.so": BinaryNeeds(name="", needed=tuple(libraries), search=search)}
    return Portability(
        satisfied_tags=satisfied, reachable_tags=reachable, external_libraries=libraries, binaries=binaries
    )


def write_demo(folder: Path, *, tag: str = LINUX_TAG, files: Mapping[str, bytes] | None = None) -> Path:
    """Write a wheel, by default with one library."""
    library = elf_file(needed=("libc.so.6",))
    return write_wheel(folder, name="demo", version="1.0", tag=tag, files=files or {"demo/a.so": library})


# Tags


def test_tags_a_wheel_with_what_it_satisfies(tmp_path: Path) -> None:
    state = portability(MANYLINUX_2_17, reachable=MANYLINUX_2_17)

    repaired = portable.repair_wheel(write_demo(tmp_path), state, tmp_path / "new", graft=False)

    assert repaired.file is not None
    wheel = repaired.file.path
    assert wheel.name == "demo-1.0-cp312-cp312-manylinux2014_x86_64.manylinux_2_17_x86_64.whl"
    assert read_wheel_info(wheel).tags == {f"cp312-cp312-{platform}" for platform in MANYLINUX_2_17}
    assert verify_record(wheel) == ()


def test_leaves_a_wheel_alone_that_has_its_tag(tmp_path: Path) -> None:
    wheel = write_demo(tmp_path, tag=f"cp312-cp312-{MANYLINUX_2_34[0]}")

    repaired = portable.repair_wheel(wheel, portability(MANYLINUX_2_34), tmp_path / "new", graft=True)

    assert repaired.file is None
    assert not (tmp_path / "new").exists()


@pytest.mark.parametrize(
    ("state", "graft", "subject"),
    [
        pytest.param(
            portability(NOT_PORTABLE, external={"libfoo.so.1": (FOO,)}),
            False,
            "demo/a.so",
            id="may not graft",
        ),
        pytest.param(
            portability(NOT_PORTABLE, external={"libfoo.so.1": ()}), True, "libfoo.so.1", id="absent"
        ),
        pytest.param(portability(NOT_PORTABLE, reachable=NOT_PORTABLE), True, "manylinux", id="in no policy"),
        # auditwheel #562
        pytest.param(
            portability(MANYLINUX_2_34, search=("$ORIGIN", "/build/lib")),
            False,
            "/build/lib",
            id="search path of one machine",
        ),
    ],
)
def test_refuses_a_wheel_that_cannot_be_portable(
    tmp_path: Path, state: Portability, subject: str, *, graft: bool
) -> None:
    with pytest.raises(CheckError) as raised:
        portable.repair_wheel(write_demo(tmp_path), state, tmp_path / "new", graft=graft)

    assert subject in raised.value.message
    assert not (tmp_path / "new").exists()


# Which libraries count


@pytest.mark.parametrize(
    "library", ["libown.so.1", "libown.so", "libamdhip64.so.*", "libtorch_hip.so", "libpython3*.so*"]
)
def test_excludes_libraries_of_other_wheels_and_of_its_own(library: str) -> None:
    needs = {"torch/lib/libown.so.1": BinaryNeeds(name="libown.so", needed=())}

    assert library in portable.find_excluded_libraries(needs, load_policy())


@pytest.mark.parametrize("library", ["libnuma.so.*", "libc.so.6"])
def test_counts_libraries_of_the_machine(library: str) -> None:
    assert library not in portable.find_excluded_libraries({}, load_policy())


@needs_auditwheel
def test_refuses_a_wheel_with_a_compiled_file_in_purelib(tmp_path: Path) -> None:
    wheel = write_demo(tmp_path, files={"demo-1.0.data/purelib/demo/a.so": elf_file(needed=("libc.so.6",))})

    with pytest.raises(WheelError) as raised:
        portable.find_portability(wheel)

    assert wheel.name in raised.value.message


@needs_auditwheel
def test_refuses_a_wheel_without_compiled_files(tmp_path: Path) -> None:
    wheel = write_demo(tmp_path, files={"demo/a.py": b""})

    with pytest.raises(WheelError) as raised:
        portable.find_portability(wheel)

    assert wheel.name in raised.value.message


# Libraries of the machine in the wheel


@pytest.fixture
def machine(tmp_path: Path) -> Path:
    """Return a folder with two libraries of the machine, of which one needs the other."""
    folder = tmp_path / "machine"
    folder.mkdir()
    (folder / "libfoo.so.1.2").write_bytes(elf_file(needed=("libbar.so.3", "libm.so.6")))
    (folder / "libbar.so.3").write_bytes(elf_file(needed=("libc.so.6",)))
    return folder


def library(*needed: str, search: tuple[str, ...] = ()) -> BinaryNeeds:
    """Return a library that needs others."""
    return BinaryNeeds(name="", needed=needed, search=search)


def digest_in_name(path: Path) -> str:
    """Return the part of a file's digest that its name in a wheel has."""
    return hashlib.sha256(path.read_bytes()).hexdigest()[:8]


def test_names_grafted_libraries_by_their_digests_and_changes_their_users(machine: Path) -> None:
    foo_file = machine / "libfoo.so.1.2"
    bar_file = machine / "libbar.so.3"
    foo = f"libfoo-{digest_in_name(foo_file)}.so.1"
    bar = f"libbar-{digest_in_name(bar_file)}.so.3"

    patches = portable.plan_patches(
        "torch",
        {"libfoo.so.1": foo_file, "libbar.so.3": bar_file},
        {
            "torch/lib/libtorch.so": library("libfoo.so.1", "libc.so.6", search=("$ORIGIN", "/build/lib")),
            "torch/_C.so": library("libc.so.6"),
            "_C.so": library("libbar.so.3"),
        },
    )

    assert list(patches) == [
        BinaryPatch(member=f"torch.libs/{bar}", source=bar_file, soname=bar, renamed={}, search=()),
        BinaryPatch(
            member=f"torch.libs/{foo}",
            source=foo_file,
            soname=foo,
            renamed={"libbar.so.3": bar},
            search=("$ORIGIN",),
        ),
        BinaryPatch(member="_C.so", renamed={"libbar.so.3": bar}, search=("$ORIGIN/torch.libs",)),
        BinaryPatch(
            member="torch/lib/libtorch.so",
            renamed={"libfoo.so.1": foo},
            search=("$ORIGIN", "$ORIGIN/../../torch.libs"),
        ),
    ]


# A wheel's files below `.data` are installed elsewhere: auditwheel #340, #425.


@pytest.mark.parametrize("scheme", ["platlib", "purelib"])
def test_leads_a_file_from_where_it_is_installed(machine: Path, scheme: str) -> None:
    member = f"demo-1.0.data/{scheme}/demo/sub/m.so"

    patches = portable.plan_patches(
        "demo", {"libbar.so.3": machine / "libbar.so.3"}, {member: library("libbar.so.3")}
    )

    searches = {patch.member: patch.search for patch in patches}
    assert searches[member] == ("$ORIGIN/../../demo.libs",)


@pytest.mark.parametrize("scheme", ["scripts", "data", "headers"])
def test_refuses_a_file_that_no_fixed_path_leads_from(machine: Path, scheme: str) -> None:
    member = f"demo-1.0.data/{scheme}/tool"

    with pytest.raises(CheckError) as raised:
        portable.plan_patches(
            "demo", {"libbar.so.3": machine / "libbar.so.3"}, {member: library("libbar.so.3")}
        )

    assert member in raised.value.message
    assert "libbar.so.3" in raised.value.message


@not_on_windows("a path of Windows is no name of a library that an ELF file needs")
def test_names_a_library_by_its_file_name_where_it_is_needed_by_a_path(machine: Path) -> None:
    path = machine / "libbar.so.3"
    name = f"libbar-{digest_in_name(path)}.so.3"
    needed_names = (str(path), "libbar.so.3")

    grafted_library, module = portable.plan_patches(
        "demo", dict.fromkeys(needed_names, path), {"m.so": library(*needed_names)}
    )

    assert grafted_library.member == f"demo.libs/{name}"
    assert module.member == "m.so"
    assert module.renamed == dict.fromkeys(needed_names, name)


def test_refuses_two_libraries_of_one_name(tmp_path: Path) -> None:
    state = portability(NOT_PORTABLE, external={"libfoo.so.1": (FOO, OTHER_FOO)})

    with pytest.raises(CheckError) as raised:
        portable.repair_wheel(write_demo(tmp_path), state, tmp_path / "new", graft=True)

    assert str(FOO) in raised.value.message
    assert str(OTHER_FOO) in raised.value.message
    assert not (tmp_path / "new").exists()


@pytest.fixture
def machine_library(tmp_path: Path) -> Path:
    """Compile a library of the machine; return it."""
    (tmp_path / "libextra.c").write_text("int extra(void) { return 42; }\n")
    library = tmp_path / "machine" / "libextra.so.1"
    library.parent.mkdir()
    compile_library("-Wl,-soname,libextra.so.1", tmp_path / "libextra.c", output=library)
    return library.resolve()


@pytest.fixture
def dependent_wheel(tmp_path: Path, machine_library: Path) -> Path:
    """Return a wheel whose library needs that of the machine."""
    (tmp_path / "user.c").write_text("int extra(void); int user(void) { return extra(); }\n")
    library = tmp_path / "user.so"
    compile_library(
        f"-Wl,-rpath,{machine_library.parent}", tmp_path / "user.c", machine_library, output=library
    )
    return write_demo(tmp_path, files={"demo/user.so": library.read_bytes()})


def compile_library(*arguments: str | Path, output: Path) -> None:
    """Compile a shared library."""
    process.capture(["cc", "-shared", "-fPIC", "-O1", *arguments, "-o", output])


@pytest.mark.processes
@pytest.mark.skipif(process.which("cc") is None, reason="no C compiler")
def test_refuses_to_leave_a_library_of_the_machine_outside(
    tmp_path: Path, dependent_wheel: Path, machine_library: Path
) -> None:
    state = portable.find_portability(dependent_wheel)

    assert state.external_libraries == {"libextra.so.1": (machine_library,)}
    with pytest.raises(CheckError) as raised:
        portable.repair_wheel(dependent_wheel, state, tmp_path / "new", graft=False)
    assert "libextra.so.1" in raised.value.message
    assert "demo/user.so" in raised.value.message


@pytest.mark.processes
@pytest.mark.skipif(process.which("cc") is None, reason="no C compiler")
def test_finds_every_file_that_a_name_leads_to(tmp_path: Path) -> None:
    files: dict[str, bytes] = {}
    libraries: list[Path] = []
    for number in (1, 2):
        folder = tmp_path / str(number)
        folder.mkdir()
        (folder / "extra.c").write_text(f"int extra(void) {{ return {number}; }}\n")
        (folder / "user.c").write_text(f"int extra(void); int user{number}(void) {{ return extra(); }}\n")
        libraries.append(folder / "libextra.so.1")
        compile_library("-Wl,-soname,libextra.so.1", folder / "extra.c", output=libraries[-1])
        compile_library(f"-Wl,-rpath,{folder}", folder / "user.c", libraries[-1], output=folder / "user.so")
        files[f"demo/user{number}.so"] = (folder / "user.so").read_bytes()

    state = portable.find_portability(write_demo(tmp_path, files=files))

    assert state.external_libraries == {"libextra.so.1": tuple(library.resolve() for library in libraries)}


@pytest.mark.processes
@pytest.mark.skipif(process.which("cc") is None, reason="no C compiler")
def test_grafts_a_library_of_the_machine_and_runs_without_it(
    tmp_path: Path, dependent_wheel: Path, machine_library: Path
) -> None:
    state = portable.find_portability(dependent_wheel)

    repaired = portable.repair_wheel(dependent_wheel, state, tmp_path / "new", graft=True)

    assert repaired.file is not None
    wheel = repaired.file.path
    assert verify_record(wheel) == ()
    assert portable.find_portability(wheel).satisfied_tags[0] in repaired.platform.split(".")

    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(tmp_path / "installed")
    machine_library.unlink()
    code = "import ctypes, sys; print(ctypes.CDLL(sys.argv[1]).user())"
    completed = process.capture([sys.executable, "-c", code, tmp_path / "installed" / "demo" / "user.so"])
    assert completed.stdout == "42\n"
