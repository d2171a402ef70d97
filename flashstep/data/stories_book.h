// What stories are made of: passages and plots, compiled from text (stories/README.md says how it
// is written) into programs that the generator runs.
#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "flashstep/data/stories_lexicon.h"

namespace flashstep {

enum World : uint8_t { kChildWorld, kAnimalWorld, kNumWorlds };
enum Role : uint8_t { kHero, kFriend, kGrownUp, kNeighbor, kPet, kNumRoles };
enum RoleForm : uint8_t {
  kName,
  kNames,
  kHe,
  kHim,
  kHis,
  kHimself,
  kKind,
  kKin,
  kSibling,
  kNumRoleForms
};

struct Op {
  enum Kind : uint8_t { kText, kArticle, kRole, kClearRole, kWord, kVariable, kPool, kChoice };
  Kind kind = kText;
  bool capital = false;
  uint8_t role = 0;                         // kRole, kClearRole: who
  std::array<uint16_t, kNumWorlds> form{};  // kRole: RoleForm; kWord, kVariable: the class's form
  std::array<uint32_t, kNumWorlds>
      index{};            // kWord: class; kVariable: variable; kPool, kChoice: variants
  std::string_view text;  // kText
};

using Program = std::vector<Op>;

struct Variants {
  std::string name;
  std::vector<Program> programs;
  uint32_t first_program = 0;  // number of its first program among those of all pools
};

struct Beat {
  bool optional = false, paragraph = false;
  Variants variants;
};

using ByWorld = std::array<uint32_t, kNumWorlds>;

struct Plot {
  std::string name;
  std::array<bool, kNumWorlds> worlds{};
  std::vector<std::pair<uint32_t, ByWorld>> variables;  // variable, class in each world
  std::array<ByWorld, 2> elder_classes{};               // [he, she]
  std::vector<Beat> beats;
};

struct Book {
  Lexicon lexicon;
  std::vector<Variants> pools;    // passages
  std::vector<Variants> choices;  // alternatives in braces
  std::vector<Plot> plots;
  uint32_t num_pool_programs = 0;
};

// std::logic_error, naming the place, where the texts break the rules of stories/README.md.
Book parse_book(std::span<const std::string_view> lexicon, std::span<const std::string_view> book);

// The built-in book, parsed once.
const Book& story_book();

}  // namespace flashstep
