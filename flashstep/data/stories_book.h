// What stories are made of, compiled from text (stories_passages_*.cc, stories_plots_*.cc) into
// programs that the generator runs.
//
//   pool NAME                  variants of a passage; NAME.child and NAME.animal as with word
//   classes
//   - a variant
//     that goes on here
//   plot NAME WORLD            WORLD: child, animal or any
//   let VARIABLE = CLASS       a word that stays the same through the story
//   elder PREFIX               the grown-up is of the classes PREFIX_he and PREFIX_she (default
//   kin) beat | paragraph | maybe | maybe paragraph      followed by the beat's variants; a
//   paragraph starts a new
//                              one, a maybe is left out of half of the stories
// In a variant `//` starts a new paragraph, and braces hold
//   {H} {H's} {he} {him} {his} {himself} {kind} {sibling}   the hero; {F}, {fhe}, ... the friend;
//   {G}, {gkin}, ... the grown-up; {N}, ... the neighbour; {X}, ... the pet
//   {F/he}                     the pronoun if it cannot be mistaken (hero and friend of different
//   gender), else
//                              the name; {H/him}, {G/his}, ... alike
//   {toy} {toy.s}              a random word of the class in that form, not used in this story
//   before
//   {$toy} {$toy.s}            the variable's word (in plots)
//   {@greeting}                a variant of the pool, not used in this story before
//   {one|two {color}|three}    one of the alternatives
// A slot that begins with a capital is written with a capital. "a" before a slot becomes "an" where
// needed.
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

// std::logic_error, naming the place, where the texts break the rules above.
Book parse_book(std::span<const std::string_view> lexicon, std::span<const std::string_view> book);

// The built-in book, parsed once.
const Book& story_book();

}  // namespace flashstep
