"""Parameter servers, and the workers that train with these servers.

On the server, which imports no torch: `server` (the loop that replies to requests), `run` (one training), `membership`
(its workers), `shard` and `rules` (parameters and how they are updated). In a worker: `push_pull` (the training steps),
`lookups` and `gradients` (what a step pulls and pushes), `placement` (which parameter is on which server),
`server_state` (give servers their parameters, restore them), `client` (connections). In both: `protocol` and `plan`
(messages), `encryption`.
"""
