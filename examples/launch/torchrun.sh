#!/bin/sh
# flashstep train on one machine or several, started by torchrun (it comes with PyPI's torch).
#
#   examples/launch/torchrun.sh configs/tinystories.json --run runs/stories
#
# On several machines run the same line on each, with NODES=2 and MASTER=name-of-the-first. The run
# directory must be one that all of them see. When a rank dies, torchrun stops the others and starts
# all of them again, up to RESTARTS times; --resume makes them go on from the newest checkpoint.
# Without the -- in front of the program torchrun takes its --run for an abbreviation of --run-path.
set -eu
gpus=$(nvidia-smi --list-gpus 2>/dev/null | wc -l)
ranks=${RANKS:-$([ "$gpus" -gt 0 ] && echo "$gpus" || echo 2)}
nodes=${NODES:-1}
# The ranks of one machine need not find it by its name.
[ "$nodes" != 1 ] || here=127.0.0.1
exec torchrun --no-python --nproc-per-node "$ranks" --max-restarts "${RESTARTS:-3}" \
  --nnodes "$nodes" --rdzv-backend c10d --rdzv-endpoint "${MASTER:-127.0.0.1}:${PORT:-29400}" \
  ${here:+--local-addr "$here"} \
  -- "${FLASHSTEP:-flashstep}" train "$@" --resume
