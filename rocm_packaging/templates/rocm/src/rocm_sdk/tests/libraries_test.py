import sys
import unittest

import rocm_sdk

from .. import _dist_info
from . import support


class LibrariesTest(unittest.TestCase):
    def test_layout(self):
        for family in _dist_info.installed_target_families():
            with self.subTest(family=family):
                root = support.payload("libraries", family)
                self.assertTrue((root / ("bin" if sys.platform == "win32" else "lib")).is_dir())

    def test_libraries_load_alone(self):
        for family in _dist_info.installed_target_families():
            with self.subTest(family=family):
                paths = support.shared_libraries(support.payload("libraries", family))
                self.assertTrue(paths)
                self.assertEqual(support.load_errors(paths), [])

    def test_preload(self):
        names = support.names_of("libraries")
        self.assertTrue(names)
        self.assertEqual(len(rocm_sdk.find_libraries(*names)), len(names))
        code = "import sys, rocm_sdk; rocm_sdk.initialize_process(preload_shortnames=sys.argv[1:])"
        status, _, error = support.python("-c", code, *names)
        self.assertEqual(status, 0, error)
