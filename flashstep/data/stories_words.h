// The texts of the story corpus: the lexicon (stories_lexicon.h says how it is written), passages
// and plots (stories_book.h).
#pragma once

#include <string_view>

namespace flashstep {

extern const std::string_view kPeopleWords, kThingWords, kNatureWords, kActionWords;
extern const std::string_view kPassages, kDialogue;
extern const std::string_view kPlotsAtHome, kPlotsOutdoors, kPlotsFriends, kPlotsBrave,
    kPlotsWonder;

}  // namespace flashstep
