"""Where wheels come from: a statement for each, and a bill of materials for each run, from records alone.

`facts` reads records, `statements` and `sbom` write documents (pure functions: the same records give the
same bytes), `checking` holds a file against them.
"""
