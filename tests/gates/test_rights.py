"""Which modules hand on the variables of this process, credentials among them."""

import re

from tests.kit import source_code
from tests.kit.source_code import relative

# They start nox, git, container engines, pip or sccache, or read the settings of AWS. Everything else gets an
# environment by allow-list.
MAY_INHERIT = {
    "ci/job_runner.py",
    "ci/verbs/build_image.py",
    "ci/verbs/in_image.py",
    "core/env/engines.py",
    "core/env/installer.py",
    "core/stores/s3_client.py",
    "pytorch_build/sample/__init__.py",
    "pytorch_build/sources/git.py",
    "pytorch_build/test/container_run.py",
    "pytorch_build/verbs/build.py",
    "requirements/lock.py",
}
INHERITED = {"process.inherited", "core.process.inherited"}
HANDED_ON = re.compile(r"env=.*\benvironment\(\)")


def test_only_listed_modules_give_programs_the_whole_environment() -> None:
    modules = set()
    for path in source_code.product_modules():
        names = source_code.used_names(path) | source_code.imported_names(path)
        if INHERITED & names or HANDED_ON.search(path.read_text(encoding="utf-8")):
            modules.add(relative(path))

    assert modules == MAY_INHERIT
