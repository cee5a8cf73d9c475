"""Launcher: run one program as all tasks of a job, restart failed tasks, and stop all tasks at the end.

The parts, in the order in which ``estimator local train`` uses them:

1. `layout` says which tasks a job has, chooses their ports, and builds the command and environment of each.
2. `job` supervises: it starts every task, restarts failed ones, stops the job, and returns its exit status.
3. `process` starts one task. `process.Start` is the interface between the supervisor and a place where processes run;
   `process.LocalProcess` implements it for this machine, `torch_estimator.jobs.ray` for a Ray cluster.
4. `lines` copies what the processes print, and shows it on the terminal.

To add another place, such as Kubernetes, write one class with the methods of `process.RunningProcess` whose constructor
starts a task (there, a pod) and reports its exit status. Pass it to `job.Job`, and pass the addresses under which the
tasks will be reachable to `Layout.tasks`. Restarts, exit statuses and signals stay as they are in `job`. To keep the
lines elsewhere than on the terminal, pass a `lines.Lines`; to follow starts, exits and the end, pass ``observe``.
"""
