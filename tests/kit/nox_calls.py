"""The calls of nox that a dry run of a flow prints."""


def printed_calls(output: str) -> dict[str, list[str]]:
    """Return the printed calls of nox: the first session, and the options after the dashes."""
    calls: dict[str, list[str]] = {}
    for line in output.splitlines():
        words = line.split()
        calls[words[2]] = words[words.index("--") + 1 :]
    return calls
