"""Roles of the processes of a job: run the whole job, or only the part of a chief, a worker or an evaluator."""
