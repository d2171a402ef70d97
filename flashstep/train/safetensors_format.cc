#include "flashstep/detail/safetensors_format.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <limits>
#include <set>

#include <nlohmann/json.hpp>

#include "flashstep/base/text.h"
#include "flashstep/error.h"

namespace flashstep {
namespace {

using Json = nlohmann::json;

constexpr std::string_view kMetadataKey = "__metadata__";
constexpr uint64_t kLengthBytes = 8;
constexpr uint64_t kDataAlignment = 64;  // a cache line, and the widest vector register

struct DtypeSize {
  std::string_view name;
  uint64_t bytes;
};
// The format's list (safetensors 0.8) without the types of less than a byte.
constexpr std::array<DtypeSize, 19> kDtypeSizes = {{
    {"BOOL", 1},    {"U8", 1},  {"I8", 1},          {"F8_E5M2", 1},     {"F8_E4M3", 1},
    {"F8_E8M0", 1}, {"U16", 2}, {"I16", 2},         {"F16", 2},         {"BF16", 2},
    {"U32", 4},     {"I32", 4}, {"F32", 4},         {"U64", 8},         {"I64", 8},
    {"F64", 8},     {"C64", 8}, {"F8_E4M3FNUZ", 1}, {"F8_E5M2FNUZ", 1},
}};

// Reads the header as the events of a JSON parser, so that nothing that does not belong there
// (nesting, other types, a name given twice) is ever stored.
class HeaderReader : public nlohmann::json_sax<Json> {
 public:
  HeaderReader(const std::string& source, SafetensorsHeader& header)
      : source_(source), header_(header) {}

  bool start_object(size_t) override {
    if (place_ == Place::kStart) {
      place_ = Place::kTop;
    } else if (place_ == Place::kTop) {
      place_ = name_ == kMetadataKey ? Place::kMetadata : Place::kTensor;
      if (place_ == Place::kTensor) header_.tensors.push_back({name_, "", {}, 0, 0});
      has_dtype_ = has_shape_ = has_offsets_ = false;
    } else {
      refuse("an object");
    }
    return true;
  }
  bool end_object() override {
    if (place_ == Place::kTensor && !(has_dtype_ && has_shape_ && has_offsets_)) {
      fail("expected tensor ", quoted(name_), " to have dtype, shape and data_offsets");
    }
    place_ = place_ == Place::kTop ? Place::kEnd : Place::kTop;
    return true;
  }
  bool key(std::string& text) override {
    if (place_ == Place::kTop) {
      if (!names_.insert(text).second)
        fail("expected every name once, got ", quoted(text), " twice");
      name_ = text;
    } else {
      field_ = text;
    }
    return true;
  }
  bool string(std::string& text) override {
    if (place_ == Place::kMetadata) {
      if (!header_.metadata.emplace(field_, text).second) {
        fail("expected every key of __metadata__ once, got ", quoted(field_), " twice");
      }
    } else if (place_ == Place::kTensor && field_ == "dtype") {
      once(has_dtype_);
      if (safetensors_dtype_bytes(text) == 0) {
        fail("expected a known dtype for tensor ", quoted(name_), ", got ", quoted(text));
      }
      header_.tensors.back().dtype = text;
    } else {
      refuse("text");
    }
    return true;
  }
  bool start_array(size_t) override {
    if (place_ != Place::kTensor) refuse("an array");
    if (field_ == "shape") {
      once(has_shape_);
      place_ = Place::kShape;
    } else if (field_ == "data_offsets") {
      once(has_offsets_);
      place_ = Place::kOffsets;
      num_offsets_ = 0;
    } else {
      refuse("an array");
    }
    return true;
  }
  bool end_array() override {
    if (place_ == Place::kOffsets && num_offsets_ != 2) refuse("fewer than two numbers");
    place_ = Place::kTensor;
    return true;
  }
  bool number_unsigned(uint64_t value) override {
    if (place_ == Place::kShape) {
      if (value > static_cast<uint64_t>(std::numeric_limits<int64_t>::max())) refuse(value);
      header_.tensors.back().shape.push_back(static_cast<int64_t>(value));
    } else if (place_ == Place::kOffsets && num_offsets_ < 2) {
      (num_offsets_++ == 0 ? header_.tensors.back().begin : header_.tensors.back().end) = value;
    } else {
      refuse(value);
    }
    return true;
  }
  bool number_integer(int64_t value) override { return refuse(value); }
  bool number_float(double, const std::string& text) override { return refuse(text); }
  bool null() override { return refuse("null"); }
  bool boolean(bool) override { return refuse("a truth value"); }
  bool binary(binary_t&) override { return refuse("binary data"); }
  bool parse_error(size_t position, const std::string&,
                   const nlohmann::detail::exception&) override {
    fail("expected a header of well-formed JSON, got an error at its byte ", position);
  }

