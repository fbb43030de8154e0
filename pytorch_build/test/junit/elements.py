"""The names of elements, types and properties that the writer and the readers of reports share."""

SUITES = frozenset({"testsuite", "testsuites"})
# Elements that say why a test did not pass, and why earlier attempts at it did not.
VERDICTS = frozenset({"failure", "error", "skipped"})
EARLIER_ATTEMPTS = frozenset({"rerun", "flakyFailure", "flakyError", "rerunFailure", "rerunError"})

# The type with which pytest marks a skipped test as one that was expected to fail.
XFAIL = "pytest.xfail"
# The property of a document that holds a problem: one more reason not to believe it.
PROBLEM = "problem"
