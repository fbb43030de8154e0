"""One wheel from a source tree: what it follows from, its plan, and the work."""
