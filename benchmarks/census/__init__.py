"""The parts of `benchmarks/census_train.py`."""
