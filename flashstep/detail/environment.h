// Who this process is among the processes of a job, as the program that started it says: torchrun,
// Open MPI's mpirun, Slurm's srun, `flashstep launch`, or a person who set the variables.
#pragma once

#include <map>
#include <string>

namespace flashstep {

struct Environment {
  int rank = 0;        // 0 .. world_size - 1, over all machines
  int world_size = 1;  // processes of the job
  int local_rank = 0;  // among the processes on this machine
  int local_world_size = 1;
  std::string master_address = "127.0.0.1";  // where the store is
  int master_port = 0;                       // 0: any free one (world size 1 only)
  // The store runs already, in torchrun's agent; else rank 0 holds it.
  bool agent_store = false;
  // Before every key in the store: differs between jobs, and between restarts of one.
  std::string job;
  // For people: "torchrun", "mpirun", "srun", "flashstep launch", "RANK and WORLD_SIZE", "nobody".
  std::string launcher = "nobody";
};

using Variables = std::map<std::string, std::string>;

// Reads, an inner launcher's variables before those of what it was started by:
//   RANK, WORLD_SIZE (torchrun, `flashstep launch` and people), TORCHELASTIC_RUN_ID,
//     TORCHELASTIC_RESTART_COUNT, TORCHELASTIC_USE_AGENT_STORE;
//   OMPI_COMM_WORLD_{RANK,SIZE,LOCAL_RANK,LOCAL_SIZE} (mpirun);
//   SLURM_{STEP_ID,PROCID,STEP_NUM_TASKS,LOCALID,STEP_NODELIST,STEP_TASKS_PER_NODE,NODEID} (srun).
// A person's RANK and WORLD_SIZE may repeat what mpirun or srun says, which tells the rest.
// LOCAL_RANK, LOCAL_WORLD_SIZE, MASTER_ADDR and MASTER_PORT hold for all of them; without, one
// machine's ranks meet at 127.0.0.1, srun's at the first node of its list, and the port follows
// from the job's number.
// Without any, one process of its own. UserError names the variable that is missing, is no number
// or contradicts another.
Environment read_environment(const Variables& variables);

Variables variables_of_process();
inline Environment read_environment() { return read_environment(variables_of_process()); }

// The first name in a Slurm host list: "gpu[01-03,7],login" -> "gpu01". UserError if it is
// malformed.
std::string first_host(const std::string& host_list);

}  // namespace flashstep
