"""What a process of a job does: all of it, or the part of a chief or an evaluator."""
