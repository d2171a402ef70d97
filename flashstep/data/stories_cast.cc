#include "flashstep/data/stories_cast.h"

#include <string>

#include "flashstep/data/stories_text.h"

namespace flashstep {
namespace {

// The classes of names, found once.
struct NameClasses {
  std::array<std::array<const WordClass*, 2>, kNumWorlds> young, neighbor;  // [world][is she]
  std::array<const WordClass*, 2> pet;
  const WordClass* critter;
};

const WordClass* get_class(const Book& book, std::string_view name) {
  const int found = book.lexicon.find(name);
  check_text(found >= 0, "no class ", name);
  return &book.lexicon.classes[found];
}

NameClasses find_names(const Book& book) {
  NameClasses names;
  names.young[kChildWorld] = {get_class(book, "boy"), get_class(book, "girl")};
  names.young[kAnimalWorld] = {get_class(book, "critter_he"), get_class(book, "critter_she")};
  for (int world = 0; world < kNumWorlds; ++world) {
    const std::string suffix = world == kChildWorld ? ".child" : ".animal";
    names.neighbor[world] = {get_class(book, "neighbor_he" + suffix),
                             get_class(book, "neighbor_she" + suffix)};
  }
  names.pet = {get_class(book, "pet_he"), get_class(book, "pet_she")};
  names.critter = get_class(book, "critter");
  return names;
}

void set_pronouns(Character& character, bool is_she) {
  character.is_she = is_she;
  character.forms[kHe] = is_she ? "she" : "he";
  character.forms[kHim] = is_she ? "her" : "him";
  character.forms[kHis] = is_she ? "her" : "his";
  character.forms[kHimself] = is_she ? "herself" : "himself";
  character.forms[kKind] = is_she ? "girl" : "boy";
  character.forms[kSibling] = is_she ? "sister" : "brother";
}

// Classes of characters have the forms "" (name), "of" (possessive) and, for grown-ups, "kin".
void set_name(Character& character, const WordClass& names, uint32_t word) {
  character.forms[kName] = names.form(word, 0);
  character.forms[kNames] = names.form(word, 1);
}

uint32_t draw(Rng& rng, const WordClass& words) {
  return static_cast<uint32_t>(rng.below(words.size()));
}

// Any but `taken`, each as likely.
uint32_t draw_other(Rng& rng, const WordClass& words, uint32_t taken) {
  const auto word = static_cast<uint32_t>(rng.below(words.size() - 1));
  return word + (word >= taken);
}

}  // namespace

void draw_cast(const Plot& plot, World world, Rng& rng, Cast& cast) {
  static const NameClasses names = find_names(story_book());
  for (Character& character : cast) set_pronouns(character, rng.below(2) == 1);
  Character &hero = cast[kHero], &friend_ = cast[kFriend];
  const WordClass& hero_names = *names.young[world][hero.is_she];
  const WordClass& friend_names = *names.young[world][friend_.is_she];
  const uint32_t hero_name = draw(rng, hero_names);
  set_name(hero, hero_names, hero_name);
  set_name(friend_, friend_names,
           &friend_names == &hero_names ? draw_other(rng, friend_names, hero_name)
                                        : draw(rng, friend_names));
  if (world == kAnimalWorld) {
    const uint32_t hero_kind = draw(rng, *names.critter);
    hero.forms[kKind] = names.critter->form(hero_kind, 0);
    friend_.forms[kKind] = names.critter->form(draw_other(rng, *names.critter, hero_kind), 0);
  }
  Character &elder = cast[kGrownUp], &neighbor = cast[kNeighbor], &pet = cast[kPet];
  const WordClass& elders = story_book().lexicon.classes[plot.elder_classes[elder.is_she][world]];
  const uint32_t elder_word = draw(rng, elders);
  set_name(elder, elders, elder_word);
  elder.forms[kKin] = elders.form(elder_word, 2);
  set_name(neighbor, *names.neighbor[world][neighbor.is_she],
           draw(rng, *names.neighbor[world][neighbor.is_she]));
  set_name(pet, *names.pet[pet.is_she], draw(rng, *names.pet[pet.is_she]));
}

}  // namespace flashstep
