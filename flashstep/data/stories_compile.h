// Compiles one variant of the story book's text into a program (the language is in
// stories/README.md).
#pragma once

#include <limits>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "flashstep/data/stories_book.h"

namespace flashstep {

inline constexpr uint32_t kNowhere = std::numeric_limits<uint32_t>::max();

using VariableNames = std::vector<std::pair<std::string, ByWorld>>;  // name, class in each world

class Compiler {
 public:
  // `variables` null where none can be used. Both must outlive the compiler; alternatives in braces
  // are added to book.choices.
  Compiler(Book& book, const VariableNames* variables) : book_(book), variables_(variables) {}

  Program compile(std::string_view text) const;

  // Where the class NAME, or NAME.child and NAME.animal, stand; kNowhere in a world without.
  ByWorld find_class(std::string_view name) const;

 private:
  void add_text(std::string_view text, bool before_slot, Program& program) const;
  Op compile_slot(std::string_view slot) const;
  Op compile_choice(std::string_view alternatives) const;
  Op compile_word(std::string_view slot, Op op) const;
  ByWorld find_pool(std::string_view name) const;

  Book& book_;
  const VariableNames* variables_;
};

}  // namespace flashstep
