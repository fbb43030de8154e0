"""Results of tests and the JUnit reports that hold them: one format for every stage that tests.

The format is what pytest's ``--junitxml`` writes. Beyond it, a report of ours has an ``error`` of type
``crashed`` or ``timeout``, properties of the whole document, one ``testsuite`` per test file, and
``flakyFailure`` elements as Maven Surefire writes them.
"""
