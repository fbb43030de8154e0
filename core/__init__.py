"""What every stage shares: errors, processes, console, wheel files, records, stores."""
