"""The texts of a result: the line that says why a test failed, and output made safe to print and to keep."""

import re

# Limits of what is kept of a result, in characters.
LINE_LIMIT = 300
TEXT_LIMIT = 16_384
_HALF_TEXT = TEXT_LIMIT // 2

# Terminal colours, also as pytest writes characters that XML has no place for.
_COLOURS = re.compile(r"(?:\x1b|#x1B)\[[0-9;]*m")
_UNPRINTABLE = re.compile(
    r"[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f\u200e\u200f\u202a-\u202e\u2066-\u2069\ud800-\udfff\ufffe\uffff]"
)
# Messages that say where it happened, not what.
_VAGUE = re.compile(r"(?i)(collection failure|failed on (setup|teardown) with .*|test failure|)")
# The first line that pytest marks as the error in a traceback.
_RAISED = re.compile(r"^E {2,}(\S.*)$", re.MULTILINE)


def first_line(message: str, text: str) -> str:
    """Return the line that says why: the message's first, else what was raised, else the text's last."""
    message_lines = _lines(message)
    if message_lines and not _VAGUE.fullmatch(message_lines[0]):
        return message_lines[0][:LINE_LIMIT]

    clean_text = clean(text)
    if raised := _RAISED.search(clean_text):
        error = raised[1].strip()
        return error[:LINE_LIMIT]

    lines = _lines(text) or message_lines
    if not lines:
        return ""
    return lines[-1][:LINE_LIMIT]


def _lines(text: str) -> list[str]:
    """Return the lines that hold anything, without the spaces around it."""
    lines: list[str] = []
    for line in clean(text).splitlines():
        stripped_line = line.strip()
        if stripped_line:
            lines.append(stripped_line)
    return lines


def clean(text: str) -> str:
    """Remove colours, and characters that move a terminal's cursor or reorder text."""
    colourless_text = _COLOURS.sub("", text)
    printable_text = _UNPRINTABLE.sub("\N{REPLACEMENT CHARACTER}", colourless_text)
    return printable_text.replace("\r", "")


def cut(text: str) -> str:
    """Shorten a text to `TEXT_LIMIT` characters of its beginning and end."""
    surplus = len(text) - TEXT_LIMIT
    if surplus <= 0:
        return text
    beginning = text[:_HALF_TEXT]
    end = text[-_HALF_TEXT:]
    return f"{beginning}\n… {surplus} characters left out …\n{end}"
