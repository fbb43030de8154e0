"""The first run, or version of an index, at which a command fails, and what differs in it.

`search` decides what is tested next, `stored_runs` and `index_versions` are what may be searched, `judging`
runs the command, `differences` says what changed.
"""
