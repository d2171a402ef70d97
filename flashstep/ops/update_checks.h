// What the updates of lists of parameters check alike.
#pragma once

#include <string>
#include <vector>

#include <torch/types.h>

#include "flashstep/error.h"

namespace flashstep::internal {

// UserError, which begins with `who`, unless `number` is one, of `dtype`, where the parameter lies.
inline void check_number(const char* who, const at::Tensor& number, const char* name,
                         const at::Tensor& parameter, at::ScalarType dtype = at::kFloat) {
  require(number.defined() && number.numel() == 1 && number.scalar_type() == dtype &&
              number.device() == parameter.device(),
          who, " expected ", name, " of shape () and ", dtype, " on ", parameter.device().str(),
          ", got ",
          number.defined() ? flashstep::str(number.sizes(), " of ", number.scalar_type(), " on ",
                                            number.device().str())
                           : "an undefined tensor");
}

// The same of the list of 16-bit copies.
inline void check_copies(const char* who, const std::vector<at::Tensor>& copies,
                         const std::vector<at::Tensor>& parameters) {
  for (size_t i = 0; i < copies.size(); ++i) {
    const at::Tensor &copy = copies[i], &parameter = parameters[i];
    if (!copy.defined()) continue;
    require((copy.scalar_type() == at::kBFloat16 || copy.scalar_type() == at::kHalf) &&
                copy.device() == parameter.device() && copy.sizes() == parameter.sizes(),
            who, " expected a 16-bit copy of shape ", parameter.sizes(), " on ",
            parameter.device().str(), ", got ", copy.scalar_type(), " of ", copy.sizes(), " on ",
            copy.device().str());
  }
}

// And of what is read on the device: whether to skip, and the norm to clip by.
template <typename Settings>
void check_settings(const char* who, const Settings& settings, const at::Tensor& first,
                    at::ScalarType rate_dtype) {
  check_number(who, settings.learning_rate, "a learning rate", first, rate_dtype);
  if (settings.skip.defined()) check_number(who, settings.skip, "skip", first);
  if (!settings.norm.defined()) return;
  check_number(who, settings.norm, "a norm", first);
  require(settings.max_norm > 0, who, " expected a largest norm above 0, got ", settings.max_norm);
}

}  // namespace flashstep::internal
