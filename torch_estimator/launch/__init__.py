"""Jobs: programs that are started as a whole, watched, and ended."""
