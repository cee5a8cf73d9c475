"""What the benchmarks compare with, and on; each peer is installed into an environment of its own under `.bench/`."""
