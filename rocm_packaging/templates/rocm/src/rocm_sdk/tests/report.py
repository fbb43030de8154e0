"""A run's results as lines and as a JUnit file."""

import os
import re
import tempfile
import xml.etree.ElementTree as ET

# what XML 1.0 cannot hold, not even escaped
_UNPRINTABLE = re.compile("[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")
_WORDS = {"passed": "ok", "skipped": "skip", "failed": "FAIL"}


def line(result):
    """One line about a result; a failure's text follows it."""
    head = f"{_WORDS[result.outcome]:4}  {result.group}: {result.name}"
    if not result.text:
        return head
    if result.outcome == "failed":
        return head + "".join(f"\n      {text}" for text in result.text.splitlines())
    return f"{head} ({result.text})"


def counts(results):
    """How many results there are of each outcome."""
    return {
        outcome: sum(result.outcome == outcome for result in results)
        for outcome in ("passed", "failed", "skipped")
    }


def junit(results, properties):
    """The results as a JUnit document; `properties` are facts about the installation."""
    number = counts(results)
    totals = {
        "tests": str(len(results)),
        "failures": str(number["failed"]),
        "errors": "0",
        "skipped": str(number["skipped"]),
        "time": f"{sum(result.seconds for result in results):.3f}",
    }
    root = ET.Element("testsuites", totals)
    suite = ET.SubElement(root, "testsuite", {"name": "rocm-sdk", **totals})
    listed = ET.SubElement(suite, "properties")
    for name, value in properties.items():
        ET.SubElement(listed, "property", {"name": name, "value": _clean(value)})
    for result in results:
        case = ET.SubElement(
            suite,
            "testcase",
            {
                "classname": f"rocm_sdk.{result.group}",
                "name": _clean(result.name),
                "time": f"{result.seconds:.3f}",
            },
        )
        text = _clean(result.text)
        if result.outcome == "skipped":
            ET.SubElement(case, "skipped", {"message": text})
        elif result.outcome == "failed":
            message = (text.splitlines() or [""])[0]
            ET.SubElement(case, "failure", {"message": message}).text = text
        elif text:
            ET.SubElement(case, "system-out").text = text
    ET.indent(root)
    return ET.tostring(root, encoding="utf-8", xml_declaration=True) + b"\n"


def _clean(text):
    return _UNPRINTABLE.sub("\N{REPLACEMENT CHARACTER}", text)


def write(path, content):
    """Write a file that is there whole or not at all."""
    folder = os.path.dirname(os.path.abspath(path))
    os.makedirs(folder, exist_ok=True)
    handle, temporary = tempfile.mkstemp(dir=folder, prefix=".rocm-sdk-test-")
    try:
        with os.fdopen(handle, "wb") as stream:
            stream.write(content)
        os.chmod(temporary, 0o644)
        os.replace(temporary, path)
    except BaseException:
        os.unlink(temporary)
        raise
