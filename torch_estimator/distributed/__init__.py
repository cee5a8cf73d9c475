"""Plumbing for processes that train one model together: finding each other, exchanging, and recovering from losses.

To read in this order:

- `rendezvous` and `generation`: how processes find each other, at the start and after each loss.
- `group`: the processes that have found each other, and their collectives. `mesh` carries messages, `heartbeat` logs
  which process keeps the others waiting, `network` finds addresses, `errors` has what a loss raises.
- `consistency`: the check that all are about to train the same.
- `gradient_message`: what processes exchange in a step. `peer_recovery`: what they hand to a replacement.
- `shared_evaluation` and `evaluated_batch`: evaluation by several processes.
- `forked_replicas`: processes that are forked on one machine.

`torch_estimator.strategies` puts these together.
"""
