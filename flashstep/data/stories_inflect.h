// English inflection for the built-in story corpus: regular spelling rules and tables of
// exceptions. Each function takes one word or a phrase and inflects the word that carries the
// ending: the first word of a verb phrase ("ride a bike" -> "rode a bike"), the head of a noun
// phrase ("box of nails" -> "boxes of nails", "teddy bear" -> "teddy bears").
#pragma once

#include <string>
#include <string_view>

namespace flashstep {

std::string plural(std::string_view noun);
std::string past_tense(std::string_view verb);
std::string gerund(std::string_view verb);        // "run" -> "running"
std::string third_person(std::string_view verb);  // "carry" -> "carries"
std::string comparative(std::string_view adjective);
std::string superlative(std::string_view adjective);

// Whether "an" stands before `phrase`, by sound: "apple", "hour"; not "unicorn", "one".
bool takes_an(std::string_view phrase);

}  // namespace flashstep
