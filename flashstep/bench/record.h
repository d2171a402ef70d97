// What was measured: one implementation on one case, and what became of it.
#pragma once

#include <algorithm>
#include <concepts>
#include <cstdint>
#include <exception>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <nlohmann/json_fwd.hpp>

#include "flashstep/base/text.h"
#include "flashstep/measure/table.h"

namespace flashstep::tools {

using flashstep::contains;  // of text; and of lists:
template <typename List, typename Value>
requires(!std::convertible_to<List, std::string_view>) bool contains(const List& list,
                                                                     const Value& value) {
  return std::find(list.begin(), list.end(), value) != list.end();
}
// An empty list wants everything.
template <typename List, typename Value>
bool is_wanted(const List& list, const Value& value) {
  return list.empty() || contains(list, value);
}

// What became of what was measured. A benchmark goes on with the next case, whatever it was; how
// the command ends: benchmark.h.
enum class Status { kMeasured, kOutOfMemory, kRefused, kFailed };

struct Outcome {
  Status status = Status::kMeasured;
  std::string why = {};  // may be empty

  bool measured() const { return status == Status::kMeasured; }
  bool failed() const { return status == Status::kFailed; }
  std::string word() const;      // "", "OOM", "refused", "failed": a cell
  std::string sentence() const;  // "OOM: why", or the word alone
  bool operator==(const Outcome&) const = default;
};

// "OOM: why", "refused: why", "failed: why"; what begins with none of them failed.
Outcome outcome_from(const std::string& sentence);

// Of an exception: memory that was too small, a UserError (refused), anything else (failed).
// Interrupted is thrown on.
Outcome outcome_of(const std::exception_ptr& error);
// Of a call.
Outcome attempt(const std::function<void()>& work);

// Of processes that ended with `exit_code`, by the sentence that says how: "rank 1 of 4 (process
// 4711) ended with exit code 1: ..."; `kills`: measure::oom_kills() before they began.
Outcome outcome_of_ranks(const std::string& failure, int exit_code, int ranks,
                         std::optional<uint64_t> kills);

bool is_out_of_memory(const std::string& words);  // of an error's message

// After an error of CUDA's own nothing can be measured any more in this process.
bool gpu_answers();

// {"model", "xl"}, {"context", 128}: what tells one case from another, in the order of columns.
using Fields = std::vector<std::pair<std::string, measure::Cell>>;

struct Record {
  Fields key = {};
  std::string what = {};  // the key in words, for sentences
  std::string implementation = {};
  bool ours = true;                                         // its failure is the command's
  std::map<std::string, std::vector<double>> samples = {};  // "forward": seconds, a value a step
  std::map<std::string, measure::Cell> facts = {};  // "peak_bytes", "by"; absent: not measured
  Outcome outcome = {};
  std::string fault = {};  // what is wrong with what it computed; empty: nothing

  bool has(const std::string& series) const;
  const std::vector<double>& series(const std::string& name) const;  // empty: not measured
  double median(const std::string& series) const;                    // NaN: not measured
  double quantile(const std::string& series, double q) const;
  measure::Cell cell(const std::string& name) const;  // a fact, or of the key; else empty
  double number(const std::string& name) const;       // of that; NaN: there is none
  std::string text(const std::string& name) const;    // likewise, as people read it; ""
  // Appends its samples; its facts take the place of ours, and so does what became of it.
  void take(const Record& more);
  void drop_samples() { samples.clear(); }
};

// Those of one run, in the order of the table.
class Records {
 public:
  Records() = default;
  Records(std::vector<Record> all) {
    for (Record& record : all) add(std::move(record));
  }

  const std::vector<Record>& all() const { return all_; }
  std::vector<Record>& all() { return all_; }  // their keys and their order stay
  bool empty() const { return all_.empty(); }
  auto begin() const { return all_.begin(); }
  auto end() const { return all_.end(); }
  void add(Record record);

  // The first one that `chosen` takes; null without one.
  const Record* find(const std::function<bool(const Record&)>& chosen) const;
  // Those of one case, found without a look at the others.
  std::vector<const Record*> of_case(const Record& one) const;
  // The same case by this implementation.
  const Record* find(const Record& one, const std::string& implementation) const;
  // Of those of the same case that `chosen` takes and that have the series, the one of the smallest
  // median; null without one.
  const Record* fastest(const Record& one, const std::string& series,
                        const std::function<bool(const Record&)>& chosen) const;
  Records where(const std::function<bool(const Record&)>& chosen) const;
  bool is_first_of_case(const Record& one) const;  // one of these very records
  // The first record of every case.
  std::vector<const Record*> cases() const;
  // Every different value of `name`, in the order in which they come.
  std::vector<std::string> distinct(const std::function<std::string(const Record&)>& name) const;
  // Parts of one name each, in the order in which they come.
  std::vector<std::pair<std::string, Records>> grouped(
      const std::function<std::string(const Record&)>& name) const;

 private:
  std::vector<Record> all_;
  std::map<Fields, std::vector<size_t>> cases_;  // places in `all_`
};

// For nlohmann's conversions; and as one line of ASCII.
void to_json(nlohmann::ordered_json& json, const Record& record);
void from_json(const nlohmann::ordered_json& json, Record& record);
std::string to_json(const Record& record);
std::string to_json(const std::vector<Record>& records);
Record record_from_json(const std::string& line);

}  // namespace flashstep::tools
