"""What `scripts/bench console` looks at, and with: a corpus of runs and jobs, servers of pages, and Chromium."""
