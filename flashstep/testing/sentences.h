// Mistakes that must become sentences.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "flashstep/base/error.h"
#include "flashstep/base/text.h"

namespace flashstep::testing {

// `body` throws a UserError whose text holds all of `words`.
inline void expect_sentence(const std::function<void()>& body,
                            const std::vector<std::string>& words) {
  try {
    body();
    ADD_FAILURE() << "nothing was thrown; expected a sentence with " << join(words);
  } catch (const UserError& error) {
    for (const std::string& word : words) {
      EXPECT_NE(std::string(error.what()).find(word), std::string::npos)
          << "expected \"" << word << "\" in: " << error.what();
    }
  }
}

}  // namespace flashstep::testing
