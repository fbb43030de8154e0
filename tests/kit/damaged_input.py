"""Damaged bytes for whatever reads bytes of others: mutations of valid ones, and a corpus of what was found.

`corpus/{reader}/` holds inputs that once led to an error of another class, a hang or too much memory. Each
that is found gets a file there, and stays.
"""

import json
import struct
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from hypothesis import strategies as st

CORPUS = Path(__file__).with_name("corpus")
MOST_CHANGES = 4

LARGE_NUMBERS = (
    *(struct.pack("<H", number) for number in (0, 0xFF, 0x7FFF, 0xFFFF)),
    *(struct.pack("<I", number) for number in (0, 0x7FFFFFFF, 0x80000000, 0xFFFFFFFF)),
    *(struct.pack("<Q", number) for number in (0, 1 << 31, 1 << 62, (1 << 63) - 1, 1 << 63, (1 << 64) - 1)),
)
HOSTILE_BYTES = (
    b"\0",
    b"\n",
    b"\r\n",
    b"\x1b[2J",
    b"\xff\xfe",
    b"\xed\xb2\x80",
    "\u202e".encode(),
    b"../",
    b"/",
    b"<!--",
    b'"',
    b"'''",
    b"[[",
    b"{",
    b"%00",
    b"-1",
    b"9" * 400,
    b"1e999",
    b"https://[",
)
HOSTILE_VALUES: tuple[Any, ...] = (
    None,
    True,
    -1,
    1.5,
    1 << 70,
    float("inf"),
    float("nan"),
    "",
    "\0",
    "\x1b[2J",
    "../..",
    "\ud800",
    "9" * 400,
    [],
    {},
    [[]],
    [None],
    {"": None},
)

Change = Callable[[bytes], bytes]


def corpus_of(reader: str) -> Sequence[bytes]:
    """Return the inputs that were found for a reader."""
    return [path.read_bytes() for path in sorted((CORPUS / reader).glob("*"))]


def damaged(content: bytes) -> st.SearchStrategy[bytes]:
    """Return mutations of valid bytes; of a JSON document also those that exchange its values."""
    mutations = st.lists(_changes(), min_size=1, max_size=MOST_CHANGES).map(
        lambda changes: _apply(content, changes)
    )
    try:
        document = json.loads(content)
    except ValueError:
        return mutations
    return mutations | _with_other_value(document)


def _apply(content: bytes, changes: Sequence[Change]) -> bytes:
    for change in changes:
        content = change(content)
    return content


@st.composite
def _changes(draw: st.DrawFn) -> Change:
    """Return one change, at a place that is a fraction of the length of what it is applied to."""
    fraction = draw(st.floats(0, 1, exclude_max=True))
    length = draw(st.sampled_from((1, 2, 4, 8, 16, 100)))
    kind = draw(st.sampled_from(("flip", "number", "insert", "remove", "repeat", "cut", "swap")))
    mask = draw(st.integers(1, 255))
    number = draw(st.sampled_from(LARGE_NUMBERS))
    inserted = draw(st.sampled_from(HOSTILE_BYTES) | st.binary(min_size=1, max_size=8))

    def change(content: bytes) -> bytes:
        place = int(fraction * len(content))
        before = content[:place]
        piece = content[place : place + length]
        after = content[place + length :]
        # Fields of headers are aligned.
        aligned = place - place % len(number)
        results = {
            "flip": before + bytes(byte ^ mask for byte in piece[:1]) + content[place + 1 :],
            "number": content[:aligned] + number + content[aligned + len(number) :],
            "insert": before + inserted + piece + after,
            "remove": before + after,
            "repeat": before + piece * 3 + after,
            "swap": after + before + piece,
            "cut": before,
        }
        return results[kind]

    return change


@st.composite
def _with_other_value(draw: st.DrawFn, document: Any) -> bytes:
    """Return a document in which one value, at any depth, is of another type or size."""
    copy = json.loads(json.dumps(document))
    container = copy
    while container:
        keys = sorted(container) if isinstance(container, dict) else range(len(container))
        key = draw(st.sampled_from(keys))
        child = container[key]
        if not isinstance(child, dict | list) or not child or draw(st.booleans()):
            if draw(st.booleans()) and isinstance(container, dict):
                del container[key]
            else:
                container[key] = draw(st.sampled_from(HOSTILE_VALUES))
            break
        container = child
    return json.dumps(copy).encode()
