#!/usr/bin/env bash
# Starts the mnist example with torchrun: PROCESSES of them on each of NODES machines, on all of which this is run, with
# NODE counting from 0 and HEAD naming the host of NODE 0. By default, two processes on this machine:
#     examples/cluster/torchrun.sh --job-dir runs/torchrun
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."

exec "${PYTHON:-.venv/bin/python}" -m torch.distributed.run \
    --nnodes "${NODES:-1}" --node-rank "${NODE:-0}" --nproc-per-node "${PROCESSES:-2}" \
    --master-addr "${HEAD:-localhost}" --master-port "${PORT:-29500}" --max-restarts "${RESTARTS:-0}" \
    -m examples.mnist.task "$@"
