// The characters of one story, and the words by which they are called.
#pragma once

#include <array>
#include <string_view>

#include "flashstep/base/rng.h"
#include "flashstep/data/stories_book.h"

namespace flashstep {

struct Character {
  bool is_she = false;
  std::array<std::string_view, kNumRoleForms> forms;
};

using Cast = std::array<Character, kNumRoles>;

// Draws hero, friend, grown-up, neighbour and pet; no two share a name, and in the animal world
// hero and friend are of different kinds.
void draw_cast(const Plot& plot, World world, Rng& rng, Cast& cast);

}  // namespace flashstep
