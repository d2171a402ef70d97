#include "flashstep/data/stories_inflect.h"

#include <algorithm>
#include <array>

namespace flashstep {
namespace {

struct Exception {
  std::string_view base, form;
};

constexpr Exception kPlurals[] = {
    {"calf", "calves"},     {"child", "children"},  {"deer", "deer"},
    {"fish", "fish"},       {"foot", "feet"},       {"goldfish", "goldfish"},
    {"goose", "geese"},     {"half", "halves"},     {"knife", "knives"},
    {"leaf", "leaves"},     {"loaf", "loaves"},     {"man", "men"},
    {"mouse", "mice"},      {"potato", "potatoes"}, {"scarf", "scarves"},
    {"sheep", "sheep"},     {"shelf", "shelves"},   {"starfish", "starfish"},
    {"tomato", "tomatoes"}, {"tooth", "teeth"},     {"wolf", "wolves"},
    {"woman", "women"},     {"moose", "moose"},     {"dragonfly", "dragonflies"},
};

constexpr Exception kPasts[] = {
    {"be", "was"},      {"begin", "began"},   {"bend", "bent"},     {"bite", "bit"},
    {"blow", "blew"},   {"break", "broke"},   {"bring", "brought"}, {"build", "built"},
    {"buy", "bought"},  {"catch", "caught"},  {"come", "came"},     {"cut", "cut"},
    {"dig", "dug"},     {"do", "did"},        {"draw", "drew"},     {"drink", "drank"},
    {"drive", "drove"}, {"eat", "ate"},       {"fall", "fell"},     {"feed", "fed"},
    {"feel", "felt"},   {"find", "found"},    {"fly", "flew"},      {"forget", "forgot"},
    {"get", "got"},     {"give", "gave"},     {"go", "went"},       {"grow", "grew"},
    {"have", "had"},    {"hear", "heard"},    {"hide", "hid"},      {"hit", "hit"},
    {"hold", "held"},   {"keep", "kept"},     {"know", "knew"},     {"lead", "led"},
    {"leave", "left"},  {"lend", "lent"},     {"let", "let"},       {"lie", "lay"},
    {"lose", "lost"},   {"make", "made"},     {"meet", "met"},      {"put", "put"},
    {"read", "read"},   {"ride", "rode"},     {"ring", "rang"},     {"rise", "rose"},
    {"run", "ran"},     {"say", "said"},      {"see", "saw"},       {"sell", "sold"},
    {"send", "sent"},   {"shake", "shook"},   {"shine", "shone"},   {"sing", "sang"},
    {"sit", "sat"},     {"sleep", "slept"},   {"slide", "slid"},    {"speak", "spoke"},
    {"spin", "spun"},   {"stand", "stood"},   {"stick", "stuck"},   {"sweep", "swept"},
    {"swim", "swam"},   {"swing", "swung"},   {"take", "took"},     {"teach", "taught"},
    {"tell", "told"},   {"think", "thought"}, {"throw", "threw"},   {"wake", "woke"},
    {"wear", "wore"},   {"weave", "wove"},    {"win", "won"},       {"write", "wrote"},
};

constexpr Exception kComparatives[] = {{"good", "better"}, {"bad", "worse"}, {"far", "farther"}};
constexpr Exception kSuperlatives[] = {{"good", "best"}, {"bad", "worst"}, {"far", "farthest"}};

// Longer words whose last syllable is stressed, so that their consonant doubles.
constexpr std::string_view kStressedEnd[] = {"begin", "forget", "admit"};

template <size_t N>
const Exception* find_exception(const Exception (&table)[N], std::string_view word) {
  const auto* end = table + N;
  const auto* found =
      std::find_if(table, end, [&](const Exception& entry) { return entry.base == word; });
  return found == end ? nullptr : found;
}

bool is_vowel(char c) { return std::string_view("aeiou").find(c) != std::string_view::npos; }

int vowel_groups(std::string_view word) {
  int groups = 0;
  bool inside = false;
  for (size_t i = 0; i < word.size(); ++i) {
    const bool vowel = is_vowel(word[i]) || (i > 0 && word[i] == 'y');
    groups += vowel && !inside;
    inside = vowel;
  }
  return groups;
}

// "hop" -> "hopp" before -ed, -ing, -er, -est: one syllable that ends consonant, vowel, consonant.
bool doubles_consonant(std::string_view word) {
  if (std::find(std::begin(kStressedEnd), std::end(kStressedEnd), word) != std::end(kStressedEnd)) {
    return true;
  }
  const size_t n = word.size();
  if (n < 3 || vowel_groups(word) != 1) return false;
  const char last = word[n - 1];
  if (is_vowel(last) || last == 'w' || last == 'x' || last == 'y') return false;
  if (!is_vowel(word[n - 2]) || (is_vowel(word[n - 3]) && word.substr(n - 3, 2) != "ui"))
    return false;
  return word.substr(n - 3, 2) != "ui" || word.substr(0, 2) == "qu";  // "quit" doubles, "fruit" not
}

bool ends_in_consonant_y(std::string_view word) {
  return word.size() > 1 && word.back() == 'y' && !is_vowel(word[word.size() - 2]);
}

bool ends_with_any(std::string_view word, std::initializer_list<std::string_view> endings) {
  return std::any_of(endings.begin(), endings.end(), [&](auto end) { return word.ends_with(end); });
}

std::string add_s(std::string_view word) {
  if (ends_in_consonant_y(word)) return std::string(word.substr(0, word.size() - 1)) + "ies";
  const bool hisses = ends_with_any(word, {"s", "x", "z", "ch", "sh"});
  return std::string(word) + (hisses ? "es" : "s");
}

// Adds an ending that begins with e ("ed", "er", "est").
std::string add_e_ending(std::string_view word, std::string_view ending) {
  if (word.ends_with('e')) return std::string(word) + std::string(ending.substr(1));
  if (ends_in_consonant_y(word)) {
    return std::string(word.substr(0, word.size() - 1)) + "i" + std::string(ending);
  }
  std::string stem(word);
  if (doubles_consonant(word)) stem += word.back();
  return stem + std::string(ending);
}

bool grades_with_more(std::string_view adjective) {
  const int syllables = vowel_groups(adjective) - (adjective.ends_with('e') ? 1 : 0);
  if (adjective.ends_with('y') || ends_with_any(adjective, {"le", "ow"})) return syllables > 2;
  return syllables > 1;
}

// The head of a verb phrase (its first word), inflected by `inflect`.
template <typename Inflect>
std::string on_first_word(std::string_view phrase, Inflect inflect) {
  const size_t space = std::min(phrase.find(' '), phrase.size());
  return inflect(phrase.substr(0, space)) + std::string(phrase.substr(space));
}

std::string plural_word(std::string_view word) {
  if (const auto* entry = find_exception(kPlurals, word)) return std::string(entry->form);
  return add_s(word);
}

}  // namespace

std::string plural(std::string_view noun) {
  size_t head_end = noun.size();
  for (std::string_view link : {" of ", " with ", " from "}) {
    head_end = std::min(head_end, noun.find(link));
  }
  const size_t space = noun.substr(0, head_end).rfind(' ');
  const size_t head = space == std::string_view::npos ? 0 : space + 1;
  return std::string(noun.substr(0, head)) + plural_word(noun.substr(head, head_end - head)) +
         std::string(noun.substr(head_end));
}

std::string past_tense(std::string_view verb) {
  return on_first_word(verb, [](std::string_view word) {
    if (const auto* entry = find_exception(kPasts, word)) return std::string(entry->form);
    return add_e_ending(word, "ed");
  });
}

std::string gerund(std::string_view verb) {
  return on_first_word(verb, [](std::string_view word) {
    if (word.ends_with("ie")) return std::string(word.substr(0, word.size() - 2)) + "ying";
    std::string stem(word);
    if (word.ends_with('e') && word.size() > 2 && !ends_with_any(word, {"ee", "oe", "ye"})) {
      stem.pop_back();
    } else if (doubles_consonant(word)) {
      stem += word.back();
    }
    return stem + "ing";
  });
}

std::string third_person(std::string_view verb) {
  return on_first_word(verb, [](std::string_view word) {
    if (word == "be") return std::string("is");
    if (word == "have") return std::string("has");
    if (word == "go" || word == "do") return std::string(word) + "es";
    return add_s(word);
  });
}

std::string comparative(std::string_view adjective) {
  if (const auto* entry = find_exception(kComparatives, adjective)) return std::string(entry->form);
  if (grades_with_more(adjective)) return "more " + std::string(adjective);
  return add_e_ending(adjective, "er");
}

std::string superlative(std::string_view adjective) {
  if (const auto* entry = find_exception(kSuperlatives, adjective)) return std::string(entry->form);
  if (grades_with_more(adjective)) return "most " + std::string(adjective);
  return add_e_ending(adjective, "est");
}

bool takes_an(std::string_view phrase) {
  const auto starts = [&](std::initializer_list<std::string_view> heads) {
    return std::any_of(heads.begin(), heads.end(),
                       [&](auto head) { return phrase.starts_with(head); });
  };
  if (phrase.empty()) return false;
  if (starts({"hour", "honest", "heir", "honor"})) return true;
  if (starts({"uni", "use", "usual", "one", "once", "eu", "uk"}))
    return phrase.starts_with("unin") || phrase.starts_with("unim");
  const char first = static_cast<char>(phrase[0] | 0x20);  // ASCII lower case
  return is_vowel(first);
}

}  // namespace flashstep
