// Operands as pairs of bfloat16 for the dot products of bf16_dot.h, and the choice of operands.
// Included once per instruction set.
#if defined(FLASHSTEP_ATTENTION_BF16_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef FLASHSTEP_ATTENTION_BF16_INL_H_
#undef FLASHSTEP_ATTENTION_BF16_INL_H_
#else
#define FLASHSTEP_ATTENTION_BF16_INL_H_
#endif

#include "flashstep/attention/cpu/bf16_dot.h"
#include "flashstep/attention/cpu/pack-inl.h"

HWY_BEFORE_NAMESPACE();
namespace flashstep::attention_cpu {
namespace HWY_NAMESPACE {
namespace {

#if HWY_TARGET == HWY_AVX3

// The interface of Fp32 (pack-inl.h) for pairs.
struct Bf16Pairs {
  using Word = uint32_t;
  static constexpr int kPerWord = 2;

  template <int kRows, int kVectors, Side kSide>
  static HWY_INLINE void block(const Block<uint32_t>& b) {
    bf16_block(kRows, kVectors, kSide, b);
  }

  static HWY_INLINE void pack_left(const Rows<Bf16>& x, float sign, uint32_t* out) {
    for (int r = 0; r < x.rows; ++r) {
      for (int c = 0; c < x.width; c += 2 * kLanes) {
        const auto pairs = load_pairs(x.data + r * x.stride + c, x.width - c);
        hn::StoreU(signed_pairs(pairs, sign), Words(), out + r * kStride + c / 2);
      }
    }
    for (int64_t r = x.rows; r < round_up(x.rows, kRowUnit); ++r) {
      std::memset(out + r * kStride, 0, static_cast<size_t>(words_of(x)) * sizeof(uint32_t));
    }
  }

  static HWY_INLINE void pack_right(const Rows<Bf16>& x, float sign, int64_t panel_stride,
                                    uint32_t* out) {
    for (int c = 0; c < x.width; c += kPanel, out += panel_stride) {
      const int vectors = x.width - c > kLanes ? 2 : 1;
      for (int r = 0; r < x.rows; r += 2) {
        for (int v = 0; v < vectors; ++v) {
          const int at = c + v * kLanes;
          const Bf16* row = x.data + r * x.stride + at;
          auto pairs = load_words(row, x.width - at);
          if (r + 1 < x.rows) {
            pairs = hn::Or(pairs, hn::ShiftLeft<16>(load_words(row + x.stride, x.width - at)));
          }
          hn::StoreU(signed_pairs(pairs, sign), Words(), out + r / 2 * kPanel + v * kLanes);
        }
      }
    }
  }

  static HWY_INLINE void pack_transposed(const Rows<Bf16>& x, int64_t panel_stride,
                                         uint32_t* scratch, uint32_t* out) {
    for (int row = 0; row < x.rows; row += kLanes) {
      for (int r = 0; r < kLanes; ++r) {
        for (int c = 0; c < x.width; c += 2 * kLanes) {
          const Bf16* from = x.data + (row + r) * x.stride + c;
          hn::StoreU(row + r < x.rows ? load_pairs(from, x.width - c) : hn::Zero(Words()), Words(),
                     scratch + r * kStride + c / 2);
        }
      }
      transpose_words(scratch, kStride, words_of(x),
                      out + row / kPanel * panel_stride + row % kPanel);
    }
  }

  static HWY_INLINE const uint32_t* round_left(const float* scores, int rows, int columns,
                                               uint32_t* scratch) {
    bf16_round_left(scores, rows, columns, scratch);
    return scratch;
  }
  static HWY_INLINE const uint32_t* round_transposed(const float* scores, int rows, int columns,
                                                     uint32_t* scratch) {
    bf16_round_transposed(scores, static_cast<int>(round_up(rows, 2)), columns, scratch);
    return scratch;
  }

 private:
  using WordVector = hn::Vec<Words>;

  static HWY_INLINE int words_of(const Rows<Bf16>& x) {
    return static_cast<int>(round_up(ceil_div(x.width, 2), kDepthUnit));
  }

  // 2 * kLanes neighbours, as pairs.
  static HWY_INLINE WordVector load_pairs(const Bf16* p, int count) {
    if (count >= 2 * kLanes) {
      const hn::Repartition<uint16_t, Words> elements;
      return hn::BitCast(Words(), hn::LoadU(elements, reinterpret_cast<const uint16_t*>(p)));
    }
    Bf16 padded[2 * kLanes] = {};
    std::memcpy(padded, p, static_cast<size_t>(count) * sizeof(Bf16));
    return load_pairs(padded, 2 * kLanes);
  }

  // kLanes neighbours, each in the lower half of a word.
  static HWY_INLINE WordVector load_words(const Bf16* p, int count) {
    Bf16 padded[kLanes] = {};
    if (count < kLanes) {
      std::memcpy(padded, p, static_cast<size_t>(count) * sizeof(Bf16));
      p = padded;
    }
    return hn::PromoteTo(Words(), hn::LoadU(Halves(), reinterpret_cast<const uint16_t*>(p)));
  }

  static HWY_INLINE WordVector signed_pairs(WordVector pairs, float sign) {
    if (sign == 0) return hn::Zero(Words());
    return hn::Xor(pairs, hn::Set(Words(), sign < 0 ? 0x80008000u : 0u));
  }
};

#endif  // HWY_TARGET == HWY_AVX3

// Calls body(operands, T()) for the stored type T and the words that the plan has chosen.
template <typename Body>
HWY_INLINE void with_operands(attention_kernel::Element element, int elements_per_word,
                              const Body& body) {
  using attention_kernel::Element;
#if HWY_TARGET == HWY_AVX3
  if (elements_per_word == 2) return body(Bf16Pairs(), Bf16());
#else
  (void)elements_per_word;
#endif
  if (element == Element::kFloat32) return body(Fp32(), float());
  if (element == Element::kBfloat16) return body(Fp32(), Bf16());
  body(Fp32(), Fp16());
}

}  // namespace
}  // namespace HWY_NAMESPACE
}  // namespace flashstep::attention_cpu
HWY_AFTER_NAMESPACE();

#endif  // toggled guard
