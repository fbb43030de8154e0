import os
import sys
import unittest
from pathlib import Path

from .. import _dist_info
from . import support


def _root():
    status, out, error = support.python("-m", "rocm_sdk", "path", "--root")
    if status:
        raise AssertionError(error)
    return Path(out.strip())


class DevelTest(unittest.TestCase):
    def test_init(self):
        status, out, error = support.python("-m", "rocm_sdk", "init", "--quiet")
        self.assertEqual((status, out), (0, ""), error)

    def test_paths(self):
        root = _root()
        for kind, folder in (("--bin", root / "bin"), ("--cmake", root / "lib" / "cmake")):
            status, out, error = support.python("-m", "rocm_sdk", "path", kind)
            self.assertEqual((status, out.strip()), (0, str(folder)), error)
            self.assertTrue(folder.is_dir(), folder)

    def test_hipconfig_knows_its_root(self):
        import subprocess

        program = _root() / "bin" / ("hipconfig.exe" if sys.platform == "win32" else "hipconfig")
        out = subprocess.run([str(program), "--rocmpath"], capture_output=True, text=True, check=True).stdout
        self.assertTrue(os.path.samefile(out.strip(), _root()), out)

    @unittest.skipIf(sys.platform == "win32", "no links to folders")
    def test_llvm_link(self):
        link = _root() / "llvm"
        if not os.path.lexists(link):
            self.skipTest("this distribution has no llvm/ link")
        self.assertTrue(os.path.samefile(link, _root() / "lib" / "llvm"))

    @unittest.skipIf(sys.platform == "win32", "no links")
    def test_no_link_dangles(self):
        if not _dist_info.installed_target_families():
            self.skipTest("the libraries are not installed")
        dangling = [path for path in _root().rglob("*") if path.is_symlink() and not path.exists()]
        self.assertEqual(dangling, [])

    def test_libraries_load_alone(self):
        paths = support.shared_libraries(_root())
        self.assertTrue(paths)
        self.assertEqual(support.load_errors(paths), [])

    def test_core_is_mirrored(self):
        self._mirrored(support.payload("core"))

    def test_libraries_are_mirrored(self):
        if not _dist_info.installed_target_families():
            self.skipTest("the libraries are not installed")
        self._mirrored(support.payload("libraries"))

    def _mirrored(self, payload):
        root = _root()
        paths = support.shared_libraries(payload)
        self.assertTrue(paths)
        for path in paths:
            twin = root / path.relative_to(payload)
            self.assertTrue(twin.exists(), twin)
            if os.stat(path).st_dev == os.stat(twin).st_dev:
                self.assertTrue(os.path.samefile(path, twin), twin)
