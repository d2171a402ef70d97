// Mistakes that must become sentences.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "flashstep/base/text.h"
#include "flashstep/error.h"

namespace flashstep::testing {

// The text of the UserError that `body` throws; empty when it throws none.
inline std::string refusal(const std::function<void()>& body) {
  try {
    body();
  } catch (const UserError& error) {
    return error.what();
  }
  return "";
}

// The tensor that the UserError which `body` throws is about.
inline std::string refused_tensor(const std::function<void()>& body) {
  try {
    body();
  } catch (const UserError& error) {
    return error.tensor();
  }
  return "";
}

// `body` throws a UserError whose text holds all of `words`.
inline void expect_sentence(const std::function<void()>& body,
                            const std::vector<std::string>& words) {
  const std::string sentence = refusal(body);
  if (sentence.empty()) {
    ADD_FAILURE() << "nothing was refused; expected a sentence with " << join(words);
    return;
  }
  for (const std::string& word : words)
    EXPECT_NE(sentence.find(word), std::string::npos)
        << "expected \"" << word << "\" in: " << sentence;
}

}  // namespace flashstep::testing
