#include <algorithm>
#include <array>
#include <bit>
#include <cstring>

#include <torch/types.h>
#include <torch/utils.h>

#include "flashstep/base/hash.h"
#include "flashstep/base/text.h"
#include "flashstep/checkpoint.h"
#include "flashstep/error.h"
#include "flashstep/train/stored_checkpoint.h"

namespace flashstep {
namespace {

static_assert(std::endian::native == std::endian::little, "the format's numbers are little-endian");

// Large enough that a transfer's start costs little beside it, small beside any model.
constexpr int64_t kChunkBytes = 16 << 20;

struct DtypeName {
  at::ScalarType torch;
  std::string_view name;
};
// torch's names for the format's dtypes.
constexpr std::array<DtypeName, 19> kTorchDtypes = {{
    {at::kDouble, "F64"},
    {at::kFloat, "F32"},
    {at::kHalf, "F16"},
    {at::kBFloat16, "BF16"},
    {at::kLong, "I64"},
    {at::kInt, "I32"},
    {at::kShort, "I16"},
    {at::kChar, "I8"},
    {at::kUInt64, "U64"},
    {at::kUInt32, "U32"},
    {at::kUInt16, "U16"},
    {at::kByte, "U8"},
    {at::kBool, "BOOL"},
    {at::kComplexFloat, "C64"},
    {at::kFloat8_e4m3fn, "F8_E4M3"},
    {at::kFloat8_e5m2, "F8_E5M2"},
    {at::kFloat8_e8m0fnu, "F8_E8M0"},
    {at::kFloat8_e4m3fnuz, "F8_E4M3FNUZ"},
    {at::kFloat8_e5m2fnuz, "F8_E5M2FNUZ"},
}};

std::string_view dtype_name(at::ScalarType dtype) {
  for (const DtypeName& known : kTorchDtypes) {
    if (known.torch == dtype) return known.name;
  }
  return "";
}

at::ScalarType torch_dtype(std::string_view name) {
  for (const DtypeName& known : kTorchDtypes) {
    if (known.name == name) return known.torch;
  }
  throw UserError(str("[safetensors] expected a dtype that torch has, got ", name));
}

// Contiguous CPU memory whose bytes are the tensor's values (a lazy conjugate's are not).
bool is_plain_memory(const at::Tensor& tensor) {
  return tensor.is_cpu() && tensor.is_contiguous() && !tensor.is_conj() && !tensor.is_neg();
}

using BytesFunction = std::function<void(const char* data, size_t size_bytes)>;

// Calls `sink` with the tensor's bytes in row-major order, piece by piece, copying at most a chunk
// at a time.
void visit_bytes(const at::Tensor& tensor, const BytesFunction& sink) {
  const int64_t size_bytes = tensor.numel() * tensor.element_size();
  if (size_bytes == 0) return;
  if (is_plain_memory(tensor)) {
    const char* data = static_cast<const char*>(tensor.const_data_ptr());
    for (int64_t done = 0; done < size_bytes; done += kChunkBytes) {
      sink(data + done, std::min(kChunkBytes, size_bytes - done));
    }
    return;
  }
  if (size_bytes <= kChunkBytes) {
    visit_bytes(tensor.resolve_conj().resolve_neg().to(at::kCPU).contiguous(), sink);
    return;
  }
  const int64_t rows = tensor.size(0);
  const int64_t row_bytes = size_bytes / rows;
  const int64_t rows_per_chunk = kChunkBytes / row_bytes;
  if (rows_per_chunk == 0) {
    for (int64_t row = 0; row < rows; ++row) visit_bytes(tensor.select(0, row), sink);
    return;
  }
  for (int64_t row = 0; row < rows; row += rows_per_chunk) {
    visit_bytes(tensor.narrow(0, row, std::min(rows_per_chunk, rows - row)), sink);
  }
}

// A tensor that is written: `form` has its shape and dtype, `visit` gives its bytes to a sink.
struct Source {
  std::string name;
  at::Tensor form;
  std::function<void(const BytesFunction& sink)> visit;
};

SafetensorsEntry describe(const Source& source) {
  const auto& [name, form, visit] = source;
  require_tensor(name, form.defined() && form.layout() == at::kStrided,
                 "[safetensors] expected dense tensors with data, got \"", name, "\" without");
  const std::string_view dtype = dtype_name(form.scalar_type());
  require_tensor(name, !dtype.empty(), "[safetensors] expected tensor \"", name,
                 "\" of a dtype that the format has, got ", c10::toString(form.scalar_type()));
  return {name, std::string(dtype), form.sizes().vec(), 0, 0};
}

WrittenFile write_file(const std::filesystem::path& path, const std::vector<Source>& sources,
                       const std::map<std::string, std::string>& metadata) {
  const torch::NoGradGuard no_grad;
  std::map<std::string_view, const Source*> by_name;
  std::vector<SafetensorsEntry> entries;
  for (const Source& source : sources) {
    entries.push_back(describe(source));
    by_name[source.name] = &source;
  }
  const std::string header = format_safetensors_header(entries, metadata);

  AtomicFile file(path);
  Hasher hasher;
  const BytesFunction write = [&](const char* data, size_t size_bytes) {
    file.write(data, size_bytes);
    hasher.update(data, size_bytes);
  };
  write(header.data(), header.size());
  for (const SafetensorsEntry& entry : entries) by_name.at(entry.name)->visit(write);
  file.commit();
  return {file.size_bytes(), hasher.hex()};
}

}  // namespace

void require_storable(const NamedTensors& tensors) {
  for (const auto& [name, tensor] : tensors)
    if (tensor.defined()) describe({name, tensor, {}});
}

WrittenFile write_safetensors(const std::filesystem::path& path, const NamedTensors& tensors,
                              const std::map<std::string, std::string>& metadata) {
  std::vector<Source> sources;
  for (const auto& [name, tensor] : tensors) {
    const bool has_data = tensor.defined() && !tensor.is_meta();
    sources.push_back({name, has_data ? tensor : at::Tensor(),
                       [&tensor = tensor](const auto& sink) { visit_bytes(tensor, sink); }});
  }
  return write_file(path, sources, metadata);
}

WrittenFile write_stored(const std::filesystem::path& path, const StoredTensors& tensors,
                         const std::map<std::string, std::string>& metadata) {
  std::vector<Source> sources;
  for (const StoredTensor& stored : tensors) {
    sources.push_back({stored.name, stored.form, [&stored](const auto& sink) {
                         const int64_t numel = stored.form.numel();
                         const int64_t chunk = kChunkBytes / stored.form.element_size();
                         for (int64_t begin = 0; begin < numel; begin += chunk)
                           visit_bytes(stored.read(begin, std::min(begin + chunk, numel)), sink);
                       }});
  }
  return write_file(path, sources, metadata);
}

SafetensorsFile::SafetensorsFile(const std::filesystem::path& path)
    : source_(path.string()),
      file_(path),
      header_(parse_safetensors_header(file_.bytes(), source_)) {
  for (size_t i = 0; i < header_.tensors.size(); ++i) index_[header_.tensors[i].name] = i;
}

const SafetensorsEntry& SafetensorsFile::entry(const std::string& name) const {
  const auto found = index_.find(name);
  if (found == index_.end()) {
    std::vector<std::string> names;
    for (const SafetensorsEntry& tensor : header_.tensors) names.push_back(tensor.name);
    const std::string close = nearest(name, names);
    throw UserError(str("[safetensors] ", source_, ": expected one of its ", names.size(),
                        " tensors, got the name \"", name, "\"",
                        close.empty() ? "" : str(" (nearest: \"", close, "\")")),
                    name);
  }
  return header_.tensors[found->second];
}

at::Tensor SafetensorsFile::elements(const std::string& name, int64_t begin, int64_t end) const {
  const SafetensorsEntry& wanted = entry(name);
  const uint64_t element_bytes = safetensors_dtype_bytes(wanted.dtype);
  const auto numel = static_cast<int64_t>((wanted.end - wanted.begin) / element_bytes);
  require_tensor(name, 0 <= begin && begin <= end && end <= numel, "[safetensors] ", source_,
                 ": expected a range of the ", numel, " elements of tensor \"", name, "\", got ",
                 begin, " to ", end);
  const at::Tensor copy = at::empty({end - begin}, torch_dtype(wanted.dtype));
  const uint64_t offset = header_.data_offset + wanted.begin;
  if (begin < end) {
    file_.check_size();
    std::memcpy(copy.mutable_data_ptr(), file_.data() + offset + begin * element_bytes,
                copy.nbytes());
    file_.release_before(offset + end * element_bytes);  // resident memory holds it once
  }
  return copy;
}

at::Tensor SafetensorsFile::tensor(const std::string& name) const {
  const SafetensorsEntry& wanted = entry(name);
  const auto numel = (wanted.end - wanted.begin) / safetensors_dtype_bytes(wanted.dtype);
  return elements(name, 0, static_cast<int64_t>(numel)).view(wanted.shape);
}

void SafetensorsFile::copy_to(const std::string& name, at::Tensor destination) const {
  const torch::NoGradGuard no_grad;
  require_tensor(name, destination.sizes() == at::IntArrayRef(entry(name).shape), "[safetensors] ",
                 source_, ": expected tensor \"", name, "\" of shape ", destination.sizes(),
                 ", got ", at::IntArrayRef(entry(name).shape));
  destination.copy_(tensor(name));
}

NamedTensors SafetensorsFile::tensors() const {
  NamedTensors all;
  for (const SafetensorsEntry& one : header_.tensors) all.emplace_back(one.name, tensor(one.name));
  return all;
}

}  // namespace flashstep
