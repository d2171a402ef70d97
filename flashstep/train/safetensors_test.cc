#include <algorithm>
#include <fstream>
#include <unistd.h>

#include <gtest/gtest.h>
#include <torch/types.h>

#include "flashstep/base/hash.h"
#include "flashstep/checkpoint.h"
#include "flashstep/error.h"
#include "flashstep/train/stored_checkpoint.h"

namespace flashstep {
namespace {

namespace fs = std::filesystem;

class SafetensorsTest : public ::testing::Test {
 protected:
  SafetensorsTest()
      : directory_(fs::path(::testing::TempDir()) / str("safetensors_test_", ::getpid())) {
    fs::create_directories(directory_);
  }
  ~SafetensorsTest() override { fs::remove_all(directory_); }

  // What a file holds after `tensor` was written to it.
  at::Tensor round_trip(const at::Tensor& tensor) {
    const fs::path path = directory_ / "x.safetensors";
    const WrittenFile written = write_safetensors(path, {{"x", tensor}});
    EXPECT_EQ(written.size_bytes, fs::file_size(path));
    EXPECT_EQ(written.hash, hash_file(path));
    return SafetensorsFile(path).tensor("x");
  }

  fs::path directory_;
};

bool same_bytes(const at::Tensor& a, const at::Tensor& b) {
  const size_t size_bytes = static_cast<size_t>(a.numel() * a.element_size());
  return a.scalar_type() == b.scalar_type() && a.sizes() == b.sizes() &&
         (size_bytes == 0 || std::memcmp(a.const_data_ptr(), b.const_data_ptr(), size_bytes) == 0);
}

TEST_F(SafetensorsTest, EveryDtypeAndShapeComesBackBitForBit) {
  const at::Tensor bytes = torch::randint(0, 256, {2 * 3 * 8}, torch::kUInt8);
  for (const at::ScalarType dtype :
       {at::kDouble, at::kFloat, at::kHalf, at::kBFloat16, at::kLong, at::kInt, at::kShort,
        at::kChar, at::kUInt64, at::kUInt32, at::kUInt16, at::kByte, at::kComplexFloat,
        at::kFloat8_e4m3fn, at::kFloat8_e5m2, at::kFloat8_e8m0fnu, at::kFloat8_e4m3fnuz,
        at::kFloat8_e5m2fnuz}) {
    const at::Tensor values = bytes.view(dtype).view({2, -1});  // NaNs and denormals among them
    EXPECT_TRUE(same_bytes(round_trip(values), values)) << dtype;
    EXPECT_TRUE(same_bytes(round_trip(values.select(0, 0).select(0, 0)), values[0][0])) << dtype;
  }
  EXPECT_TRUE(torch::equal(round_trip(torch::tensor({true, false})), torch::tensor({true, false})));
  for (const std::vector<int64_t>& shape : {std::vector<int64_t>{0}, {3, 0, 2}, {1}, {1, 1, 1}}) {
    EXPECT_EQ(round_trip(torch::zeros(shape)).sizes(), at::IntArrayRef(shape));
  }
}

TEST_F(SafetensorsTest, StridesAndLazyConjugatesAreWrittenAsTheirValues) {
  const at::Tensor matrix = torch::randn({5, 7, 3});
  EXPECT_TRUE(torch::equal(round_trip(matrix.transpose(0, 2)), matrix.transpose(0, 2)));
  EXPECT_TRUE(torch::equal(round_trip(matrix.slice(1, 1, 7, 2)), matrix.slice(1, 1, 7, 2)));
  EXPECT_TRUE(torch::equal(round_trip(torch::ones({1}).expand({4})), torch::ones({4})));
  const at::Tensor complex = torch::randn({4}, torch::kComplexFloat);
  EXPECT_TRUE(torch::equal(round_trip(complex.conj()), complex.conj()));
  const at::Tensor parameter = torch::randn({3}).requires_grad_();
  EXPECT_TRUE(torch::equal(round_trip(parameter), parameter));
}

// Larger than a chunk (16 MiB): many rows, few long rows, and one dimension, none of them
// contiguous.
TEST_F(SafetensorsTest, LargeStridedTensorsAreCopiedPieceByPiece) {
  const at::Tensor values = torch::arange(3 * 5'000'003, torch::kFloat);
  const at::Tensor rows = values.view({3, 5'000'003});
  EXPECT_TRUE(torch::equal(round_trip(rows.transpose(0, 1)), rows.transpose(0, 1)));
  EXPECT_TRUE(torch::equal(round_trip(rows.slice(1, 0, 5'000'002)), rows.slice(1, 0, 5'000'002)));
  EXPECT_TRUE(torch::equal(round_trip(values.slice(0, 0, -1, 2)), values.slice(0, 0, -1, 2)));
}

TEST_F(SafetensorsTest, CopiesAreAlignedAndOutliveTheFile) {
  const fs::path path = directory_ / "x.safetensors";
  write_safetensors(
      path, {{"odd", torch::ones({3}, torch::kUInt8)}, {"d", torch::ones({2}, torch::kDouble)}});
  NamedTensors tensors = SafetensorsFile(path).tensors();
  fs::remove(path);
  ASSERT_EQ(tensors.size(), 2u);
  for (auto& [name, tensor] : tensors) {
    EXPECT_EQ(reinterpret_cast<uintptr_t>(tensor.data_ptr()) % 64, 0u) << name;
    tensor.add_(1);
    EXPECT_EQ(tensor.sum().item<int64_t>(), 2 * tensor.numel());
  }
}

TEST_F(SafetensorsTest, StoredTensorsAreWrittenPieceByPiece) {
  torch::manual_seed(7);
  const NamedTensors tensors = {{"large", torch::randn({3000, 3001})},
                                {"scalar", torch::randn({})},
                                {"none", torch::empty({0, 4})},
                                {"counts", torch::arange(5)}};
  const auto digest = [&](const StoredTensors& stored) {
    return write_stored(directory_ / "stored", stored, {{"format", "pt"}}).hash;
  };
  int64_t most = 0;  // bytes that are read at a time
  StoredTensors stored = in_memory(tensors);
  for (StoredTensor& tensor : stored) {
    tensor.read = [&most, read = tensor.read](int64_t begin, int64_t end) {
      const at::Tensor part = read(begin, end);
      most = std::max(most, static_cast<int64_t>(part.nbytes()));
      return part;
    };
  }
  const fs::path whole = directory_ / "whole";
  EXPECT_EQ(digest(stored), write_safetensors(whole, tensors, {{"format", "pt"}}).hash);
  EXPECT_EQ(most, 16 << 20);
  NamedTensors narrow = tensors;
  for (size_t i = 0; i < narrow.size(); ++i) {
    narrow[i].second = narrow[i].second.to(torch::kHalf);
    stored[i] = stored[i].to(torch::kHalf);
  }
  EXPECT_EQ(digest(stored), write_safetensors(whole, narrow, {{"format", "pt"}}).hash);
  EXPECT_EQ(most, 32 << 20) << "8 Mi elements";
}

TEST_F(SafetensorsTest, CopyToConvertsAndChecksTheShape) {
  const fs::path path = directory_ / "x.safetensors";
  write_safetensors(path, {{"x", torch::arange(6, torch::kFloat).view({2, 3})}},
                    {{"key", "value"}});
  const SafetensorsFile file(path);
  EXPECT_EQ(file.header().metadata.at("key"), "value");
  const at::Tensor destination = torch::zeros({3, 2}, torch::kDouble).t().requires_grad_();
  file.copy_to("x", destination);
  EXPECT_TRUE(torch::equal(destination, torch::arange(6, torch::kDouble).view({2, 3})));
  EXPECT_THROW(file.copy_to("x", torch::zeros({3, 2})), UserError);
  EXPECT_THROW(file.tensor("y"), UserError);
}

TEST_F(SafetensorsTest, RefusesWhatItCannotWriteAndLeavesNothing) {
  const fs::path path = directory_ / "x.safetensors";
  const at::Tensor one = torch::ones({1});
  EXPECT_THROW(write_safetensors(path, {{"a", one}, {"a", one}}), UserError);
  EXPECT_THROW(write_safetensors(path, {{"a", at::Tensor()}}), UserError);
  EXPECT_THROW(write_safetensors(path, {{"a", one.to_sparse()}}), UserError);
  EXPECT_THROW(write_safetensors(path, {{"a", one.to(at::kMeta)}}), UserError);
  EXPECT_THROW(write_safetensors(path, {{"a", one.to(torch::kComplexDouble)}}), UserError);
  EXPECT_THROW(write_safetensors(directory_ / "missing" / "x", {{"a", one}}), MachineError);
  EXPECT_TRUE(fs::is_empty(directory_));
}

TEST_F(SafetensorsTest, MissingAndShortFilesAreNamed) {
  EXPECT_THROW(SafetensorsFile(directory_ / "missing"), UserError);
  EXPECT_THROW(SafetensorsFile{directory_}, UserError);
  const fs::path path = directory_ / "empty";
  std::ofstream(path).close();
  try {
    SafetensorsFile file(path);
    FAIL();
  } catch (const UserError& error) {
    EXPECT_NE(std::string(error.what()).find(path.string()), std::string::npos) << error.what();
  }
}

}  // namespace
}  // namespace flashstep
