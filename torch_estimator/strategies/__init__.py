"""Strategies, which spread a training over devices and processes. Read ``single.py`` first: it is the simplest."""
