"""The programs that `scripts/job-storm` submits: `steps` trains, and `lines` uses no torch_estimator.

They are copied into the directory of a job, and so import nothing of the storms.
"""
