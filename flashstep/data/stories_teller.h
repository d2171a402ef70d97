// Tells one story: draws its plot and cast, runs the programs of its beats.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "flashstep/base/rng.h"
#include "flashstep/data/stories_book.h"
#include "flashstep/data/stories_cast.h"

namespace flashstep {

class StoryTeller {
 public:
  explicit StoryTeller(const Book& book);

  // Appends story `index` of `seed` to `text`. One teller can tell any stories in any order.
  void tell(uint64_t seed, uint64_t index, std::string& text);
  // The plot of the last story, for tests.
  const Plot& plot() const { return *plot_; }
  // Those of the last story, for tests.
  const Cast& cast() const { return cast_; }

 private:
  // Words and passages that a story has used are not used in it again, as far as there are others.
  class Used {
   public:
    explicit Used(size_t size) : bits_((size + 63) / 64) {}
    void clear() { std::fill(bits_.begin(), bits_.end(), 0); }
    bool test(uint32_t i) const { return bits_[i / 64] >> (i % 64) & 1; }
    void set(uint32_t i) { bits_[i / 64] |= uint64_t{1} << (i % 64); }

   private:
    std::vector<uint64_t> bits_;
  };

  uint32_t draw_unused(uint32_t first, uint32_t count, Used& used);
  void draw_variables();
  void run(const Program& program);
  void run(const Op& op);
  void add_role(const Op& op);

  const Book& book_;
  const Plot* plot_ = nullptr;
  World world_ = kChildWorld;
  Rng rng_{0};
  Cast cast_;
  Used used_words_, used_passages_;
  std::vector<std::pair<const WordClass*, uint32_t>> variables_;
  std::string* text_ = nullptr;
};

}  // namespace flashstep
