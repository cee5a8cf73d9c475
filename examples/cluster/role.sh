#!/usr/bin/env bash
# Gives the tasks of a Slurm step the roles that ranks alone do not have: PS parameter servers, and an evaluator with
# EVALUATOR=1. Rank 0 is the chief; then come the servers, the workers and, last, the evaluator. slurm.sbatch calls it:
#     srun examples/cluster/role.sh python -m examples.mnist.task --job-dir runs/slurm
set -euo pipefail

servers=${PS:-0} evaluators=${EVALUATOR:-0} ranks=$SLURM_STEP_NUM_TASKS rank=$SLURM_PROCID
workers=$((ranks - 1 - servers - evaluators))
if ((servers + evaluators == 0)); then
    exec "$@"
elif ((workers < 0)); then
    echo "error: PS=$servers and EVALUATOR=$evaluators need $((1 + servers + evaluators)) tasks with the chief, but the" \
        "step has $ranks; give sbatch more --nodes or --ntasks-per-node." >&2
    exit 2
fi

# Slurm fills one node after the other. Each rank has a port of its own, so that several can share a node.
mapfile -t nodes < <(scontrol show hostnames "$SLURM_STEP_NODELIST")
addresses=()
for ((one = 0; one < ranks - evaluators; one++)); do
    addresses+=("\"${nodes[one / ${SLURM_NTASKS_PER_NODE:-1}]}:$((12000 + SLURM_JOB_ID % 200 * 100 + one))\"")
done
joined() {
    local IFS=,
    echo "[$*]"
}
cluster="\"chief\": [${addresses[0]}]"
if ((servers)); then cluster+=", \"ps\": $(joined "${addresses[@]:1:servers}")"; fi
if ((workers)); then cluster+=", \"worker\": $(joined "${addresses[@]:1+servers}")"; fi

if ((rank == 0)); then
    type=chief index=0
elif ((rank <= servers)); then
    type=ps index=$((rank - 1))
elif ((rank <= servers + workers)); then
    type=worker index=$((rank - 1 - servers))
else
    type=evaluator index=0
fi
export TF_CONFIG="{\"cluster\": {$cluster}, \"task\": {\"type\": \"$type\", \"index\": $index}}"
exec "$@"
