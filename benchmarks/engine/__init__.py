"""All that benchmarks know of the engine's inside."""
