// Rows of a tensor become operands of products: widened, padded with zeros, without strides.
// Included once per instruction set.
#if defined(FLASHSTEP_ATTENTION_PACK_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef FLASHSTEP_ATTENTION_PACK_INL_H_
#undef FLASHSTEP_ATTENTION_PACK_INL_H_
#else
#define FLASHSTEP_ATTENTION_PACK_INL_H_
#endif

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

// The transpose of kLanes rows of words, kStride apart: out[c * out_stride + r] = in[r][c].
template <typename Word>
HWY_INLINE void transpose_words(const Word* HWY_RESTRICT in, int columns, Word* HWY_RESTRICT out,
                                int64_t out_stride) {
  for (int c = 0; c < columns; ++c) {
    for (int r = 0; r < kLanes; ++r) out[c * out_stride + r] = in[r * kStride + c];
  }
}

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
      for (int c = 0; c < x.width; c += kLanes) {
        store(hn::Mul(load(x.data + r * x.stride + c, x.width - c), factor), out + r * kStride + c);
      }
    }
    zero_rows(x.rows, x.width, out);
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

  // Right operand of depth x.width; panels run over the rows. `room` holds kLanes rows of a tile.
  template <typename T>
  static HWY_INLINE void pack_transposed(const Rows<T>& x, int64_t panel_stride, float* room,
                                         float* out) {
    for (int row = 0; row < x.rows; row += kLanes) {
      const int rows = std::min(kLanes, x.rows - row);
      for (int r = 0; r < kLanes; ++r) {
        for (int c = 0; c < x.width; c += kLanes) {
          const T* from = x.data + (row + r) * x.stride + c;
          store(r < rows ? load(from, x.width - c) : hn::Zero(Floats()), room + r * kStride + c);
        }
      }
      transpose_words(room, x.width, out + row / kPanel * panel_stride + row % kPanel, kPanel);
    }
  }

  // Scores as a left operand, plain or transposed: float32 needs nothing.
  static HWY_INLINE const float* round_left(const float* scores, int /*rows*/, int /*columns*/,
                                            float* /*room*/) {
    return scores;
  }
  static HWY_INLINE const float* round_transposed(const float* scores, int /*rows*/,
                                                  int /*columns*/, float* /*room*/) {
    return scores;
  }

 private:
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
