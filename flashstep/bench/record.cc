#include "flashstep/bench/record.h"

#include <algorithm>
#include <new>

#include <c10/util/Exception.h>
#include <nlohmann/json.hpp>

#include "flashstep/base/text.h"
#include "flashstep/error.h"
#include "flashstep/measure/gpu.h"
#include "flashstep/measure/memory.h"
#include "flashstep/measure/stats.h"

namespace flashstep::tools {
namespace {

using OrderedJson = nlohmann::ordered_json;
using measure::Cell;

constexpr const char* kWords[] = {"", "OOM", "refused", "failed"};  // by Status

// The words of a process in "rank 0 of 1 (process 4711) ended with exit code 1: ...".
std::string own_words(const std::string& failure) {
  const size_t end = failure.find("exit code ");
  const size_t own = end == std::string::npos ? end : failure.find(": ", end);
  return own == std::string::npos ? failure : failure.substr(own + 2);
}

}  // namespace

bool Record::has(const std::string& name) const { return !series(name).empty(); }

const std::vector<double>& Record::series(const std::string& name) const {
  static const std::vector<double> none;
  const auto found = samples.find(name);
  return found == samples.end() ? none : found->second;
}

double Record::median(const std::string& name) const { return measure::median(series(name)); }

double Record::quantile(const std::string& name, double q) const {
  return measure::quantile(series(name), q);
}

Cell Record::cell(const std::string& name) const {
  if (const auto fact = facts.find(name); fact != facts.end()) return fact->second;
  for (const auto& [field, value] : key) {
    if (field == name) return value;
  }
  return {};
}

double Record::number(const std::string& name) const { return cell(name).number(); }

std::string Record::text(const std::string& name) const {
  const Cell value = cell(name);
  return value == Cell() ? "" : measure::display(value, {});
}

void Record::take(const Record& more) {
  for (const auto& [name, values] : more.samples) {
    auto& ours = samples[name];
    ours.insert(ours.end(), values.begin(), values.end());
  }
  for (const auto& [name, value] : more.facts) facts[name] = value;
  if (!more.outcome.measured()) outcome = more.outcome;
  if (!more.fault.empty()) fault = more.fault;
}

const Record* Records::find(const std::function<bool(const Record&)>& chosen) const {
  const auto found = std::find_if(all_.begin(), all_.end(), chosen);
  return found == all_.end() ? nullptr : &*found;
}

void Records::add(Record record) {
  cases_[record.key].push_back(all_.size());
  all_.push_back(std::move(record));
}

std::vector<const Record*> Records::of_case(const Record& one) const {
  std::vector<const Record*> found;
  if (const auto places = cases_.find(one.key); places != cases_.end()) {
    for (const size_t place : places->second) found.push_back(&all_[place]);
  }
  return found;
}

const Record* Records::find(const Record& one, const std::string& implementation) const {
  for (const Record* record : of_case(one)) {
    if (record->implementation == implementation) return record;
  }
  return nullptr;
}

const Record* Records::fastest(const Record& one, const std::string& series,
                               const std::function<bool(const Record&)>& chosen) const {
  const Record* best = nullptr;
  for (const Record* record : of_case(one)) {
    if (!record->has(series) || !chosen(*record)) continue;
    if (best == nullptr || record->median(series) < best->median(series)) best = record;
  }
  return best;
}

Records Records::where(const std::function<bool(const Record&)>& chosen) const {
  Records part;
  for (const Record& record : all_) {
    if (chosen(record)) part.add(record);
  }
  return part;
}

bool Records::is_first_of_case(const Record& one) const {
  const auto same = of_case(one);
  return !same.empty() && same.front() == &one;
}

std::vector<const Record*> Records::cases() const {
  std::vector<const Record*> firsts;
  for (const Record& record : all_) {
    if (is_first_of_case(record)) firsts.push_back(&record);
  }
  return firsts;
}

std::vector<std::string> Records::distinct(
    const std::function<std::string(const Record&)>& name) const {
  std::vector<std::string> names;
  for (const Record& record : all_) {
    if (!contains(names, name(record))) names.push_back(name(record));
  }
  return names;
}

std::vector<std::pair<std::string, Records>> Records::grouped(
    const std::function<std::string(const Record&)>& name) const {
  std::vector<std::pair<std::string, Records>> parts;
  for (const std::string& one : distinct(name))
    parts.emplace_back(one, where([&](const Record& record) { return name(record) == one; }));
  return parts;
}

void to_json(OrderedJson& json, const Record& r) {
  json = {{"key", r.key},
          {"what", r.what},
          {"implementation", r.implementation},
          {"ours", r.ours},
          {"samples", r.samples},
          {"facts", r.facts},
          {"outcome", r.outcome.sentence()},
          {"fault", r.fault}};
}

void from_json(const OrderedJson& json, Record& r) {
  json.at("key").get_to(r.key);
  r.what = json.at("what");
  r.implementation = json.at("implementation");
  r.ours = json.at("ours");
  for (const auto& [name, values] : json.at("samples").items()) {
    // JSON writes NaN as null, which reads as an empty cell, whose number is NaN.
    for (const auto& value : values.get<std::vector<Cell>>())
      r.samples[name].push_back(value.number());
  }
  json.at("facts").get_to(r.facts);
  const std::string outcome = json.at("outcome");
  if (!outcome.empty()) r.outcome = outcome_from(outcome);
  r.fault = json.at("fault");
}

static std::string one_line(const OrderedJson& json) {
  return json.dump(-1, ' ', /*ensure_ascii=*/true, OrderedJson::error_handler_t::replace);
}
std::string to_json(const Record& record) { return one_line(record); }
std::string to_json(const std::vector<Record>& records) { return one_line(records); }

Record record_from_json(const std::string& line) { return OrderedJson::parse(line).get<Record>(); }

std::string Outcome::word() const { return kWords[static_cast<size_t>(status)]; }

std::string Outcome::sentence() const { return why.empty() ? word() : word() + ": " + why; }

Outcome outcome_from(const std::string& sentence) {
  for (const Status status : {Status::kOutOfMemory, Status::kRefused, Status::kFailed}) {
    const std::string word = Outcome{status}.word();
    if (sentence == word) return {status, ""};
    if (sentence.starts_with(word + ": ")) return {status, sentence.substr(word.size() + 2)};
  }
  return {is_out_of_memory(sentence) ? Status::kOutOfMemory : Status::kFailed, sentence};
}

Outcome outcome_of(const std::exception_ptr& error) {
  try {
    std::rethrow_exception(error);
  } catch (const Interrupted&) {
    throw;
  } catch (const c10::OutOfMemoryError& what) {
    return {Status::kOutOfMemory, first_line(what.what_without_backtrace())};
  } catch (const std::bad_alloc&) {
    return {Status::kOutOfMemory, ""};
  } catch (const UserError& what) {
    const Outcome said = outcome_from(first_line(what.what()));
    return said.failed() ? Outcome{Status::kRefused, said.why} : said;
  } catch (const c10::Error& what) {
    return outcome_from(first_line(what.what_without_backtrace()));
  } catch (const std::exception& what) {
    return outcome_from(first_line(what.what()));
  }
}

Outcome attempt(const std::function<void()>& work) {
  try {
    work();
    return {};
  } catch (...) {
    return outcome_of(std::current_exception());
  }
}

Outcome outcome_of_ranks(const std::string& failure, int exit_code, int ranks,
                         std::optional<uint64_t> kills) {
  const std::string words = ranks == 1 ? own_words(failure) : failure;
  if (exit_code == 2) return {Status::kRefused, own_words(failure)};
  if (failure.find("SIGKILL") != std::string::npos && measure::may_have_killed_since(kills))
    return {Status::kOutOfMemory, words};
  return {is_out_of_memory(words) ? Status::kOutOfMemory : Status::kFailed, words};
}

bool is_out_of_memory(const std::string& words) {
  // LibTorch's allocators, and CUDA's libraries (CUBLAS_STATUS_ALLOC_FAILED).
  return contains(words, "out of memory") || contains(words, "can't allocate memory") ||
         contains(words, "ALLOC_FAILED");
}

bool gpu_answers() {
  return attempt([] { measure::synchronize_gpu(); }).measured();
}

}  // namespace flashstep::tools
