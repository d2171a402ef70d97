#!/bin/sh
# flashstep train on one machine or several, started by Open MPI, which only starts and stops the
# ranks: they talk through Gloo or NCCL.
#
#   RANKS=4 examples/launch/mpirun.sh configs/tinystories.json --run runs/stories
#   RANKS=16 HOSTS=node1:8,node2:8 examples/launch/mpirun.sh configs/xl.json --run /shared/xl
#
# The run directory must be one that all machines see. When a rank dies, mpirun stops the others;
# the loop starts the job again, up to RESTARTS times, and --resume makes it go on from the newest
# checkpoint. It does not after a mistake in the arguments (exit code 2) or a signal (129, 130,
# 143, 152).
set -u
set -- "${FLASHSTEP:-flashstep}" train "$@" --resume
if [ -n "${HOSTS:-}" ]; then
  first=${HOSTS%%,*}
  set -- --host "$HOSTS" -x MASTER_ADDR="${first%%:*}" -x MASTER_PORT="${PORT:-29500}" "$@"
fi
restarts=${RESTARTS:-3}
while :; do
  mpirun -n "${RANKS:-2}" --bind-to none "$@"
  code=$?
  case $code in 0 | 2 | 129 | 130 | 143 | 152) exit $code ;; esac
  [ "$restarts" -gt 0 ] || exit $code
  restarts=$((restarts - 1))
  echo "mpirun.sh: the job ended with exit code $code; starting it again" >&2
done
