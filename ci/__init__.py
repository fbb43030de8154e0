"""Events to plans; run outputs to indexes, summaries and promotion; S3 and GitHub."""
