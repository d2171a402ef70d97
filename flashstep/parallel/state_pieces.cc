#include "flashstep/parallel/state_pieces.h"

#include <algorithm>
#include <charconv>
#include <iterator>
#include <optional>
#include <unordered_map>
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
  StoredTensor stored;
};

struct Kind {  // of state, of one parameter
  std::string name;
  std::optional<StoredTensor> whole;
  std::vector<Piece> pieces;
  bool by_element = false;  // a value for each of the parameter's elements; else one for all
};

bool is_by_element(const Piece& piece) {
  return piece.stored.form.dim() == 1 && piece.stored.form.numel() == piece.end - piece.begin;
}

// Brings pieces into order: together they must be the parameter.
void check_kind(const std::string& name, Kind& kind, const Tensor& parameter) {
  const std::string what = name + "/" + kind.name;
  require_tensor(name, !kind.whole || kind.pieces.empty(), "[resume] expected ", what,
                 " once, got it whole and in pieces");
  if (kind.whole) {
    kind.by_element = kind.whole->form.sizes() == parameter.sizes();
    return;
  }
  std::ranges::sort(kind.pieces, {}, &Piece::begin);
  int64_t reached = 0;
  for (const Piece& piece : kind.pieces) {
    require_tensor(name, piece.begin == reached && piece.end <= parameter.numel(),
                   "[resume] expected ", what, " of element ", reached, " of ", parameter.numel(),
                   ", got elements ", piece.begin, " to ", piece.end, " next");
    reached = piece.end;
  }
  require_tensor(name, reached == parameter.numel(), "[resume] expected ", what, " of ",
                 parameter.numel(), " elements, got that of the first ", reached);
  kind.by_element = is_by_element(kind.pieces.front());
  for (const Piece& piece : kind.pieces) {
    require_tensor(name, !kind.by_element || is_by_element(piece), "[resume] expected ", what,
                   " of elements ", piece.begin, " to ", piece.end, ", got shape ",
                   piece.stored.form.sizes());
  }
}

// Of a kind by element: [begin, end), in the order of the parameter's memory. One read a tensor.
Tensor read_elements(const Kind& kind, const Tensor& parameter, int64_t begin, int64_t end) {
  if (kind.whole) return part_of(*kind.whole, parameter, begin, end);
  Tensor all;
  for (const Piece& piece : kind.pieces) {
    const int64_t from = std::clamp(begin, piece.begin, piece.end);
    const int64_t to = std::max(from, std::min(end, piece.end));
    const Tensor part = piece.stored.read(from - piece.begin, to - piece.begin);
    if (to - from == end - begin) {
      all = part;
    } else {
      if (!all.defined()) all = at::empty({end - begin}, part.options());
      if (from < to) all.slice(0, from - begin, to - begin).copy_(part);
    }
  }
  return all;
}

// Of any other kind: what the piece holds that element `begin` lies in. A rank that skipped the
// update of its own piece has counted fewer steps than the others.
Tensor read_value(const Kind& kind, int64_t begin) {
  if (kind.whole) return kind.whole->whole();
  const auto behind =
      std::ranges::find_if(kind.pieces, [&](const Piece& piece) { return piece.begin > begin; });
  const auto own = behind - kind.pieces.begin() - 1;
  Tensor value;
  for (ptrdiff_t i = 0; i < std::ssize(kind.pieces); ++i) {
    const StoredTensor& stored = kind.pieces[static_cast<size_t>(i)].stored;
    if (i == own) {
      value = stored.whole();
    } else {
      stored.read(0, 0);
    }
  }
  return value;
}

