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

# A busy machine is no fault of the code.
settings.register_profile(
    "any-machine", deadline=None, max_examples=25, suppress_health_check=[HealthCheck.too_slow]
)
# --hypothesis-profile=nightly: as many examples as hypothesis tries by itself
settings.register_profile("nightly", settings.get_profile("any-machine"), max_examples=100)
# --hypothesis-profile=thorough: for readers of damaged input, in the background; a hang is a failure
settings.register_profile("thorough", settings.get_profile("any-machine"), max_examples=2000, deadline=30_000)
# --hypothesis-profile=few: for one Python more, when another one has seen many examples
settings.register_profile("few", settings.get_profile("any-machine"), max_examples=10)
# for mutants: a failure is all that is to be known
settings.register_profile("mutants", settings.get_profile("few"), phases=[Phase.explicit, Phase.generate])
settings.load_profile("any-machine")

# A shell starts its background jobs with Ctrl-C ignored, and what they start inherits that.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)


# Collected tests and imported modules stay to the end: collections of garbage need not look at them again and
# again. It saves a tenth of the processor's time.
ALLOCATIONS_BEFORE_COLLECTION = 100_000


def pytest_collection_finish() -> None:
    """Take what has been collected out of the sight of the garbage collector."""
    gc.collect()
    gc.freeze()


def pytest_configure(config: pytest.Config) -> None:
    """Take the user's configuration out of reach, before a test or a worker process can read it."""
    gc.set_threshold(ALLOCATIONS_BEFORE_COLLECTION)
    if isolation.ISOLATED in os.environ:
        return  # A worker process inherits what its parent has isolated.
    if config.option.markexpr == "not processes":
        memory_folder.use(os.environ)
    # A process that a test has left may still write there, as virtualenv's updater does.
    home = tempfile.TemporaryDirectory(prefix="tests-home-", ignore_cleanup_errors=True)
    config.add_cleanup(home.cleanup)
    isolation.isolate(os.environ, Path(home.name))


@pytest.fixture(autouse=True)
def _no_settings_of_the_user() -> Iterator[None]:
    """Leave no user's file of settings in use for the next test."""
    yield
    use_user_file(None)
