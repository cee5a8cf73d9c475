"""State files of a run, and the status of a training, which other processes read."""
