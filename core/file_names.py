"""Names that Windows gives no file, by Microsoft's "Naming Files, Paths, and Namespaces"."""

import re

_DEVICE = re.compile(r"(CON|PRN|AUX|NUL|CONIN\$|CONOUT\$|(COM|LPT)[0-9¹²³])", re.IGNORECASE)
_REFUSED_CHARACTERS = re.compile(r'[<>:"|?*\x00-\x1f]')


def windows_fault(name: str) -> str | None:
    """Return why Windows cannot hold a file or folder of this name; None where it can."""
    stem = name.partition(".")[0].rstrip(" ")
    if _DEVICE.fullmatch(stem):
        return f"{stem} is the name of a device"
    character = _REFUSED_CHARACTERS.search(name)
    if character is not None:
        return f"the character {character[0]!r} is not allowed"
    if name.endswith((".", " ")):
        return "a name may not end with a dot or a space"
    return None
