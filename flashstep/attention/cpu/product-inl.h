// Matrix products of tiles: the register-tiled block in float32, and the loops over blocks, which
// leave out what the mask hides. Included once per instruction set.
#if defined(FLASHSTEP_ATTENTION_PRODUCT_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef FLASHSTEP_ATTENTION_PRODUCT_INL_H_
#undef FLASHSTEP_ATTENTION_PRODUCT_INL_H_
#else
#define FLASHSTEP_ATTENTION_PRODUCT_INL_H_
#endif

#include "flashstep/attention/cpu/element-inl.h"
#include "flashstep/attention/cpu/product.h"
#include "flashstep/attention/cpu/tile.h"

HWY_BEFORE_NAMESPACE();
namespace flashstep::attention_cpu {
namespace HWY_NAMESPACE {
namespace {

// Two vectors a row: 24 accumulators of 32 registers, or 12 of 16, beside the two vectors of the
// right operand and a broadcast element.
constexpr int kBlockRows = HWY_CAP_GE512 ? 12 : 6;
// Rows of a tile are padded to this: a tile ends with a block of two thirds or one third.
constexpr int kRowUnit = kBlockRows / 3;
constexpr int kPanelVectors = 2;
constexpr int kPanel = kPanelVectors * kLanes;

template <int kRows, int kVectors, Side kSide>
HWY_NOINLINE void fp32_block(const Block<float>& b) {
  constexpr int kRowStep = kSide == Side::kPlain ? kStride : 1;
  constexpr int kDepthStep = kSide == Side::kPlain ? 1 : kStride;
  const Floats d;
  FloatVector sums[kRows][kVectors];
  float* const first_out = b.out;  // beside b, whose fields the stores might change
  const int64_t out_stride = b.out_stride;
  HWY_UNROLL(16)
  for (int r = 0; r < kRows; ++r) {
    HWY_UNROLL(2)
    for (int v = 0; v < kVectors; ++v) {
      sums[r][v] = hn::Zero(d);
    }
  }
  const float* HWY_RESTRICT left = b.left;
  const float* HWY_RESTRICT right = b.right;
  for (int64_t k = 0; k < b.depth; ++k, left += kDepthStep, right += kPanel) {
    FloatVector columns[kVectors];
    HWY_UNROLL(2)
    for (int v = 0; v < kVectors; ++v) columns[v] = hn::LoadU(d, right + v * kLanes);
    HWY_UNROLL(16)
    for (int r = 0; r < kRows; ++r) {
      const auto element = hn::Set(d, left[r * kRowStep]);
      HWY_UNROLL(2)
      for (int v = 0; v < kVectors; ++v) {
        sums[r][v] = hn::MulAdd(element, columns[v], sums[r][v]);
      }
    }
  }
  HWY_UNROLL(16)
  for (int r = 0; r < kRows; ++r) {
    HWY_UNROLL(2)
    for (int v = 0; v < kVectors; ++v) {
      // What `out` holds is added last: small partial sums lose less to rounding.
      float* out = first_out + r * out_stride + v * kLanes;
      if (b.update == Update::kAdd) {
        sums[r][v] = hn::Add(hn::LoadU(d, out), sums[r][v]);
      } else if (b.update == Update::kScaleAndAdd) {
        sums[r][v] = hn::MulAdd(hn::Set(d, b.factor[r]), hn::LoadU(d, out), sums[r][v]);
      }
      hn::StoreU(sums[r][v], d, out);
    }
  }
}

// What the mask leaves out of a product.
enum class Hidden {
  kOutputs,         // rows are queries, columns keys: blocks that no row sees are left as they are
  kDepthOfKeys,     // rows are queries, depth runs over keys
  kDepthOfQueries,  // rows are keys, depth runs over queries
};

template <typename Word>
struct Product {
  const Word* left;
  const Word* right;
  int64_t panel_stride;  // words
  float* out;
  int64_t out_stride;
  int rows, columns, depth;  // elements; left and out have rows up to the next multiple of kRowUnit
  Visible visible = kAllVisible;
  Update update = Update::kStore;
  const float* factor = nullptr;
};

template <typename Dot, int kVectors, Side kSide>
HWY_INLINE int run_block(const Block<typename Dot::Word>& block, int rows) {
  if (rows > 2 * kRowUnit) {
    Dot::template block<kBlockRows, kVectors, kSide>(block);
    return kBlockRows;
  }
  if (rows > kRowUnit) {
    Dot::template block<2 * kRowUnit, kVectors, kSide>(block);
    return 2 * kRowUnit;
  }
  Dot::template block<kRowUnit, kVectors, kSide>(block);
  return kRowUnit;
}

// A panel is outermost: it stays in the first-level cache while the left operand streams by.
template <typename Dot, Side kSide, Hidden kHidden>
HWY_INLINE void multiply(const Product<typename Dot::Word>& p) {
  using Word = typename Dot::Word;
  constexpr int64_t kLeftStride = kSide == Side::kPlain ? kStride : 1;
  constexpr int64_t kLeftDepthStep = kSide == Side::kPlain ? 1 : kStride;
  for (int column = 0; column < p.columns; column += kPanel) {
    const int vectors = p.columns - column > kLanes ? 2 : 1;
    const Word* panel = p.right + column / kPanel * p.panel_stride;
    int step = 0;
    for (int row = 0; row < p.rows; row += step) {
      step = std::min(kBlockRows, p.rows - row);
      int64_t begin = 0, end = p.depth;
      const int last = row + step - 1;
      if (kHidden == Hidden::kOutputs &&
          (column >= last + p.visible.end || column + kPanel <= row + p.visible.begin))
        continue;
      if (kHidden == Hidden::kDepthOfKeys) {
        begin = std::max<int64_t>(0, row + p.visible.begin);
        end = std::min<int64_t>(end, last + p.visible.end);
      }
      if (kHidden == Hidden::kDepthOfQueries) {
        begin = std::max<int64_t>(0, row - p.visible.end + 1);
        end = std::min<int64_t>(end, last - p.visible.begin + 1);
      }
      begin /= Dot::kPerWord;
      end = ceil_div(end, Dot::kPerWord);
      if (end <= begin) continue;
      const Block<Word> block = {p.left + row * kLeftStride + begin * kLeftDepthStep,
                                 panel + begin * kPanel,
                                 end - begin,
                                 p.out + row * p.out_stride + column,
                                 p.out_stride,
                                 p.update,
                                 p.factor == nullptr ? nullptr : p.factor + row};
      step = vectors == 2 ? run_block<Dot, 2, kSide>(block, step)
                          : run_block<Dot, 1, kSide>(block, step);
    }
  }
}

}  // namespace
}  // namespace HWY_NAMESPACE
}  // namespace flashstep::attention_cpu
HWY_AFTER_NAMESPACE();

#endif  // toggled guard
