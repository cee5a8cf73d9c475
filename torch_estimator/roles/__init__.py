"""What a process of a job does: today all of it, in one process."""
