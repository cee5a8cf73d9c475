"""Long tests of the whole: `kill` a training, cause `faults` in a cluster, `soak` a server in requests, submit `jobs`.

`common` holds what they share, and each has its own page. `scripts/storm NAME --help` says what one does.
"""
