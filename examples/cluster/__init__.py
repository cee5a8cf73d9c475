"""How to start the examples on several machines."""
