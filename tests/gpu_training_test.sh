# gpu_training on two ranks, killed after its first checkpoint and started again, writes the
# checkpoint of a run that nobody stopped.
#   gpu_training_test.sh FLASHSTEP EXAMPLE
# On CPUs, unless GPU_TRAINING_DEVICES names the GPUs (0,1).
set -eu
export CUDA_VISIBLE_DEVICES=${GPU_TRAINING_DEVICES-}
flashstep=$1 example=$2
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
mkdir "$folder/whole" "$folder/killed"

cd "$folder/whole"
"$flashstep" launch -n 2 -- "$example"

cd "$folder/killed"
"$flashstep" launch -n 2 -- "$example" &
launcher=$!
while [ ! -e checkpoints/step_00000100 ]; do
  kill -0 $launcher 2>/dev/null || { echo "it ended before its first checkpoint"; exit 1; }
  sleep 0.01
done
kill -KILL $(awk '{print $NF}' /proc/$launcher/task/$launcher/children)  # a rank; the others end with it
if wait $launcher; then echo "expected a run that was killed"; exit 1; fi
"$flashstep" launch -n 2 -- "$example"

diff -r --exclude=state.json "$folder/whole/checkpoints/step_00000300" "$folder/killed/checkpoints/step_00000300"
ls "$folder/whole/checkpoints/step_00000300"
