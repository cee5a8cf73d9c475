"""The programs that `scripts/job-storm` submits: `steps` trains, and `lines` uses no torch_estimator.

Those of `scripts/tune-storm`: `tuned` is the census trainer, slowed down, and `score` a trial that costs nothing.

They are copied into the directory of a job, and so import nothing of the storms.
"""
