// Writes and reads the files of flashstep/train for the Python tests beside this file.
//   file_tool write-tensors FILE        one tensor of each dtype, and some shapes
//   file_tool read-tensors FILE         a line a tensor: name, dtype, shape, bytes in hexadecimal
//   file_tool write-events DIR A B      steps A to B of a run that starts, or goes on, at A
#include <cstdio>
#include <cstring>

#include <torch/types.h>

#include "flashstep/checkpoint.h"
#include "flashstep/error.h"
#include "flashstep/train/tensorboard.h"

namespace {

using flashstep::NamedTensors;
using flashstep::str;

// Bytes 7, 38, 69, ...: every dtype gets values that differ.
at::Tensor pattern(at::ScalarType dtype, at::IntArrayRef shape) {
  at::Tensor tensor = torch::empty(shape, dtype);
  auto* bytes = static_cast<unsigned char*>(tensor.mutable_data_ptr());
  for (int64_t i = 0; i < tensor.numel() * tensor.element_size(); ++i) {
    bytes[i] = static_cast<unsigned char>(dtype == at::kBool ? i % 2 : i * 31 + 7);
  }
  return tensor;
}

void write_tensors(const std::string& path) {
  NamedTensors tensors;
  for (const at::ScalarType dtype :
       {at::kDouble, at::kFloat, at::kHalf, at::kBFloat16, at::kLong, at::kInt, at::kShort,
        at::kChar, at::kUInt64, at::kUInt32, at::kUInt16, at::kByte, at::kBool, at::kComplexFloat,
        at::kFloat8_e4m3fn, at::kFloat8_e5m2, at::kFloat8_e4m3fnuz, at::kFloat8_e5m2fnuz}) {
    tensors.emplace_back(c10::toString(dtype), pattern(dtype, {3, 5}));
  }
  tensors.emplace_back("scalar", pattern(at::kFloat, {}));
  tensors.emplace_back("empty", pattern(at::kFloat, {0, 4}));
  tensors.emplace_back("transposed", pattern(at::kFloat, {3, 5}).t());
  tensors.emplace_back("name with \"quotes\", a \n and é", pattern(at::kByte, {1}));
  flashstep::write_safetensors(path, tensors, {{"format", "pt"}, {"é", "\t"}});
}

void read_tensors(const std::string& path) {
  const flashstep::SafetensorsFile file(path);
  for (const auto& entry : file.header().tensors) {
    const at::Tensor tensor = file.tensor(entry.name);
    std::printf("%s %s %s ", entry.name.c_str(), entry.dtype.c_str(),
                flashstep::str(at::IntArrayRef(entry.shape)).c_str());
    const auto* bytes = static_cast<const unsigned char*>(tensor.const_data_ptr());
    for (size_t i = 0; i < tensor.nbytes(); ++i) std::printf("%02x", bytes[i]);
    std::printf("\n");
  }
}

void write_events(const std::string& directory, int64_t first, int64_t last) {
  flashstep::EventWriter writer(directory, first);
  for (int64_t step = first; step <= last; ++step) {
    writer.scalars(step, {{"loss/train", 1.0 / static_cast<double>(step)},
                          {"lr", static_cast<double>(first)}});  // tells the start that wrote it
    if (step % 5 == 0) writer.text(step, "samples", str("step **", step, "** é"));
  }
}

}  // namespace

int main(int argc, char** argv) try {
  const std::vector<std::string> arguments(argv + 1, argv + argc);
  if (arguments.size() == 2 && arguments[0] == "write-tensors") {
    write_tensors(arguments[1]);
  } else if (arguments.size() == 2 && arguments[0] == "read-tensors") {
    read_tensors(arguments[1]);
  } else if (arguments.size() == 4 && arguments[0] == "write-events") {
    write_events(arguments[1], std::stoll(arguments[2]), std::stoll(arguments[3]));
  } else {
    throw flashstep::UserError("expected one of the commands at the head of file_tool.cc");
  }
  return 0;
} catch (const std::exception& error) {
  std::fprintf(stderr, "%s\n", error.what());
  return 2;
}
