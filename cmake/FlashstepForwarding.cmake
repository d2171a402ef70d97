# Where the names of headers lie that were public by being installed: "HEADER: what there was". Goes with the next version.
set(FLASHSTEP_MOVED
  "amp: train/precision"
  "attention: attention/attention attention/implementation_names"
  "checkpoint: train/checkpoint train/safetensors train/safetensors_format train/save"
  "data: data/batch_order data/batches data/token_file"
  "data_parallel: parallel/distributed_data_parallel parallel/gradient_reducer parallel/strategy"
  "error: base/error base/run_main"
  "group: comm/environment comm/group comm/init"
  "loop: train/loop train/loop_result train/step"
  "model: base/fields model/config model/layers model/transformer"
  "ops: ops/autocast ops/cross_entropy ops/embedding ops/grad_norm ops/linear ops/linear_cross_entropy ops/recompute ops/rms_norm ops/rope ops/swiglu"
  "optim: train/adamw train/clip train/schedule train/sharded_adamw train/skippable"
  "profiling: measure/ranges"
  "sharded_optimizer: parallel/sharded_optimizer"
  "tokenizer: tokenizer/merges tokenizer/special_tokens tokenizer/tokenizer tokenizer/vocabulary")

# Installs a header for each that includes the one with its names, and says where the namespaces went that these had.
function(flashstep_install_forwarding DESTINATION)
  set(folder "${PROJECT_BINARY_DIR}/forwarding/flashstep")
  set(namespaces "")
  foreach(namespace comm data measure parallel tokenizer train)
    string(APPEND namespaces
      "namespace [[deprecated(\"its names are flashstep's own now\")]] ${namespace} { using namespace flashstep; }\n")
  endforeach()
  file(CONFIGURE OUTPUT "${folder}/old_namespaces.h"
       CONTENT "#pragma once\n\nnamespace flashstep {\n${namespaces}}  // namespace flashstep\n")
  foreach(moved IN LISTS FLASHSTEP_MOVED)
    string(REGEX MATCHALL "[a-z0-9_/]+" names "${moved}")
    list(POP_FRONT names header)
    foreach(name IN LISTS names)
      file(CONFIGURE OUTPUT "${folder}/${name}.h" CONTENT "// Moved to flashstep/${header}.h.
#pragma once

#include \"flashstep/${header}.h\"
#include \"flashstep/old_namespaces.h\"
")
    endforeach()
  endforeach()
  # The one function that has another name, too.
  file(APPEND "${folder}/tokenizer/tokenizer.h" "
namespace flashstep::tokenizer {
using TrainOptions = BpeOptions;
inline Tokenizer train(const std::vector<std::filesystem::path>& texts, const TrainOptions& options) {
  return train_bpe(texts, options);
}
}  // namespace flashstep::tokenizer
")
  install(DIRECTORY "${folder}" DESTINATION "${DESTINATION}" FILES_MATCHING PATTERN "*.h")
endfunction()
