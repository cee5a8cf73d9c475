"""What the benchmarks compare with; each peer is installed into an environment of its own under `.bench/`."""
