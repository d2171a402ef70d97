#include "flashstep/detail/environment.h"

#include <charconv>
#include <cstdint>
#include <optional>
#include <string_view>
#include <utility>

#include "flashstep/error.h"

extern char** environ;

namespace flashstep {
namespace {

constexpr int kTorchPort = 29500;  // torch's default, c10d::TCPStoreOptions::kDefaultPort
// Ports that follow from a job's number: below those that Linux gives to outgoing connections
// (32768 and up, net.ipv4.ip_local_port_range).
constexpr uint64_t kFirstPort = 20000, kPorts = 10000;

bool has(const Variables& variables, const std::string& name) {
  const auto found = variables.find(name);
  return found != variables.end() && !found->second.empty();
}

std::string text(const Variables& variables, const std::string& name,
                 const std::string& otherwise = "") {
  return has(variables, name) ? variables.at(name) : otherwise;
}

int number(const Variables& variables, const std::string& name) {
  require(has(variables, name), "[comm] expected ", name, " to be set, got nothing");
  const std::string& digits = variables.at(name);
  int value = 0;
  const auto result = std::from_chars(digits.data(), digits.data() + digits.size(), value);
  require(result.ec == std::errc() && result.ptr == digits.data() + digits.size() && value >= 0,
          "[comm] expected ", name, " to be a whole number from 0, got \"", digits, "\"");
  return value;
}

int number(const Variables& variables, const std::string& name, int otherwise) {
  return has(variables, name) ? number(variables, name) : otherwise;
}

// A port that all ranks of a job compute from what names it (FNV-1a, 64 bits).
int port_of_job(const std::string& job) {
  uint64_t hash = 0xcbf29ce484222325;
  for (const char c : job) hash = (hash ^ static_cast<unsigned char>(c)) * 0x100000001b3;
  return static_cast<int>(kFirstPort + hash % kPorts);
}

// The first number of Slurm's "2(x3),1": the tasks of node `index`, each entry being COUNT(xNODES).
std::optional<int> tasks_on_node(const std::string& list, int index) {
  size_t at = 0;
  while (at < list.size()) {
    int count = 0, nodes = 1;
    auto result = std::from_chars(list.data() + at, list.data() + list.size(), count);
    if (result.ec != std::errc()) return std::nullopt;
    at = static_cast<size_t>(result.ptr - list.data());
    if (list.compare(at, 2, "(x") == 0) {
      result = std::from_chars(list.data() + at + 2, list.data() + list.size(), nodes);
      if (result.ec != std::errc()) return std::nullopt;
      at = static_cast<size_t>(result.ptr - list.data()) + 1;  // after ')'
    }
    if (index < nodes) return count;
    index -= nodes;
    ++at;  // after ','
  }
  return std::nullopt;
}

// What every launcher's ranks must fulfil.
void check(const Environment& environment) {
  require(environment.world_size >= 1, "[comm] expected at least one rank, got a world size of ",
          environment.world_size, " from ", environment.launcher);
  require(environment.rank < environment.world_size, "[comm] expected a rank below the world size ",
          environment.world_size, ", got rank ", environment.rank, " from ", environment.launcher);
  require(environment.local_world_size >= 1 &&
              environment.local_world_size <= environment.world_size &&
              environment.local_rank < environment.local_world_size,
          "[comm] expected a local rank below the number of ranks on this machine, and that within "
          "the world size ",
          environment.world_size, ", got local rank ", environment.local_rank, " of ",
          environment.local_world_size, " from ", environment.launcher);
  require(environment.master_port >= (environment.world_size > 1 ? 1 : 0) &&
              environment.master_port <= 65535,
          "[comm] expected MASTER_PORT from 1 to 65535, got ", environment.master_port);
}

// MASTER_ADDR and MASTER_PORT, else what the launcher says: `host` and a port of the job.
void meet_at(const Variables& variables, const std::string& host, Environment& environment) {
  environment.master_address = text(variables, "MASTER_ADDR", host);
  require(!environment.master_address.empty(),
          "[comm] expected MASTER_ADDR to name the machine of rank 0 (", environment.launcher,
          " does not tell): mpirun -x MASTER_ADDR=HOST ...");
  environment.master_port = number(variables, "MASTER_PORT", port_of_job(environment.job));
}

Environment from_open_mpi(const Variables& variables) {
  Environment environment;
  environment.launcher = "mpirun";
  environment.rank = number(variables, "OMPI_COMM_WORLD_RANK");
  environment.world_size = number(variables, "OMPI_COMM_WORLD_SIZE");
  environment.local_rank = number(variables, "OMPI_COMM_WORLD_LOCAL_RANK");
  environment.local_world_size = number(variables, "OMPI_COMM_WORLD_LOCAL_SIZE");
  environment.job = str("mpirun/", text(variables, "PMIX_NAMESPACE",
                                        text(variables, "OMPI_MCA_ess_base_jobid", "job")));
  const bool one_machine = environment.local_world_size == environment.world_size;
  meet_at(variables, one_machine ? "127.0.0.1" : "", environment);
  return environment;
}

Environment from_slurm(const Variables& variables) {
  Environment environment;
  environment.launcher = "srun";
  environment.rank = number(variables, "SLURM_PROCID");
  environment.world_size = number(variables, "SLURM_STEP_NUM_TASKS");
  environment.local_rank = number(variables, "SLURM_LOCALID");
  const bool one_machine = number(variables, "SLURM_STEP_NUM_NODES", 1) == 1;
  environment.local_world_size = environment.world_size;
  if (!one_machine) {
    const std::string list = text(variables, "SLURM_STEP_TASKS_PER_NODE");
    const auto tasks = tasks_on_node(list, number(variables, "SLURM_NODEID"));
    require(tasks.has_value(), "[comm] expected SLURM_STEP_TASKS_PER_NODE like 2(x3),1, got \"",
            list, "\"");
    environment.local_world_size = *tasks;
  }
  environment.job =
      str("srun/", text(variables, "SLURM_JOB_ID", "job"), ".", text(variables, "SLURM_STEP_ID"),
          "/attempt_", number(variables, "SLURM_RESTART_COUNT", 0));
  meet_at(variables, one_machine ? "127.0.0.1" : first_host(text(variables, "SLURM_STEP_NODELIST")),
          environment);
  return environment;
}

// What mpirun or srun says, if one of them started this process.
std::optional<Environment> from_launcher(const Variables& variables) {
  if (has(variables, "OMPI_COMM_WORLD_RANK")) return from_open_mpi(variables);
  if (has(variables, "SLURM_STEP_ID") && has(variables, "SLURM_PROCID")) {
    return from_slurm(variables);
  }
  return std::nullopt;
}

// RANK and WORLD_SIZE: torchrun, flashstep launch, and people.
Environment from_rank(const Variables& variables) {
  Environment environment;
  environment.launcher = has(variables, "TORCHELASTIC_RUN_ID") ? "torchrun"
                         : has(variables, "FLASHSTEP_LAUNCH")  ? "flashstep launch"
                                                               : "RANK and WORLD_SIZE";
  environment.rank = number(variables, "RANK");
  environment.world_size = number(variables, "WORLD_SIZE");
  const bool alone = environment.world_size == 1;
  const std::string address = text(variables, "MASTER_ADDR");
  const bool one_machine =
      alone || address == "127.0.0.1" || address == "localhost" || address == "::1";
  if (!one_machine) {
    require(!address.empty(), "[comm] expected MASTER_ADDR to name the machine of rank 0 (",
            environment.world_size, " ranks, from ", environment.launcher, "), got nothing");
    const std::pair<const char*, const char*> places[] = {
        {"LOCAL_RANK", "this rank's number on its machine, by which it takes a GPU"},
        {"LOCAL_WORLD_SIZE", "how many ranks share the cores of this machine"}};
    for (const auto& [name, meaning] : places) {
      require(has(variables, name), "[comm] expected ", name, " (", meaning,
              ") beside RANK and WORLD_SIZE, as ranks may be on several machines (MASTER_ADDR=",
              address, "), got nothing; with MASTER_ADDR=127.0.0.1 all are on this one");
    }
  }
  environment.local_rank = environment.rank;
  environment.local_world_size = environment.world_size;
  environment.master_address = address.empty() ? environment.master_address : address;
  environment.master_port = number(variables, "MASTER_PORT", kTorchPort);
  const std::string agent = text(variables, "TORCHELASTIC_USE_AGENT_STORE");
  environment.agent_store = agent == "True" || agent == "true" || agent == "1";
  environment.job = str(text(variables, "TORCHELASTIC_RUN_ID", "job"), "/attempt_",
                        number(variables, "TORCHELASTIC_RESTART_COUNT", 0));
  return environment;
}

// RANK and WORLD_SIZE beside mpirun's or srun's own must say the same: else they were set once and
// copied to every process.
void check_given(const Variables& variables, const Environment& environment) {
  require(number(variables, "WORLD_SIZE", environment.world_size) == environment.world_size &&
              number(variables, "RANK", environment.rank) == environment.rank,
          "[comm] expected RANK and WORLD_SIZE to agree with ", environment.launcher, "'s rank ",
          environment.rank, " of ", environment.world_size,
          ", got RANK=", text(variables, "RANK", "(unset)"),
          " and WORLD_SIZE=", text(variables, "WORLD_SIZE", "(unset)"), "; leave them unset");
}

}  // namespace

Environment read_environment(const Variables& variables) {
  const bool rank = has(variables, "RANK"), size = has(variables, "WORLD_SIZE");
  // Between mpirun or srun and this process there may be torchrun or we, or, in a step of one task,
  // a person at work.
  const bool inner = has(variables, "TORCHELASTIC_RUN_ID") || has(variables, "FLASHSTEP_LAUNCH");
  std::optional<Environment> launched;
  if (!(rank && size && inner)) launched = from_launcher(variables);
  if (launched && launched->world_size == 1 && rank && size) launched.reset();

  Environment environment;
  if (launched) {
    environment = *launched;
    check_given(variables, environment);
  } else if (rank && size) {
    environment = from_rank(variables);
  } else {
    require(rank == size, "[comm] expected both RANK and WORLD_SIZE or neither, got only ",
            rank ? "RANK" : "WORLD_SIZE");
    return environment;
  }
  environment.local_rank = number(variables, "LOCAL_RANK", environment.local_rank);
  environment.local_world_size =
      number(variables, "LOCAL_WORLD_SIZE", environment.local_world_size);
  check(environment);
  return environment;
}

Variables variables_of_process() {
  Variables variables;
  for (char** entry = environ; *entry != nullptr; ++entry) {
    const std::string_view assignment(*entry);
    const size_t equals = assignment.find('=');
    if (equals == std::string_view::npos) continue;
    variables.emplace(assignment.substr(0, equals), assignment.substr(equals + 1));
  }
  return variables;
}

std::string first_host(const std::string& host_list) {
  std::string host;
  for (size_t at = 0; at < host_list.size() && host_list[at] != ','; ++at) {
    if (host_list[at] != '[') {
      host += host_list[at];
      continue;
    }
    const size_t close = host_list.find(']', at);
    const size_t end = host_list.find_first_of(",-]", at);
    require(close != std::string::npos && end > at + 1,
            "[comm] expected a Slurm host list like gpu[01-03],login, got \"", host_list, "\"");
    host += host_list.substr(at + 1, end - at - 1);
    at = close;
  }
  require(!host.empty(), "[comm] expected a Slurm host list like gpu[01-03],login, got \"",
          host_list, "\"");
  return host;
}

}  // namespace flashstep