 private:
  enum class Place { kStart, kTop, kMetadata, kTensor, kShape, kOffsets, kEnd };

  static std::string quoted(const std::string& text) {
    return str('"', printable_utf8(text.substr(0, 100)), '"');
  }
  template <typename... Parts>
  [[noreturn]] void fail(const Parts&... parts) const {
    throw UserError(str("[safetensors] ", source_, ": ", parts...));
  }
  template <typename Got>
  bool refuse(const Got& got) const {
    switch (place_) {
      case Place::kStart:
      case Place::kEnd:
        fail("expected a header that is an object, got ", got);
      case Place::kTop:
        fail("expected an object for tensor ", quoted(name_), ", got ", got);
      case Place::kMetadata:
        fail("expected text for ", quoted(field_), " in __metadata__, got ", got);
      case Place::kTensor:
        fail("expected dtype (text), shape and data_offsets (arrays) for tensor ", quoted(name_),
             ", got ", got, " for ", quoted(field_));
      case Place::kShape:
        fail("expected sizes of at least 0 in the shape of tensor ", quoted(name_), ", got ", got);
      case Place::kOffsets:
        fail("expected two numbers of at least 0 as data_offsets of tensor ", quoted(name_),
             ", got ", got);
    }
    return false;
  }
  void once(bool& seen) const {
    if (seen) fail("expected ", field_, " once for tensor ", quoted(name_), ", got it twice");
    seen = true;
  }

