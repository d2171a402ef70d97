// Configuration as plain structs that name their own fields once. From that one list come reading
// JSON, writing it, `--set a.b=c`, the messages about typos and ranges, and the reference in
// `--help`.
//
//   struct ScheduleConfig {
//     int64_t warmup_steps = 100;
//     void visit(FieldVisitor& v) {
//       v.field("warmup_steps", warmup_steps, {0, 1'000'000'000}, "steps of linear warm-up");
//     }
//   };
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace flashstep {

template <typename T>
struct Range {
  T low, high;  // both allowed
};

class FieldVisitor {
 public:
  virtual ~FieldVisitor() = default;
  virtual void field(const char* name, bool& value, const char* help) = 0;
  virtual void field(const char* name, int64_t& value, Range<int64_t> allowed,
                     const char* help) = 0;
  virtual void field(const char* name, double& value, Range<double> allowed, const char* help) = 0;
  // `choices` empty: any text.
  virtual void field(const char* name, std::string& value, const std::vector<std::string>& choices,
                     const char* help) = 0;
  virtual void field(const char* name, std::vector<std::string>& value, const char* help) = 0;

  // A nested struct with visit() of its own.
  template <typename Section>
  void section(const char* name, Section& section, const char* help) {
    if (!begin(name, help)) return;
    section.visit(*this);
    end();
  }

 protected:
  virtual bool begin(const char* name, const char* help) = 0;  // false: skip this section
  virtual void end() = 0;
};

namespace internal {
// Type erasure: what a struct with visit() looks like to the functions below.
class Visitable {
 public:
  virtual ~Visitable() = default;
  virtual void visit(FieldVisitor& visitor) = 0;
};
template <typename Config>
class VisitableOf : public Visitable {
 public:
  explicit VisitableOf(Config& config) : config_(config) {}
  void visit(FieldVisitor& visitor) override { config_.visit(visitor); }

 private:
  Config& config_;
};
void read_json(Visitable& config, const std::string& json, const std::string& source);
std::string write_json(Visitable& config);
void set_field(Visitable& config, const std::string& assignment);
std::string describe_fields(Visitable& config);
std::vector<std::string> field_paths(Visitable& config);
}  // namespace internal

// Overwrites the fields that `json` names; the others keep their values. UserError for malformed
// JSON, an unknown key (with the nearest valid one), a wrong type or a value out of range; `source`
// is the file's name.
template <typename Config>
void read_json(Config& config, const std::string& json, const std::string& source) {
  internal::VisitableOf<Config> visitable(config);
  internal::read_json(visitable, json, source);
}

// All fields, indented by two, in the order of visit(), ending in a newline.
template <typename Config>
std::string write_json(Config config) {
  internal::VisitableOf<Config> visitable(config);
  return internal::write_json(visitable);
}

// "a.b=value": value is JSON, or text where the field is text.
template <typename Config>
void set_field(Config& config, const std::string& assignment) {
  internal::VisitableOf<Config> visitable(config);
  internal::set_field(visitable, assignment);
}

// One line a field: path, default, allowed range, help.
template <typename Config>
std::string describe_fields(Config config) {
  internal::VisitableOf<Config> visitable(config);
  return internal::describe_fields(visitable);
}

// "model.d_model", ... (for shell completion)
template <typename Config>
std::vector<std::string> field_paths(Config config) {
  internal::VisitableOf<Config> visitable(config);
  return internal::field_paths(visitable);
}

}  // namespace flashstep
