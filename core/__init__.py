"""What every stage shares: errors, processes, console, wheel files, records, stores."""

import sys

if sys.version_info < (3, 11):  # noqa: UP036 - said here, before anything fails to import
    sys.exit(f"error: This is Python {sys.version.split()[0]}. The tool needs 3.11, 3.12 or 3.13: README.md.")
