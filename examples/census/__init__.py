"""Census income, wide and deep."""
