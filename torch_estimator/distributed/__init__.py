"""Communication between processes that train one model together: rendezvous, collectives, recovery.

Read the modules in this order:

- `rendezvous` and `generation`: how processes find each other, at the start and after a process was lost.
- `group`: the connected processes and their collectives. `mesh` carries messages, `heartbeat` logs which process keeps
  the others waiting, `network` finds addresses, `errors` defines the exceptions that a lost process causes.
- `consistency`: the check that all processes run the same program with the same settings.
- `gradient_message`: the message that each process sends in a step. `peer_recovery`: how the survivors send the
  training's state to the replacement of a lost process.
- `shared_evaluation` and `evaluated_batch`: evaluation by several processes.
- `forked_replicas`: processes that are forked on one machine.

`torch_estimator.strategies` puts these together.
"""
