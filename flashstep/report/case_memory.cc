#include "flashstep/report/case_memory.h"

#include "flashstep/measure/machine.h"
#include "flashstep/measure/memory.h"

namespace flashstep::report {
namespace {

bool contains(const std::string& text, const char* part) {
  return text.find(part) != std::string::npos;
}

}  // namespace

double total_memory_bytes(const std::string& device) {
  const measure::Machine machine = measure::describe_machine();
  return static_cast<double>(device == "cuda" ? machine.gpus.at(0).memory_bytes
                                              : machine.memory_bytes);
}

double free_memory_bytes(const std::string& device) {
  return device == "cuda" ? total_memory_bytes(device)
                          : static_cast<double>(measure::available_bytes());
}

std::string process_trouble(const std::string& failure) {
  if (contains(failure, "SIGKILL")) return "OOM: the kernel ended the process (SIGKILL)";
  // "rank 0 of 1 (process 4711) ended with exit code 1: ..."
  const size_t end = failure.find("exit code ");
  const size_t own = end == std::string::npos ? end : failure.find(": ", end);
  const std::string words = own == std::string::npos ? failure : failure.substr(own + 2);
  return (is_out_of_memory(words) ? "OOM: " : "failed: ") + words;
}

}  // namespace flashstep::report
