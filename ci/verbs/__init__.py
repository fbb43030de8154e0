"""The verbs of the front door: each turns arguments into values, calls, and prints."""
