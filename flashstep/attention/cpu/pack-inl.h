// Rows of a tensor become operands of products: widened, padded with zeros, without strides. Zeros
// also fill the width, where products run over it, to a multiple of kDepthUnit words.
// Included once per instruction set.
#if defined(FLASHSTEP_ATTENTION_PACK_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef FLASHSTEP_ATTENTION_PACK_INL_H_
#undef FLASHSTEP_ATTENTION_PACK_INL_H_
#else
#define FLASHSTEP_ATTENTION_PACK_INL_H_
#endif

#include <type_traits>

#include "flashstep/attention/cpu/product-inl.h"

HWY_BEFORE_NAMESPACE();
namespace flashstep::attention_cpu {
namespace HWY_NAMESPACE {
namespace {

// (rows, width) elements, rows `stride` apart.
template <typename T>
struct Rows {
  const T* data;
  int64_t stride;
  int rows, width;
};

template <typename T, typename Strided>
HWY_INLINE Rows<T> rows_of(const Strided& x, int64_t batch, int64_t head, int64_t row, int rows,
                           int width) {
  const auto& s = x.strides;
  return {static_cast<const T*>(x.data) + batch * s.batch + head * s.head + row * s.row, s.row,
          rows, width};
}

#if HWY_TARGET == HWY_SCALAR

template <typename Word>
HWY_INLINE void transpose_words(const Word* in, int64_t /*in_stride*/, int columns, Word* out) {
  for (int c = 0; c < columns; ++c) out[c * kPanel] = in[c];
}

#else

// Four words of each row 0, 4, 8, ..., in blocks of 128 bits.
template <class D>
HWY_INLINE hn::Vec<D> load_blocks(D d, const hn::TFromD<D>* in, int64_t in_stride) {
  if constexpr (hn::MaxLanes(D()) <= 4) {
    return hn::LoadU(d, in);
  } else {
    const hn::Half<D> half;
    const int64_t upper = static_cast<int64_t>(hn::MaxLanes(half)) * in_stride;
    return hn::Combine(d, load_blocks(half, in + upper, in_stride),
                       load_blocks(half, in, in_stride));
  }
}

// The transpose of kLanes rows of words into a panel: out[c * kPanel + r] = in[r * in_stride + c].
// `columns` is a multiple of kDepthUnit.
template <typename Word>
HWY_INLINE void transpose_words(const Word* in, int64_t in_stride, int columns, Word* out) {
  const hn::Rebind<Word, Floats> d;
  static_assert(kDepthUnit == 4);
  for (int c = 0; c < columns; c += 4, in += 4, out += 4 * kPanel) {
    const auto row0 = load_blocks(d, in, in_stride);
    const auto row1 = load_blocks(d, in + in_stride, in_stride);
    const auto row2 = load_blocks(d, in + 2 * in_stride, in_stride);
    const auto row3 = load_blocks(d, in + 3 * in_stride, in_stride);
    const auto even01 = hn::InterleaveLower(d, row0, row2);
    const auto odd01 = hn::InterleaveLower(d, row1, row3);
    const auto even23 = hn::InterleaveUpper(d, row0, row2);
    const auto odd23 = hn::InterleaveUpper(d, row1, row3);
    hn::StoreU(hn::InterleaveLower(d, even01, odd01), d, out);
    hn::StoreU(hn::InterleaveUpper(d, even01, odd01), d, out + kPanel);
    hn::StoreU(hn::InterleaveLower(d, even23, odd23), d, out + 2 * kPanel);
    hn::StoreU(hn::InterleaveUpper(d, even23, odd23), d, out + 3 * kPanel);
  }
}

#endif  // HWY_TARGET == HWY_SCALAR

// Operands in float32, whatever the stored type.
struct Fp32 {
  using Word = float;
  static constexpr int kPerWord = 1;

  template <int kRows, int kVectors, Side kSide>
  static HWY_INLINE void block(const Block<float>& b) {
    fp32_block<kRows, kVectors, kSide>(b);
  }

  // Left operand: rows as they are, times `sign`.
  template <typename T>
  static HWY_INLINE void pack_left(const Rows<T>& x, float sign, float* out) {
    const auto factor = hn::Set(Floats(), sign);
    for (int r = 0; r < x.rows; ++r) {
      for (int c = 0; c < depth_of(x); c += kLanes) {
        store(hn::Mul(load(x.data + r * x.stride + c, x.width - c), factor), out + r * kStride + c);
      }
    }
    zero_rows(x.rows, depth_of(x), out);
  }

  // Right operand of depth x.rows; panels run over the width.
  template <typename T>
  static HWY_INLINE void pack_right(const Rows<T>& x, float sign, int64_t panel_stride,
                                    float* out) {
    const auto factor = hn::Set(Floats(), sign);
    for (int c = 0; c < x.width; c += kPanel, out += panel_stride) {
      const int vectors = x.width - c > kLanes ? 2 : 1;
      for (int r = 0; r < x.rows; ++r) {
        for (int v = 0; v < vectors; ++v) {
          const int at = c + v * kLanes;
          store(hn::Mul(load(x.data + r * x.stride + at, x.width - at), factor),
                out + r * kPanel + v * kLanes);
        }
      }
    }
  }

  // Right operand of depth x.width; panels run over the rows. `scratch` holds kLanes rows of a
  // tile.
  template <typename T>
  static HWY_INLINE void pack_transposed(const Rows<T>& x, int64_t panel_stride, float* scratch,
                                         float* out) {
    for (int row = 0; row < x.rows; row += kLanes) {
      float* to = out + row / kPanel * panel_stride + row % kPanel;
      const int rows = std::min(kLanes, x.rows - row);
      if constexpr (std::is_same_v<T, float>) {
        if (rows == kLanes && x.width == depth_of(x)) {
          transpose_words(x.data + row * x.stride, x.stride, x.width, to);
          continue;
        }
      }
      for (int r = 0; r < kLanes; ++r) {
        for (int c = 0; c < depth_of(x); c += kLanes) {
          const T* from = x.data + (row + r) * x.stride + c;
          store(r < rows ? load(from, x.width - c) : hn::Zero(Floats()), scratch + r * kStride + c);
        }
      }
      transpose_words(scratch, kStride, depth_of(x), to);
    }
  }

  // Scores as a left operand, plain or transposed: float32 needs nothing.
  static HWY_INLINE const float* round_left(const float* scores, int /*rows*/, int /*columns*/,
                                            float* /*scratch*/) {
    return scores;
  }
  static HWY_INLINE const float* round_transposed(const float* scores, int /*rows*/,
                                                  int /*columns*/, float* /*scratch*/) {
    return scores;
  }

 private:
  template <typename T>
  static HWY_INLINE int depth_of(const Rows<T>& x) {
    return static_cast<int>(round_up(x.width, kDepthUnit));
  }
  static HWY_INLINE void zero_rows(int rows, int width, float* out) {
    for (int64_t r = rows; r < round_up(rows, kRowUnit); ++r) {
      std::memset(out + r * kStride, 0, static_cast<size_t>(width) * sizeof(float));
    }
  }
};

}  // namespace
}  // namespace HWY_NAMESPACE
}  // namespace flashstep::attention_cpu
HWY_AFTER_NAMESPACE();

#endif  // toggled guard
