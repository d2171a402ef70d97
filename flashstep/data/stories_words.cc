#include "flashstep/data/stories_words.h"

#include "flashstep/data/stories_book.h"
#include "flashstep/data/stories_lexicon.h"

namespace flashstep {

std::span<const std::string_view> lexicon_texts() {
  static const std::string_view texts[] = {kPeopleWords, kThingWords, kNatureWords, kActionWords};
  return texts;
}

std::span<const std::string_view> book_texts() {
  static const std::string_view texts[] = {kPassages,     kDialogue,   kPlotsAtHome, kPlotsOutdoors,
                                           kPlotsFriends, kPlotsBrave, kPlotsWonder};
  return texts;
}

}  // namespace flashstep
