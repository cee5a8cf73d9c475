"""Roles in `train_and_evaluate`: a process runs the whole job, or only the part of a chief, worker or evaluator."""
