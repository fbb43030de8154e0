"""The page of a run: one model of what its records say, shown as HTML, as text and as JSON."""
