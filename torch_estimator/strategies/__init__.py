"""Strategies, which spread a training over devices and processes; read `single` first."""
