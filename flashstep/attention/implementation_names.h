// A part of attention.h for those who do without LibTorch's headers.
#pragma once

#include <string>
#include <vector>

namespace flashstep {

std::vector<std::string> attention_implementations();

}  // namespace flashstep
