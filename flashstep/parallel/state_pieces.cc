#include "flashstep/parallel/state_pieces.h"

#include <algorithm>
#include <charconv>
#include <iterator>
#include <map>
#include <optional>
#include <unordered_map>
#include <unordered_set>
#include <utility>

#include <ATen/ATen.h>

#include "flashstep/base/text.h"
#include "flashstep/error.h"
#include "flashstep/parallel/buckets.h"

namespace flashstep {
namespace {

using at::Tensor;

// "1,64" where memory is not ordered row by row, else "".
std::string order_of(const Tensor& parameter) {
  if (parameter.is_contiguous()) return "";
  std::vector<std::string> strides;
  for (const int64_t stride : gradient_strides(parameter)) strides.push_back(str(stride));
  return join(strides, ",");
}

struct Key {  // "NAME@BEGIN:END@ORDER/KIND" taken apart
  std::string name, kind, order;
  int64_t begin = 0, end = -1;  // -1: the whole parameter
};

std::optional<int64_t> number(std::string_view text) {
  int64_t value = 0;
  const auto [stopped, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  const bool whole = error == std::errc() && stopped == text.data() + text.size() && value >= 0;
  return whole ? std::make_optional(value) : std::nullopt;
}

// The part of `key` behind its last '@' as a range; false if it is none.
bool take_range(Key& key) {
  const size_t at = key.name.rfind('@');
  if (at == std::string::npos) return false;
  const std::string_view range = std::string_view(key.name).substr(at + 1);
  const size_t colon = range.find(':');
  if (colon == std::string_view::npos) return false;
  const auto begin = number(range.substr(0, colon)), end = number(range.substr(colon + 1));
  if (!begin || !end) return false;
  key.begin = *begin;
  key.end = *end;
  key.name.resize(at);
  return true;
}

using ByName = std::unordered_map<std::string, Tensor>;

Key parse(const std::string& text, const ByName& parameters) {
  Key key;
  const size_t slash = text.rfind('/');
  require(slash != std::string::npos,
          "[resume] expected optimizer state named PARAMETER/KIND, got ", text);
  key.name = text.substr(0, slash);
  key.kind = text.substr(slash + 1);
  if (parameters.contains(key.name)) return key;
  if (!take_range(key)) {
    const size_t at = key.name.rfind('@');
    if (at != std::string::npos) {
      key.order = key.name.substr(at + 1);
      key.name.resize(at);
      take_range(key);
    }
  }
  require_tensor(key.name, parameters.contains(key.name),
                 "[resume] the checkpoint holds optimizer state for ", text.substr(0, slash),
                 ", which the module does not have");
  return key;
}

struct Piece {
  int64_t begin, end;
  Tensor tensor;
};

struct Kind {  // of state, of one parameter
  std::string name;
  Tensor whole;
  std::vector<Piece> pieces;
};

// What all pieces of one kind make together: of the parameter's shape, or, where they hold
// something else than elements, what the first holds.
Tensor join_kind(const std::string& name, Kind& kind, const Tensor& parameter) {
  const std::string what = name + "/" + kind.name;
  std::vector<Piece>& pieces = kind.pieces;
  std::sort(pieces.begin(), pieces.end(),
            [](const Piece& a, const Piece& b) { return a.begin < b.begin; });
  int64_t reached = 0;
  for (const Piece& piece : pieces) {
    require_tensor(name, piece.begin == reached && piece.end <= parameter.numel(),
                   "[resume] expected ", what, " of element ", reached, " of ", parameter.numel(),
                   ", got elements ", piece.begin, " to ", piece.end, " next");
    reached = piece.end;
  }
  require_tensor(name, reached == parameter.numel(), "[resume] expected ", what, " of ",
                 parameter.numel(), " elements, got that of the first ", reached);
  const Piece& first = pieces.front();
  const bool by_element =
      first.tensor.dim() == 1 && first.tensor.numel() == first.end - first.begin;
  if (!by_element) return first.tensor;
  const Tensor whole = at::empty_strided(parameter.sizes(), gradient_strides(parameter),
                                         first.tensor.options().requires_grad(false));
  for (const Piece& piece : pieces) {
    require_tensor(name, piece.tensor.dim() == 1 && piece.tensor.numel() == piece.end - piece.begin,
                   "[resume] expected ", what, " of elements ", piece.begin, " to ", piece.end,
                   ", got shape ", piece.tensor.sizes());
    flat_view(whole).slice(0, piece.begin, piece.end).copy_(piece.tensor);
  }
  return whole;
}

std::unordered_map<std::string, std::vector<Kind>> by_parameter(NamedTensors state,
                                                                const NamedTensors& parameters) {
  const ByName by_name(parameters.begin(), parameters.end());
  std::unordered_map<std::string, std::vector<Kind>> kinds;
  for (auto& [text, tensor] : state) {
    const Key key = parse(text, by_name);
    auto& own = kinds[key.name];
    auto found = std::find_if(own.begin(), own.end(),
                              [&](const Kind& kind) { return kind.name == key.kind; });
    if (found == own.end()) found = own.insert(own.end(), {key.kind, {}, {}});
    if (key.end < 0) {
      require_tensor(key.name, !found->whole.defined(), "[resume] expected ", text,
                     " once, got it twice");
      found->whole = std::move(tensor);
      continue;
    }
    require_tensor(key.name, key.order == order_of(by_name.at(key.name)), "[resume] expected ",
                   text, " in the order of the parameter's memory, strides ",
                   by_name.at(key.name).strides(), ", but it was written in another one");
    found->pieces.push_back({key.begin, key.end, std::move(tensor)});
  }
  return kinds;
}

// Calls `use` with the whole state of each parameter, one after the other; pieces that are joined
// are freed before.
template <typename Use>
void join_each(NamedTensors state, const NamedTensors& parameters, Use use) {
  at::NoGradGuard no_grad;
  auto kinds = by_parameter(std::move(state), parameters);
  for (const auto& [name, parameter] : parameters) {
    const auto found = kinds.find(name);
    if (found == kinds.end()) continue;
    NamedTensors whole;
    for (Kind& kind : found->second) {
      const std::string what = name + "/" + kind.name;
      require_tensor(name, !kind.whole.defined() || kind.pieces.empty(), "[resume] expected ", what,
                     " once, got it whole and in pieces");
      whole.emplace_back(what,
                         kind.whole.defined() ? kind.whole : join_kind(name, kind, parameter));
    }
    kinds.erase(found);
    use(std::move(whole));
  }
}

// The parameter whose state bears this name; the name itself, if there is none.
std::string parameter_of(const std::string& text, const std::unordered_set<std::string>& names) {
  for (size_t end = text.find_last_of("/@"); end != std::string::npos && end > 0;
       end = text.find_last_of("/@", end - 1)) {
    if (names.contains(text.substr(0, end))) return text.substr(0, end);
  }
  return text;
}

// In the order in which parameters come first.
std::vector<NamedTensors> split_by_parameter(NamedTensors state, const NamedTensors& parameters) {
  std::unordered_set<std::string> names;
  for (const auto& [name, parameter] : parameters) names.insert(name);
  std::unordered_map<std::string, size_t> places;
  std::vector<NamedTensors> parts;
  for (auto& entry : state) {
    const auto [place, is_new] = places.try_emplace(parameter_of(entry.first, names), parts.size());
    if (is_new) parts.emplace_back();
    parts[place->second].push_back(std::move(entry));
  }
  return parts;
}

}  // namespace

std::string piece_name(const std::string& name, const Tensor& parameter, int64_t begin,
                       int64_t end) {
  const std::string order = order_of(parameter);
  return str(name, "@", begin, ":", end, order.empty() ? "" : "@" + order);
}

NamedTensors join_pieces(NamedTensors state, const NamedTensors& parameters) {
  NamedTensors result;
  join_each(std::move(state), parameters, [&](NamedTensors whole) {
    std::move(whole.begin(), whole.end(), std::back_inserter(result));
  });
  return result;
}

NamedTensors cut_pieces(const NamedTensors& whole, const std::vector<NamedPiece>& pieces) {
  at::NoGradGuard no_grad;
  std::unordered_map<std::string, NamedTensors> by_name;  // kinds
  for (const auto& [text, tensor] : whole) {
    const size_t slash = text.rfind('/');
    by_name[text.substr(0, slash)].emplace_back(text.substr(slash), tensor);
  }
  NamedTensors result;
  for (const NamedPiece& piece : pieces) {
    const auto found = by_name.find(piece.name);
    if (found == by_name.end()) continue;
    const bool is_whole = piece.begin < 0;
    const std::string name =
        is_whole ? piece.name : piece_name(piece.name, piece.parameter, piece.begin, piece.end);
    for (const auto& [kind, tensor] : found->second) {
      if (is_whole || tensor.sizes() != piece.parameter.sizes()) {
        result.emplace_back(name + kind, tensor.clone());
        continue;
      }
      const Tensor ordered = at::empty_strided(tensor.sizes(), gradient_strides(piece.parameter),
                                               tensor.options().requires_grad(false));
      ordered.copy_(tensor);
      result.emplace_back(name + kind, flat_view(ordered).slice(0, piece.begin, piece.end).clone());
    }
  }
  return result;
}

NamedTensors cut_joined(NamedTensors state, const NamedTensors& parameters,
                        const std::vector<NamedPiece>& pieces) {
  NamedTensors result;
  join_each(std::move(state), parameters, [&](const NamedTensors& whole) {
    NamedTensors own = cut_pieces(whole, pieces);
    std::move(own.begin(), own.end(), std::back_inserter(result));
  });
  return result;
}

NamedTensors share_state(NamedTensors state, const NamedTensors& parameters, const Group& group,
                         const KeepFunction& keep) {
  std::vector<NamedTensors> parts;  // rank 0's
  if (group.is_first()) parts = split_by_parameter(std::move(state), parameters);
  parts.resize(static_cast<size_t>(group.all_reduce(parts.size(), Reduce::kMax)));
  NamedTensors kept;
  for (NamedTensors& part : parts) {
    broadcast_tensors(part, group);
    for (auto& entry : keep(std::move(part))) kept.push_back(std::move(entry));
  }
  return kept;
}

}  // namespace flashstep
