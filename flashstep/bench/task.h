// Tasks of the processes that a benchmark starts, as JSON: a task is a struct with
// NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE; the case in it has the names and the checks of its visit().
#pragma once

#include <string>

#include <nlohmann/json.hpp>

#include "flashstep/detail/fields.h"

namespace flashstep::tools {

template <typename Case>
concept NamesItsFields = requires(Case c, FieldVisitor& visitor) {
  c.visit(visitor);
};

template <NamesItsFields Case>
void to_json(nlohmann::json& json, const Case& c) {
  json = nlohmann::json::parse(write_json(c));
}
template <NamesItsFields Case>
void from_json(const nlohmann::json& json, Case& c) {
  read_json(c, json.dump(), "the task of a process");
}

template <typename Task>
std::string write_task(const Task& task) {
  return nlohmann::json(task).dump();
}
template <typename Task>
Task read_task(const std::string& text) {
  return nlohmann::json::parse(text).get<Task>();
}

}  // namespace flashstep::tools
