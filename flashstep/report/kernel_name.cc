// Names of kernels as people say them.
#include <algorithm>
#include <array>
#include <cctype>

#include "flashstep/base/text.h"
#include "flashstep/report/work_class.h"

namespace flashstep::report {
namespace {

bool has_part(std::string_view text, std::string_view part) {
  return text.find(part) != std::string_view::npos;
}

// Where the part of `name` that starts at `open` with one of ( < ends; the end if it does not.
size_t closing(std::string_view name, size_t open) {
  int depth = 0;
  for (size_t i = open; i < name.size(); ++i) {
    if (name[i] == '(' || name[i] == '<') ++depth;
    if (name[i] == ')' || (name[i] == '>' && name[i - 1] != '-')) --depth;
    if (depth == 0) return i;
  }
  return name.size();
}

bool is_word(char c) { return std::isalnum(static_cast<unsigned char>(c)) || c == '_'; }

// The functor among the template arguments of an element-wise kernel: the first name of at::native
// that is no wrapper around it.
std::string functor_of(std::string_view arguments) {
  constexpr std::string_view kPrefix = "at::native::", kAnonymous = "(anonymous namespace)::";
  constexpr std::array<std::string_view, 4> kWrappers = {"gpu_kernel_impl", "TensorList",
                                                         "FusedOptimizerTensorList", "Unary"};
  for (size_t at = arguments.find(kPrefix); at != arguments.npos;
       at = arguments.find(kPrefix, at + 1)) {
    std::string_view rest = arguments.substr(at + kPrefix.size());
    if (rest.starts_with(kAnonymous)) rest.remove_prefix(kAnonymous.size());
    size_t length = 0;
    while (length < rest.size() && is_word(rest[length])) ++length;
    const std::string_view word = rest.substr(0, length);
    const bool wraps = std::any_of(kWrappers.begin(), kWrappers.end(), [&](std::string_view w) {
      return w == "Unary" ? has_part(word, "UnaryFunctor") : word.starts_with(w);
    });
    if (!word.empty() && !wraps) return std::string(word);
  }
  return "";
}

// The innermost part of the name of the first template argument, without arguments of its own.
std::string first_name(std::string_view arguments) {
  std::string_view name = arguments.substr(0, arguments.find_first_of("<,("));
  const size_t colons = name.rfind("::");
  if (colons != name.npos) name.remove_prefix(colons + 2);
  while (!name.empty() && name.back() == ' ') name.remove_suffix(1);
  return std::string(name);
}

// CUTLASS launches all its kernels from these: which one runs, only the template argument says.
bool is_cutlass_launcher(std::string_view name) {
  constexpr std::array<std::string_view, 3> kLaunchers = {"cutlass::Kernel", "cutlass::Kernel2",
                                                          "cutlass::device_kernel"};
  return std::find(kLaunchers.begin(), kLaunchers.end(), name) != kLaunchers.end();
}

}  // namespace

std::string short_kernel_name(std::string_view name) {
  if (name.starts_with("void ")) name.remove_prefix(5);
  std::string base;
  std::string_view arguments;
  for (size_t i = 0; i < name.size(); ++i) {
    const bool anonymous = name.substr(i).starts_with("(anonymous namespace)");
    if (name[i] == '(' && !anonymous) break;
    if (anonymous || name[i] == '<') {
      const size_t end = closing(name, i);
      if (!anonymous) arguments = name.substr(i + 1, end - i - 1);
      i = end;
    } else {
      base += name[i];
    }
  }
  if (is_cutlass_launcher(base)) {
    const std::string kernel = first_name(arguments);
    if (!kernel.empty()) return kernel;
  }
  const size_t colons = base.rfind("::");
  if (colons != base.npos && colons + 2 < base.size()) base = base.substr(colons + 2);
  if (name.starts_with("Memcpy") || name.starts_with("Memset")) return std::string(name);
  if (base == "CppNode") {  // a function of ours, by its node in the backward pass
    const size_t last = arguments.rfind("::");
    return str(last == arguments.npos ? arguments : arguments.substr(last + 2), " (backward)");
  }
  const bool generic = has_part(base, "elementwise") || has_part(base, "multi_tensor_apply");
  const std::string functor = generic ? functor_of(arguments) : "";
  return functor.empty() ? base : str(base, " (", functor, ")");
}

}  // namespace flashstep::report
