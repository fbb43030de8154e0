"""What runs inside a target environment: standard library plus pytest; this folder goes on its PYTHONPATH."""