// Of one parameter.
void cut_parameter(const std::vector<Kind>& kinds, const Tensor& parameter,
                   const std::vector<const NamedPiece*>& pieces, const UsePiece& use) {
  const int64_t numel = parameter.numel();
  int64_t begin = pieces.empty() ? 0 : numel, end = 0;
  for (const NamedPiece* piece : pieces) {
    begin = std::min(begin, std::max<int64_t>(piece->begin, 0));
    end = std::max(end, piece->begin < 0 ? numel : piece->end);
  }
  std::vector<Tensor> read;
  for (const Kind& kind : kinds)
    read.push_back(kind.by_element ? read_elements(kind, parameter, begin, end)
                                   : read_value(kind, begin));
  for (const NamedPiece* piece : pieces) {
    NamedTensors state;
    for (size_t i = 0; i < kinds.size(); ++i) {
      Tensor own = read[i];
      if (kinds[i].by_element && piece->begin < 0) {
        own = own.as_strided(parameter.sizes(), gradient_strides(parameter));
      } else if (kinds[i].by_element) {
        own = own.slice(0, piece->begin - begin, piece->end - begin);
      }
      if (pieces.size() > 1) own = own.clone();
      state.emplace_back(name_of(*piece) + "/" + kinds[i].name, own);
    }
    use(*piece, std::move(state));
  }
}

std::unordered_map<std::string, std::vector<Kind>> by_parameter(StoredTensors state,
                                                                const NamedTensors& parameters) {
  const ByName by_name(parameters.begin(), parameters.end());
  std::unordered_map<std::string, std::vector<Kind>> kinds;
  for (StoredTensor& stored : state) {
    const std::string text = stored.name;
    const Key key = parse(text, by_name);
    auto& own = kinds[key.name];
    auto found = std::ranges::find(own, key.kind, &Kind::name);
    if (found == own.end()) found = own.insert(own.end(), Kind{key.kind, {}, {}});
    if (key.end < 0) {
      require_tensor(key.name, !found->whole, "[resume] expected ", text, " once, got it twice");
      found->whole = std::move(stored);
      continue;
    }
    require_tensor(key.name, key.order == order_of(by_name.at(key.name)), "[resume] expected ",
                   text, " in the order of the parameter's memory, strides ",
                   by_name.at(key.name).strides(), ", but it was written in another one");
    found->pieces.push_back({key.begin, key.end, std::move(stored)});
  }
  return kinds;
}

}  // namespace

std::string piece_name(const std::string& name, const Tensor& parameter, int64_t begin,
                       int64_t end) {
  const std::string order = order_of(parameter);
  return str(name, "@", begin, ":", end, order.empty() ? "" : "@" + order);
}

std::string name_of(const NamedPiece& piece) {
  return piece.begin < 0 ? piece.name
                         : piece_name(piece.name, piece.parameter, piece.begin, piece.end);
}

void cut_each(StoredTensors state, const NamedTensors& parameters,
              const std::vector<NamedPiece>& pieces, const UsePiece& use) {
  const at::NoGradGuard no_grad;
  std::unordered_map<std::string, std::vector<const NamedPiece*>> wanted;
  for (const NamedPiece& piece : pieces) wanted[piece.name].push_back(&piece);
  auto kinds = by_parameter(std::move(state), parameters);
  for (const auto& [name, parameter] : parameters) {
    const auto found = kinds.find(name);
    if (found == kinds.end()) continue;
    for (Kind& kind : found->second) check_kind(name, kind, parameter);
    cut_parameter(found->second, parameter, wanted[name], use);
    kinds.erase(found);
  }
}

NamedTensors cut_joined(StoredTensors state, const NamedTensors& parameters,
                        const std::vector<NamedPiece>& pieces) {
  NamedTensors result;
  cut_each(std::move(state), parameters, pieces, [&](const NamedPiece&, NamedTensors own) {
    std::ranges::move(own, std::back_inserter(result));
  });
  return result;
}

NamedTensors join_pieces(NamedTensors state, const NamedTensors& parameters) {
  std::vector<NamedPiece> whole;
  for (const auto& [name, parameter] : parameters) whole.push_back({name, parameter});
  return cut_joined(in_memory(std::move(state)), parameters, whole);
}

}  // namespace flashstep
