"""Checks of built wheels: what an installer, a loader or a GPU would stumble over, found before.

`run.check_wheels` is the way in; each other module has one subject and gives findings.
"""
