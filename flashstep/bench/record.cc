#include "flashstep/bench/record.h"

#include <algorithm>
#include <cmath>
#include <new>
#include <type_traits>

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

OrderedJson json_of_cell(const Cell& cell) {
  return std::visit(
      [](const auto& value) -> OrderedJson {
        if constexpr (std::is_same_v<std::decay_t<decltype(value)>, std::monostate>)
          return OrderedJson::array();  // null is NaN
        else
          return value;
      },
      cell.value());
}

Cell cell_of_json(const OrderedJson& json) {
  if (json.is_array()) return {};
  if (json.is_null()) return NAN;
  if (json.is_string()) return json.get<std::string>();
  if (json.is_number_integer()) return json.get<int64_t>();
  return json.get<double>();
}

const Cell* find_cell(const Record& record, const std::string& name) {
  const auto fact = record.facts.find(name);
  if (fact != record.facts.end()) return &fact->second;
  for (const auto& [key, value] : record.key) {
    if (key == name) return &value;
  }
  return nullptr;
}

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

double Record::number(const std::string& name) const {
  const Cell* cell = find_cell(*this, name);
  return cell == nullptr ? NAN : cell->number();
}

std::string Record::text(const std::string& name) const {
  const Cell* cell = find_cell(*this, name);
  if (cell == nullptr || *cell == Cell()) return "";
  const auto* words = std::get_if<std::string>(&cell->value());
  return words != nullptr ? *words : measure::display(*cell, {});
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

const Record* Records::find(const Record& of_case, const std::string& implementation) const {
  return find([&](const Record& one) {
    return one.implementation == implementation && one.key == of_case.key;
  });
}

const Record* Records::fastest(const Record& of_case, const std::string& series,
                               const std::function<bool(const Record&)>& chosen) const {
  const Record* best = nullptr;
  for (const Record& record : all_) {
    if (record.key != of_case.key || !record.has(series) || !chosen(record)) continue;
    if (best == nullptr || record.median(series) < best->median(series)) best = &record;
  }
  return best;
}

Records Records::where(const std::function<bool(const Record&)>& chosen) const {
  Records part;
  std::copy_if(all_.begin(), all_.end(), std::back_inserter(part.all_), chosen);
  return part;
}

bool Records::is_first_of_case(const Record& one) const {
  return find([&](const Record& other) { return other.key == one.key; }) == &one;
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

std::string to_json(const Record& record) {
  OrderedJson json = {{"key", OrderedJson::object()},
                      {"what", record.what},
                      {"implementation", record.implementation},
                      {"ours", record.ours},
                      {"samples", record.samples}};
  for (const auto& [name, value] : record.key) json["key"][name] = json_of_cell(value);
  for (const auto& [name, value] : record.facts) json["facts"][name] = json_of_cell(value);
  if (!record.outcome.measured()) json["outcome"] = record.outcome.sentence();
  if (!record.fault.empty()) json["fault"] = record.fault;
  return json.dump(-1, ' ', /*ensure_ascii=*/true, OrderedJson::error_handler_t::replace);
}

Record record_from_json(const std::string& line) {
  const OrderedJson json = OrderedJson::parse(line);
  Record record;
  for (const auto& [name, value] : json.at("key").items())
    record.key.emplace_back(name, cell_of_json(value));
  record.what = json.at("what");
  record.implementation = json.at("implementation");
  record.ours = json.at("ours");
  for (const auto& [name, values] : json.at("samples").items()) {
    for (const OrderedJson& value : values)
      record.samples[name].push_back(cell_of_json(value).number());
  }
  const OrderedJson facts = json.value("facts", OrderedJson::object());
  for (const auto& [name, value] : facts.items()) record.facts[name] = cell_of_json(value);
  if (json.contains("outcome")) record.outcome = outcome_from(json["outcome"]);
  record.fault = json.value("fault", "");
  return record;
}

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
