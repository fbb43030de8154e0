import gc
import os
import signal
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, Phase, settings

from core.data import use_user_file
from tests.kit import isolation, memory_folder

# Without a deadline, as a busy machine is no fault of the code.
settings.register_profile(
    "any-machine", deadline=None, max_examples=25, suppress_health_check=[HealthCheck.too_slow]
)
# --hypothesis-profile=nightly: as many examples as hypothesis tries by itself
settings.register_profile("nightly", settings.get_profile("any-machine"), max_examples=100)
# --hypothesis-profile=thorough: for readers of damaged input, in the background; the deadline finds hangs
settings.register_profile("thorough", settings.get_profile("any-machine"), max_examples=2000, deadline=30_000)
# --hypothesis-profile=few: for further Pythons, after many examples were tried by one of them
settings.register_profile("few", settings.get_profile("any-machine"), max_examples=10)
# --hypothesis-profile=mutants: nothing is shrunk, as only the failure counts
settings.register_profile("mutants", settings.get_profile("few"), phases=[Phase.explicit, Phase.generate])
settings.load_profile("any-machine")

# A shell starts its background jobs with Ctrl-C ignored, and their children inherit that.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)


# Collected tests and imported modules stay to the end, so the garbage collector need not look at them again
# and again. That saves a tenth of the processor's time.
ALLOCATIONS_BEFORE_COLLECTION = 100_000


def pytest_collection_finish() -> None:
    """Exempt from garbage collection what the collection of tests has made."""
    gc.collect()
    gc.freeze()


def pytest_configure(config: pytest.Config) -> None:
    """Isolate the tests from the user's configuration before a test or a worker process can read it."""
    gc.set_threshold(ALLOCATIONS_BEFORE_COLLECTION)
    if isolation.ISOLATED in os.environ:
        # A worker process inherits the variables that its parent has isolated.
        return
    if config.option.markexpr == "not processes":
        memory_folder.use(os.environ)
    # A process that outlives its test may still write there, as virtualenv's updater does.
    home = tempfile.TemporaryDirectory(prefix="tests-home-", ignore_cleanup_errors=True)
    config.add_cleanup(home.cleanup)
    isolation.isolate(os.environ, Path(home.name))


@pytest.fixture(autouse=True)
def _no_settings_of_the_user() -> Iterator[None]:
    """Let the next test begin without a user's file of settings."""
    yield
    use_user_file(None)
