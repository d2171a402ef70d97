#include "flashstep/detail/environment.h"

#include <functional>

#include <gtest/gtest.h>

#include "flashstep/error.h"

namespace flashstep {
namespace {

std::string mistake(const std::function<void()>& call) {
  try {
    call();
  } catch (const UserError& error) {
    return error.what();
  }
  return "no mistake";
}

std::string mistake(const Variables& variables) {
  return mistake([&] { read_environment(variables); });
}

// What torchrun sets for rank 5 of 8 on two machines (torch 2.11, distributed/elastic).
const Variables kTorchrun = {{"RANK", "5"},
                             {"WORLD_SIZE", "8"},
                             {"LOCAL_RANK", "1"},
                             {"LOCAL_WORLD_SIZE", "4"},
                             {"GROUP_RANK", "1"},
                             {"MASTER_ADDR", "node1"},
                             {"MASTER_PORT", "29511"},
                             {"TORCHELASTIC_RUN_ID", "job7"},
                             {"TORCHELASTIC_RESTART_COUNT", "2"},
                             {"TORCHELASTIC_USE_AGENT_STORE", "True"}};

// Two machines, two and one tasks.
const Variables kSlurm = {{"SLURM_JOB_ID", "812"},
                          {"SLURM_STEP_ID", "3"},
                          {"SLURM_PROCID", "2"},
                          {"SLURM_STEP_NUM_TASKS", "3"},
                          {"SLURM_LOCALID", "0"},
                          {"SLURM_NODEID", "1"},
                          {"SLURM_STEP_NUM_NODES", "2"},
                          {"SLURM_STEP_TASKS_PER_NODE", "2,1"},
                          {"SLURM_STEP_NODELIST", "gpu[07-08]"}};

const Variables kOpenMpi = {{"OMPI_COMM_WORLD_RANK", "2"},
                            {"OMPI_COMM_WORLD_SIZE", "4"},
                            {"OMPI_COMM_WORLD_LOCAL_RANK", "2"},
                            {"OMPI_COMM_WORLD_LOCAL_SIZE", "4"},
                            {"PMIX_NAMESPACE", "3094478849"}};

Variables with(Variables variables, const Variables& more) {
  for (const auto& [name, value] : more) variables[name] = value;
  return variables;
}

Variables without(Variables variables, const std::string& name) {
  variables.erase(name);
  return variables;
}

TEST(Environment, NobodyStartedMoreThanOne) {
  const Environment alone = read_environment(Variables{{"HOME", "/root"}});
  EXPECT_EQ(alone.rank, 0);
  EXPECT_EQ(alone.world_size, 1);
  EXPECT_EQ(alone.local_world_size, 1);
  EXPECT_EQ(alone.launcher, "nobody");
}

TEST(Environment, Torchrun) {
  const Environment environment = read_environment(kTorchrun);
  EXPECT_EQ(environment.rank, 5);
  EXPECT_EQ(environment.world_size, 8);
  EXPECT_EQ(environment.local_rank, 1);
  EXPECT_EQ(environment.local_world_size, 4);
  EXPECT_EQ(environment.master_address, "node1");
  EXPECT_EQ(environment.master_port, 29511);
  EXPECT_TRUE(environment.agent_store);
  EXPECT_EQ(environment.job, "job7/attempt_2");
  EXPECT_EQ(environment.launcher, "torchrun");
  EXPECT_FALSE(
      read_environment(with(kTorchrun, {{"TORCHELASTIC_USE_AGENT_STORE", "False"}})).agent_store);
}

TEST(Environment, RankAndWorldSizeByHand) {
  const Environment environment =
      read_environment(Variables{{"RANK", "1"}, {"WORLD_SIZE", "2"}, {"MASTER_ADDR", "localhost"}});
  EXPECT_EQ(environment.local_rank, 1);  // one machine: the same as the rank
  EXPECT_EQ(environment.local_world_size, 2);
  EXPECT_EQ(environment.master_port, 29500);
  EXPECT_EQ(environment.launcher, "RANK and WORLD_SIZE");
}

TEST(Environment, OpenMpi) {
  const Environment environment = read_environment(kOpenMpi);
  EXPECT_EQ(environment.rank, 2);
  EXPECT_EQ(environment.local_rank, 2);
  EXPECT_EQ(environment.master_address, "127.0.0.1");
  EXPECT_EQ(environment.launcher, "mpirun");
  EXPECT_GE(environment.master_port, 20000);
  EXPECT_LT(environment.master_port, 30000);
  const Variables other = with(kOpenMpi, {{"PMIX_NAMESPACE", "3094478850"}});
  EXPECT_NE(read_environment(other).master_port, environment.master_port);
  EXPECT_EQ(read_environment(with(kOpenMpi, {{"MASTER_PORT", "4711"}})).master_port, 4711);
}

TEST(Environment, Slurm) {
  const Environment environment = read_environment(kSlurm);
  EXPECT_EQ(environment.rank, 2);
  EXPECT_EQ(environment.world_size, 3);
  EXPECT_EQ(environment.local_rank, 0);
  EXPECT_EQ(environment.local_world_size, 1);
  EXPECT_EQ(environment.master_address, "gpu07");
  EXPECT_EQ(environment.job, "srun/812.3/attempt_0");
  // All ranks of the step, and nobody else, compute the same port.
  EXPECT_EQ(read_environment(with(kSlurm, {{"SLURM_PROCID", "0"}})).master_port,
            environment.master_port);
  EXPECT_NE(read_environment(with(kSlurm, {{"SLURM_STEP_ID", "4"}})).master_port,
            environment.master_port);
  const Variables uneven = with(kSlurm, {{"SLURM_STEP_TASKS_PER_NODE", "3(x2),5"},
                                         {"SLURM_STEP_NUM_TASKS", "11"},
                                         {"SLURM_NODEID", "2"}});
  EXPECT_EQ(read_environment(uneven).local_world_size, 5);
}

TEST(Environment, ABatchScriptIsNotAStep) {
  // sbatch sets these for its script, whose commands are not ranks.
  const Environment environment = read_environment(
      Variables{{"SLURM_JOB_ID", "812"}, {"SLURM_PROCID", "0"}, {"SLURM_NTASKS", "4"}});
  EXPECT_EQ(environment.world_size, 1);
}

TEST(Environment, TheInnerLauncherWins) {
  // torchrun on each of two machines, started by srun.
  const Variables both = with(kSlurm, kTorchrun);
  EXPECT_EQ(read_environment(both).rank, 5);
  EXPECT_EQ(read_environment(with(kSlurm, kOpenMpi)).rank, 2);
  EXPECT_EQ(read_environment(with(kSlurm, kOpenMpi)).launcher, "mpirun");
  EXPECT_EQ(read_environment(with(kSlurm, {{"WORLD_SIZE", "3"}})).rank, 2);  // says the same
}

// RANK=$SLURM_PROCID WORLD_SIZE=$SLURM_NTASKS in the script that srun starts, and the same of
// mpirun's: the launcher tells what was left out.
TEST(Environment, TheLauncherTellsWhatWasNotSetByHand) {
  const Variables in_slurm = with(
      kSlurm, {{"RANK", "2"}, {"WORLD_SIZE", "3"}, {"MASTER_ADDR", "node1"}, {"MASTER_PORT", "9"}});
  const Environment second = read_environment(in_slurm);
  EXPECT_EQ(second.rank, 2);
  EXPECT_EQ(second.local_rank, 0);
  EXPECT_EQ(second.local_world_size, 1);
  EXPECT_EQ(second.master_address, "node1");
  EXPECT_EQ(second.master_port, 9);
  EXPECT_EQ(read_environment(without(in_slurm, "MASTER_ADDR")).master_address, "gpu07");

  const Environment uneven =
      read_environment(with(in_slurm, {{"RANK", "7"},
                                       {"WORLD_SIZE", "8"},
                                       {"SLURM_PROCID", "7"},
                                       {"SLURM_STEP_NUM_TASKS", "8"},
                                       {"SLURM_STEP_TASKS_PER_NODE", "2(x3),1(x2)"},
                                       {"SLURM_NODEID", "4"}}));
  EXPECT_EQ(uneven.rank, 7);
  EXPECT_EQ(uneven.local_world_size, 1);

  const Environment of_mpi =
      read_environment(with(kOpenMpi, {{"RANK", "2"},
                                       {"WORLD_SIZE", "4"},
                                       {"MASTER_ADDR", "node1"},
                                       {"OMPI_COMM_WORLD_LOCAL_RANK", "0"},
                                       {"OMPI_COMM_WORLD_LOCAL_SIZE", "2"}}));
  EXPECT_EQ(of_mpi.rank, 2);
  EXPECT_EQ(of_mpi.local_rank, 0);
  EXPECT_EQ(of_mpi.local_world_size, 2);
  // What is set counts.
  const Variables own_place = {{"LOCAL_RANK", "1"}, {"LOCAL_WORLD_SIZE", "3"}};
  EXPECT_EQ(read_environment(with(in_slurm, own_place)).local_rank, 1);
  EXPECT_EQ(read_environment(with(in_slurm, own_place)).local_world_size, 3);
}

// A shell that is the only task of a step says nothing of the ranks that a person starts in it.
TEST(Environment, AStepOfOneTaskTellsNothingOfOtherRanks) {
  const Variables shell = with(kSlurm, {{"SLURM_PROCID", "0"},
                                        {"SLURM_STEP_NUM_TASKS", "1"},
                                        {"SLURM_STEP_NUM_NODES", "1"},
                                        {"RANK", "1"},
                                        {"WORLD_SIZE", "2"}});
  const Environment here = read_environment(with(shell, {{"MASTER_ADDR", "127.0.0.1"}}));
  EXPECT_EQ(here.rank, 1);
  EXPECT_EQ(here.local_rank, 1);
  EXPECT_EQ(here.local_world_size, 2);
  EXPECT_NE(mistake(with(shell, {{"MASTER_ADDR", "gpu07"}})).find("expected LOCAL_RANK"),
            std::string::npos);
}

TEST(Environment, NamesWhatIsMissingOrWrong) {
  const Variables by_hand = {{"RANK", "1"}, {"WORLD_SIZE", "2"}};
  EXPECT_EQ(mistake(without(by_hand, "WORLD_SIZE")),
            "[comm] expected both RANK and WORLD_SIZE or neither, got only RANK");
  EXPECT_EQ(mistake(by_hand),
            "[comm] expected MASTER_ADDR to name the machine of rank 0 (2 ranks, from RANK and "
            "WORLD_SIZE), got nothing");
  const Variables on_nodes = with(by_hand, {{"MASTER_ADDR", "node1"}});
  EXPECT_EQ(mistake(on_nodes),
            "[comm] expected LOCAL_RANK (this rank's number on its machine, by which it takes a "
            "GPU) beside RANK and WORLD_SIZE, as ranks may be on several machines "
            "(MASTER_ADDR=node1), got nothing; with MASTER_ADDR=127.0.0.1 all are on this one");
  EXPECT_NE(mistake(with(on_nodes, {{"LOCAL_RANK", "1"}})).find("expected LOCAL_WORLD_SIZE"),
            std::string::npos);
  EXPECT_EQ(mistake(with(kTorchrun, {{"RANK", "8"}})),
            "[comm] expected a rank below the world size 8, got rank 8 from torchrun");
  EXPECT_EQ(mistake(with(kTorchrun, {{"RANK", "-1"}})),
            "[comm] expected RANK to be a whole number from 0, got \"-1\"");
  EXPECT_EQ(mistake(with(kTorchrun, {{"WORLD_SIZE", "8 "}})),
            "[comm] expected WORLD_SIZE to be a whole number from 0, got \"8 \"");
  EXPECT_NE(mistake(with(kTorchrun, {{"LOCAL_RANK", "4"}})).find("local rank 4 of 4"),
            std::string::npos);
  EXPECT_EQ(mistake(with(kTorchrun, {{"MASTER_PORT", "65536"}})),
            "[comm] expected MASTER_PORT from 1 to 65535, got 65536");
  EXPECT_EQ(mistake(without(kOpenMpi, "OMPI_COMM_WORLD_SIZE")),
            "[comm] expected OMPI_COMM_WORLD_SIZE to be set, got nothing");
  EXPECT_NE(mistake(with(kOpenMpi, {{"OMPI_COMM_WORLD_LOCAL_SIZE", "3"}})).find("MASTER_ADDR"),
            std::string::npos);
  EXPECT_NE(mistake(with(kSlurm, {{"SLURM_STEP_TASKS_PER_NODE", "two"}})).find("\"two\""),
            std::string::npos);
}

TEST(Environment, NamesContradictions) {
  // RANK exported in the shell, and copied by mpirun to everybody.
  const Variables copied =
      with(kOpenMpi, {{"RANK", "0"}, {"WORLD_SIZE", "4"}, {"MASTER_ADDR", "127.0.0.1"}});
  EXPECT_EQ(mistake(copied),
            "[comm] expected RANK and WORLD_SIZE to agree with mpirun's rank 2 of 4, got RANK=0 "
            "and WORLD_SIZE=4; leave them unset");
  EXPECT_NE(mistake(with(kSlurm, {{"WORLD_SIZE", "4"}})).find("WORLD_SIZE=4"), std::string::npos);
  // flashstep launch in an interactive srun of one task.
  const Variables inside = {
      {"SLURM_STEP_ID", "0"},        {"SLURM_PROCID", "0"}, {"FLASHSTEP_LAUNCH", "1"},
      {"SLURM_STEP_NUM_TASKS", "1"}, {"RANK", "2"},         {"WORLD_SIZE", "4"},
      {"MASTER_ADDR", "127.0.0.1"}};
  EXPECT_EQ(read_environment(inside).rank, 2);
}

TEST(Environment, FirstHost) {
  EXPECT_EQ(first_host("node1"), "node1");
  EXPECT_EQ(first_host("a,b"), "a");
  EXPECT_EQ(first_host("gpu[01-03,7],login"), "gpu01");
  EXPECT_EQ(first_host("r[3,5]n[10-12].site"), "r3n10.site");
  EXPECT_NE(mistake([] { first_host("gpu[01"); }), "no mistake");
  EXPECT_NE(mistake([] { first_host("gpu[]"); }), "no mistake");
  EXPECT_NE(mistake([] { first_host(""); }), "no mistake");
}

}  // namespace
}  // namespace flashstep