  const std::string& source_;
  SafetensorsHeader& header_;
  Place place_ = Place::kStart;
  std::set<std::string> names_;
  std::string name_, field_;
  bool has_dtype_ = false, has_shape_ = false, has_offsets_ = false;
  int num_offsets_ = 0;
};

// The tensor's size in bytes. A size of 0 counts as 1 in the check: strides are products of the
// other sizes.
bool size_in_bytes(const SafetensorsEntry& tensor, uint64_t* size_bytes) {
  int64_t bound = static_cast<int64_t>(safetensors_dtype_bytes(tensor.dtype));
  *size_bytes = static_cast<uint64_t>(bound);
  for (const int64_t size : tensor.shape) {
    if (__builtin_mul_overflow(bound, std::max<int64_t>(size, 1), &bound)) return false;
    *size_bytes *= static_cast<uint64_t>(size);
  }
  return true;
}

// Every byte of the data must belong to exactly one tensor, of the size that its shape says.
void check_places(std::vector<SafetensorsEntry>& tensors, uint64_t data_bytes,
                  const std::string& source) {
  std::stable_sort(tensors.begin(), tensors.end(), [](const auto& a, const auto& b) {
    return a.begin != b.begin ? a.begin < b.begin : a.end < b.end;
  });
  uint64_t expected_begin = 0;
  for (const SafetensorsEntry& tensor : tensors) {
    const std::string name = printable_utf8(tensor.name.substr(0, 100));
    require(tensor.begin == expected_begin, "[safetensors] ", source, ": expected tensor \"", name,
            "\" to begin at byte ", expected_begin, " of the data, got ", tensor.begin,
            tensor.begin < expected_begin ? " (tensors overlap)" : " (a hole between tensors)");
    uint64_t size_bytes = 0;
    require(size_in_bytes(tensor, &size_bytes), "[safetensors] ", source,
            ": expected the size of tensor \"", name, "\" to fit 63 bits, got a larger shape");
    require(tensor.end >= tensor.begin && tensor.end - tensor.begin == size_bytes, "[safetensors] ",
            source, ": expected ", size_bytes, " bytes for tensor \"", name,
            "\" by its shape and dtype, got data_offsets [", tensor.begin, ", ", tensor.end, "]");
    require(tensor.end <= data_bytes, "[safetensors] ", source, ": expected tensor \"", name,
            "\" within the file's ", data_bytes, " bytes of data, got its end at ", tensor.end);
    expected_begin = tensor.end;
  }
  require(expected_begin == data_bytes, "[safetensors] ", source, ": expected ", expected_begin,
          " bytes of data by the header, got ", data_bytes);
}

}  // namespace

uint64_t safetensors_dtype_bytes(std::string_view dtype) {
  for (const DtypeSize& known : kDtypeSizes) {
    if (known.name == dtype) return known.bytes;
  }
  return 0;
}

SafetensorsHeader parse_safetensors_header(std::string_view file, const std::string& source) {
  require(file.size() >= kLengthBytes, "[safetensors] ", source, ": expected at least ",
          kLengthBytes, " bytes, got ", file.size());
  uint64_t header_bytes = 0;
  for (uint64_t i = 0; i < kLengthBytes; ++i) {
    header_bytes |= static_cast<uint64_t>(static_cast<unsigned char>(file[i])) << (8 * i);
  }
  require(header_bytes <= kSafetensorsMaxHeaderBytes, "[safetensors] ", source,
          ": expected a header of at most ", kSafetensorsMaxHeaderBytes, " bytes, got a length of ",
          header_bytes);
  require(header_bytes <= file.size() - kLengthBytes, "[safetensors] ", source,
          ": expected a header of ", header_bytes, " bytes, got a file of ", file.size());
  const std::string_view json = file.substr(kLengthBytes, header_bytes);
  require(!json.empty() && json.front() == '{', "[safetensors] ", source,
          ": expected a header that begins with '{', got another byte");

  SafetensorsHeader header;
  header.data_offset = kLengthBytes + header_bytes;
  HeaderReader reader(source, header);
  Json::sax_parse(json.begin(), json.end(), &reader);
  check_places(header.tensors, file.size() - header.data_offset, source);
  return header;
}

std::string format_safetensors_header(std::vector<SafetensorsEntry>& tensors,
                                      const std::map<std::string, std::string>& metadata) {
  std::stable_sort(tensors.begin(), tensors.end(), [](const auto& a, const auto& b) {
    return safetensors_dtype_bytes(a.dtype) > safetensors_dtype_bytes(b.dtype);
  });
  auto header = nlohmann::ordered_json::object();
  if (!metadata.empty()) header[std::string(kMetadataKey)] = metadata;
  std::set<std::string> names = {std::string(kMetadataKey)};
  uint64_t offset = 0;
  for (SafetensorsEntry& tensor : tensors) {
    require(names.insert(tensor.name).second,
            "[safetensors] expected every tensor's name once and none "
            "to be __metadata__, got \"",
            tensor.name, "\"");
    uint64_t size_bytes = 0;
    require(safetensors_dtype_bytes(tensor.dtype) != 0 && size_in_bytes(tensor, &size_bytes),
            "[safetensors] expected a known dtype and a possible shape for tensor \"", tensor.name,
            "\", got dtype ", tensor.dtype);
    tensor.begin = offset;
    tensor.end = offset += size_bytes;
    header.push_back({tensor.name,
                      {{"dtype", tensor.dtype},
                       {"shape", tensor.shape},
                       {"data_offsets", {tensor.begin, tensor.end}}}});
  }

  std::string json;
  try {
    json = header.dump();
  } catch (const Json::exception&) {  // text that is not UTF-8
    throw UserError("[safetensors] expected names and metadata in UTF-8, got other bytes");
  }
  const uint64_t unpadded = kLengthBytes + json.size();
  json.append((kDataAlignment - unpadded % kDataAlignment) % kDataAlignment, ' ');
  require(json.size() <= kSafetensorsMaxHeaderBytes, "[safetensors] expected a header of at most ",
          kSafetensorsMaxHeaderBytes, " bytes, got ", json.size());
  std::string bytes(kLengthBytes, '\0');
  for (uint64_t i = 0; i < kLengthBytes; ++i) {
    bytes[i] = static_cast<char>(json.size() >> (8 * i) & 0xff);
  }
  return bytes + json;
}

}  // namespace flashstep
