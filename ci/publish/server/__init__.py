"""What runs beside a bucket: the function behind its events, and what it is allowed."""
