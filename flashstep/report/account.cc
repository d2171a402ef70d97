#include "flashstep/report/account.h"

namespace flashstep::report {

BenchReport account_report(const Account& account) {
  BenchReport report;
  report.table = account.table;
  report.table.notes.insert(report.table.notes.end(), account.derivation.begin(),
                            account.derivation.end());
  return report;
}

std::vector<Account> all_accounts() {
  return {account_step({}), account_block({}), account_attention({}), account_sharding({}),
          account_ring({}), account_mesh({}),  account_bounds({}),    account_recompute({})};
}

}  // namespace flashstep::report
