import sys
import unittest
from importlib import metadata

import rocm_sdk

from .. import _dist_info
from . import support


class CoreTest(unittest.TestCase):
    def test_layout(self):
        root = support.payload("core")
        self.assertTrue((root / ("bin" if sys.platform == "win32" else "lib")).is_dir())
        self.assertTrue((root / "share" / "therock" / "therock_manifest.json").is_file())

    def test_libraries_load_alone(self):
        paths = support.shared_libraries(support.payload("core"))
        self.assertTrue(paths)
        self.assertEqual(support.load_errors(paths), [])

    def test_console_scripts_have_their_programs(self):
        package = _dist_info.ALL_PACKAGES["core"]
        scripts = [
            entry
            for entry in metadata.distribution(package.get_dist_package_name()).entry_points
            if entry.group == "console_scripts"
        ]
        self.assertTrue(scripts)
        for entry in scripts:
            with self.subTest(script=entry.name):
                self.assertTrue(callable(entry.load()))
        from rocm_sdk_core import _cli

        for name, relative in _cli.PROGRAMS.items():
            with self.subTest(program=name):
                self.assertTrue((support.payload("core") / relative).is_file())

    def test_preload(self):
        names = support.names_of("core")
        self.assertTrue(names)
        self.assertEqual(len(rocm_sdk.find_libraries(*names)), len(names))
        code = "import sys, rocm_sdk; rocm_sdk.initialize_process(preload_shortnames=sys.argv[1:])"
        status, _, error = support.python("-c", code, *names)
        self.assertEqual(status, 0, error)
