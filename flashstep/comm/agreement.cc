#include "flashstep/comm/agreement.h"

#include <algorithm>
#include <chrono>
#include <exception>

#include "flashstep/base/hash.h"
#include "flashstep/base/text.h"
#include "flashstep/comm/outside_collectives.h"

namespace flashstep {
namespace {

std::vector<std::string> lines_of(const std::string& text) {
  std::vector<std::string> lines(1);
  for (const char c : text) {
    if (c == '\n') {
      lines.emplace_back();
    } else {
      lines.back() += c;
    }
  }
  return lines;
}

}  // namespace

std::optional<Difference> first_difference(const std::vector<std::string>& lines,
                                           const Group& group) {
  const std::string own = join(lines, "\n");
  const std::vector<std::string> hashes = group.all_gather(hash_bytes(own));
  const auto other = std::find_if(hashes.begin(), hashes.end(),
                                  [&](const std::string& hash) { return hash != hashes.front(); });
  if (other == hashes.end()) return std::nullopt;
  const auto rank = static_cast<size_t>(other - hashes.begin());
  const std::vector<std::string> texts = group.all_gather(own);
  const std::vector<std::string> first = lines_of(texts.front()), its = lines_of(texts[rank]);
  size_t line = 0;
  while (line < first.size() && line < its.size() && first[line] == its[line]) ++line;
  const auto at = [&](const std::vector<std::string>& all) {
    return line < all.size() ? all[line] : "";
  };
  return Difference{static_cast<int>(rank), line, at(first), at(its)};
}

void require_agreement(const std::vector<std::string>& lines, const Group& group,
                       const std::string& expected, const std::string& none) {
  const auto difference = first_difference(lines, group);
  if (!difference) return;
  const auto or_none = [&](const std::string& line) { return line.empty() ? none : line; };
  throw AgreedError(str(expected, " on every rank, got ", or_none(difference->first),
                        " on rank 0 and ", or_none(difference->other), " on rank ",
                        difference->rank));
}

void wait_for_all(const Group* group, const std::string& what) {
  constexpr std::chrono::hours kLongest(72);
  if (group != nullptr) group->barrier(what, kLongest);
}

void on_first_rank(const Group* group, const std::string& prefix,
                   const std::function<void()>& work) {
  if (group == nullptr) return work();
  std::exception_ptr thrown;
  std::string message;  // 'u', the tensor, a new line and the sentence, or 'm' and the sentence
  if (group->is_first()) {
    try {
      work();
    } catch (const UserError& error) {
      thrown = std::make_exception_ptr(AgreedError(error));
      message = str('u', error.tensor(), '\n', error.what());
    } catch (const std::exception& error) {
      thrown = std::current_exception();
      message = str('m', error.what());
    }
  }
  wait_for_all(group, "waiting for rank 0");
  message = group->broadcast(message);
  if (thrown) std::rethrow_exception(thrown);
  if (message.empty()) return;
  if (const size_t end = message.find('\n'); message.front() == 'u')
    throw AgreedError(message.substr(end + 1), message.substr(1, end - 1));
  throw MachineError(prefix + message.substr(1));
}

void even_launched(const Group& group) {
  OutsideCollectives* const outside = group.outside();
  if (outside == nullptr) return;  // nobody is watched
  const auto own = static_cast<int64_t>(group.launched_on_gpu());
  const int64_t most = group.all_reduce(own, Reduce::kMax);
  for (int64_t count = own; count < most; ++count) outside->count();
}

}  // namespace flashstep
