import unittest
from importlib import metadata

import rocm_sdk

from .. import _dist_info
from . import support


class BaseTest(unittest.TestCase):
    def test_installed_packages_have_one_version(self):
        for entry in _dist_info.ALL_PACKAGES.values():
            try:
                version = metadata.version(entry.get_dist_package_name())
            except metadata.PackageNotFoundError:
                continue
            with self.subTest(package=entry.logical_name):
                self.assertEqual(version, _dist_info.__version__)

    def test_core_is_installed(self):
        self.assertTrue(_dist_info.ALL_PACKAGES["core"].has_py_package())

    def test_version_command(self):
        status, out, _ = support.python("-m", "rocm_sdk", "version")
        self.assertEqual((status, out.strip()), (0, _dist_info.__version__))

    def test_targets_command(self):
        status, out, _ = support.python("-m", "rocm_sdk", "targets")
        self.assertEqual(status, 0)
        self.assertTrue(all(target.startswith("gfx") for target in out.strip().split(";")), out)

    def test_path_needs_exactly_one_kind(self):
        self.assertEqual(support.python("-m", "rocm_sdk", "path")[0], 2)
        self.assertEqual(support.python("-m", "rocm_sdk", "path", "--bin", "--root")[0], 2)

    def test_default_family_is_available(self):
        self.assertIn(_dist_info.DEFAULT_TARGET_FAMILY, _dist_info.AVAILABLE_TARGET_FAMILIES)

    def test_every_library_belongs_to_a_package(self):
        for entry in _dist_info.ALL_LIBRARIES.values():
            self.assertIn(entry.package, _dist_info.ALL_PACKAGES)

    def test_unknown_library(self):
        with self.assertRaisesRegex(ModuleNotFoundError, "Unknown rocm library 'nonesuch'"):
            rocm_sdk.find_libraries("nonesuch")

    def test_no_libraries(self):
        self.assertEqual(rocm_sdk.find_libraries(), [])

    def test_matching_versions_pass(self):
        rocm_sdk.initialize_process(check_version=_dist_info.__version__, fail_on_version_mismatch=True)
        rocm_sdk.initialize_process(check_version="*", fail_on_version_mismatch=True)

    def test_other_versions_warn(self):
        with self.assertWarns(UserWarning):
            rocm_sdk.initialize_process(check_version="0.0.0")

    def test_other_versions_can_fail(self):
        with self.assertRaises(RuntimeError):
            rocm_sdk.initialize_process(check_version="0.0.0", fail_on_version_mismatch=True)
