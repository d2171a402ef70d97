// The model and the pass that an account is of, checked.
#pragma once

#include <string>

#include "flashstep/model/cost.h"
#include "flashstep/report/account.h"

namespace flashstep::report {

struct AccountCase {
  ModelConfig model;
  PassShape shape;
  bool backward = false, update = false;
};
AccountCase account_case(const StepAccount& inputs);

std::string case_name(const StepAccount& inputs, const AccountCase& c);  // "xl, batch 4, ..."

// What the letters of a derivation stand for.
std::string letters_of(const AccountCase& c);

}  // namespace flashstep::report
