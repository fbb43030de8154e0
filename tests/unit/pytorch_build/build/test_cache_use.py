from pathlib import Path, PurePosixPath

import pytest

from pytorch_build.build.cache import CompilerCache
from pytorch_build.build.cache_use import use_cache

# tests/integration/test_compiler_caches.py has sccache's real server.

BASE_DIRS = (Path("/co/src/torch"), Path("/co/.nox/env"), Path("/co"))
CCACHE = CompilerCache(kind="ccache", program=PurePosixPath("/usr/bin/ccache"))


def test_has_a_folder_for_ccaches_log_while_a_build_runs() -> None:
    with use_cache(CCACHE, base_dirs=BASE_DIRS, base_env={}) as cache:
        assert cache is not None
        folder = Path(cache.environment({})["CCACHE_STATSLOG"]).parent
        assert folder.is_dir()

    assert not folder.exists()


@pytest.mark.parametrize(
    ("tree", "base_dir"),
    [("/co/src/torch", "/co"), ("/home/me/torch", "/home/me/torch")],
    ids=["managed", "developer's own"],
)
def test_tells_ccache_which_folder_lies_elsewhere_on_another_machine(tree: str, base_dir: str) -> None:
    with use_cache(CCACHE, base_dirs=(Path(tree), *BASE_DIRS[1:]), base_env={}) as cache:
        assert cache is not None
        assert cache.environment({})["CCACHE_BASEDIR"] == str(Path(base_dir))


@pytest.mark.parametrize(
    ("log", "hits", "misses", "errors"),
    [
        (None, 0, 0, 0),
        ("# a.c\ndirect_cache_hit\n# b.c\ncache_miss\n", 1, 1, 0),
        ("# a.c\ncache_miss\nremote_storage_error\n", 0, 1, 1),
    ],
    ids=["nothing compiled", "hit and miss", "error"],
)
def test_records_what_ccache_did_for_the_build(
    capsys: pytest.CaptureFixture[str], log: str | None, hits: int, misses: int, errors: int
) -> None:
    with use_cache(CCACHE, base_dirs=BASE_DIRS, base_env={}) as cache:
        assert cache is not None
        if log is not None:
            Path(cache.environment({})["CCACHE_STATSLOG"]).write_text(log)
        details = cache.report_statistics()

    assert details is not None
    assert details.items() >= {"hits": hits, "misses": misses, "errors": errors}.items()
    assert details["access"] == "read-write"
    assert ("warning: ccache failed" in capsys.readouterr().err) is (errors > 0)


def test_goes_on_without_statistics_that_cannot_be_read(capsys: pytest.CaptureFixture[str]) -> None:
    with use_cache(CCACHE, base_dirs=BASE_DIRS, base_env={}) as cache:
        assert cache is not None
        Path(cache.environment({})["CCACHE_STATSLOG"]).write_text("nonsense \0 of something else\n")
        # No build is thrown away for counters.
        assert cache.report_statistics() is None

    assert "statistics of ccache" in capsys.readouterr().err
