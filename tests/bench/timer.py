"""Start a program from a process that is small, and say what it took; its output goes where errors go.

A child's memory counts its parent's until it is another program.
"""

import json
import os
import sys
import time

if __name__ == "__main__":
    command = sys.argv[1:]
    output_to_errors = [(os.POSIX_SPAWN_DUP2, 2, 1)]

    start = time.perf_counter()
    child = os.posix_spawnp(
        command[0],
        command,
        os.environ,  # noqa: TID251 - handed on
        file_actions=output_to_errors,
    )
    _, status, usage = os.wait4(child, 0)
    wall = time.perf_counter() - start

    document = {
        "wall": wall,
        "cpu": usage.ru_utime + usage.ru_stime,
        "memory": usage.ru_maxrss * 1024,
    }
    sys.stdout.write(json.dumps(document))  # noqa: TID251 - what is measured imports nothing of the product
    sys.exit(os.waitstatus_to_exitcode(status))
