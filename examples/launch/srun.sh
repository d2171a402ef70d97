#!/bin/sh
#SBATCH --job-name=flashstep
#SBATCH --nodes=2
#SBATCH --ntasks-per-node=8
#SBATCH --gpus-per-task=1
#SBATCH --requeue
# flashstep train under Slurm: one task a GPU, on as many nodes as the job has.
#
#   sbatch examples/launch/srun.sh configs/xl.json --run /shared/runs/xl
#   salloc -n 4 examples/launch/srun.sh configs/tinystories.json --run runs/stories     (CPU)
#
# The run directory must be one that all nodes see. --kill-on-bad-exit ends the step when a rank
# dies; the loop starts it again, up to RESTARTS times, and --resume makes it go on from the newest
# checkpoint. It does not after a mistake in the arguments (exit code 2) or a signal (129, 130,
# 143, 152).
set -u
restarts=${RESTARTS:-3}
while :; do
  srun --kill-on-bad-exit=1 "${FLASHSTEP:-flashstep}" train "$@" --resume
  code=$?
  case $code in 0 | 2 | 129 | 130 | 143 | 152) exit $code ;; esac
  [ "$restarts" -gt 0 ] || exit $code
  restarts=$((restarts - 1))
  echo "srun.sh: the step ended with exit code $code; starting it again" >&2
done
