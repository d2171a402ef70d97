#include "flashstep/profile/account.h"

#include "flashstep/error.h"
#include "flashstep/profile/account_table.h"

namespace flashstep::tools {

void check_one_of(const char* what, const std::string& got,
                  const std::vector<std::string>& allowed) {
  require(contains(allowed, got), "[account] expected ", what, " to be one of ", join(allowed),
          ", got \"", got, "\"");
}

BenchReport account_report(measure::Table table) {
  BenchReport report;
  report.table = std::move(table);
  return report;
}

std::vector<NamedTable> all_accounts() {
  return {{"step", account_step({})},           {"block", account_block({})},
          {"attention", account_attention({})}, {"sharding", account_sharding({})},
          {"ring", account_ring({})},           {"mesh", account_mesh({})},
          {"bounds", account_bounds({})},       {"recompute", account_recompute({})}};
}

}  // namespace flashstep::tools
