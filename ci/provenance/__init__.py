"""Where wheels come from: a statement for each, and a bill of materials for each run, from records alone.

`facts` reads records, `statements` writes documents (pure functions: the same records give the same bytes),
`releases` finds the run and the decision of a file that is handed out, `evidence` compares a file with them.
"""
