"""What compiled files say of themselves, and their search paths."""


def up(value: int, alignment: int) -> int:
    """Round up to a multiple."""
    return -(-value // alignment) * alignment
