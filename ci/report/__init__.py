"""The page of a run: one model of what its records say, rendered as HTML, as text and as JSON.

`facts` reads a run, `page` makes the model of it, `html` and `text` render the model. `history` does the same
for the last runs of a store.
"""
