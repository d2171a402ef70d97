// Sources: flashstep/base/fields.cc
// Any bytes as a JSON config: refused with UserError, or read and written back to the same values.
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <string>
#include <vector>

#include "flashstep/base/error.h"
#include "flashstep/base/fields.h"

namespace {

struct Inner {
  int64_t steps = 10;
  std::vector<std::string> names = {"a"};
  void visit(flashstep::FieldVisitor& v) {
    v.field("steps", steps, {1, 1000}, "a number");
    v.field("names", names, "some names");
  }
};

struct Outer {
  bool on = true;
  double rate = 0.5;
  std::string kind = "cosine";
  Inner inner;
  void visit(flashstep::FieldVisitor& v) {
    v.field("on", on, "a switch");
    v.field("rate", rate, {0.0, 1.0}, "a rate");
    v.field("kind", kind, {"cosine", "constant"}, "a choice");
    v.section("inner", inner, "a section");
  }
};

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::string json(reinterpret_cast<const char*>(data), size);
  try {
    Outer config;
    flashstep::read_json(config, json, "fuzz");
    if (!(config.rate >= 0 && config.rate <= 1)) std::abort();
    if (config.inner.steps < 1 || config.inner.steps > 1000) std::abort();
    Outer again;
    flashstep::read_json(again, flashstep::write_json(config), "written");
    if (flashstep::write_json(again) != flashstep::write_json(config)) std::abort();
  } catch (const flashstep::UserError&) {
  }
  return 0;
}
