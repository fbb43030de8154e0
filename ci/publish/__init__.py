"""Putting files into a run's outputs: what is there already by one listing, the rest side by side."""
