// Tests of detect_launcher() and local_share().
#include "comm/launcher.h"

#include <gtest/gtest.h>

#include <map>
#include <string>

namespace shoal::test {
namespace {

Launcher launched_with(const std::map<std::string, std::string>& variables) {
  return detect_launcher([&](const char* name) {
    const auto found = variables.find(name);
    return found == variables.end() ? nullptr : found->second.c_str();
  });
}

void expect(const Launcher& launch, Launcher::Kind kind, int rank, int ranks, const std::string& by) {
  EXPECT_EQ(launch.kind, kind);
  EXPECT_EQ(launch.rank, rank);
  EXPECT_EQ(launch.ranks, ranks);
  EXPECT_EQ(launch.name, by);
}

TEST(Launch, Alone) { expect(launched_with({{"HOME", "/root"}}), Launcher::Kind::alone, 0, 1, ""); }

TEST(Launch, OpenMpi) {
  expect(launched_with({{"OMPI_COMM_WORLD_RANK", "2"}, {"OMPI_COMM_WORLD_SIZE", "4"}, {"PMIX_RANK", "2"}}),
         Launcher::Kind::open_mpi, 2, 4, "mpirun");
}

TEST(Launch, Mpich) {
  expect(launched_with({{"PMI_RANK", "1"}, {"PMI_SIZE", "3"}, {"PMI_FD", "7"}, {"MPI_LOCALRANKID", "1"}}),
         Launcher::Kind::mpich, 1, 3, "mpirun");
}

// mpirun within a Slurm job, which sets its own variables, too.
TEST(Launch, MpirunWithinSlurm) {
  const std::map<std::string, std::string> slurm{
      {"SLURM_JOB_ID", "7"}, {"SLURM_STEP_ID", "0"}, {"SLURM_STEP_NUM_TASKS", "2"}, {"SLURM_PROCID", "1"}};
  auto open_mpi = slurm, mpich = slurm;
  open_mpi.insert({{"OMPI_COMM_WORLD_RANK", "5"}, {"OMPI_COMM_WORLD_SIZE", "8"}});
  mpich.insert({{"PMI_RANK", "5"}, {"PMI_SIZE", "8"}, {"MPI_LOCALRANKID", "1"}});
  expect(launched_with(open_mpi), Launcher::Kind::open_mpi, 5, 8, "mpirun");
  expect(launched_with(mpich), Launcher::Kind::mpich, 5, 8, "mpirun");
}

TEST(Launch, Srun) {
  const std::map<std::string, std::string> slurm{
      {"SLURM_JOB_ID", "7"}, {"SLURM_STEP_ID", "0"}, {"SLURM_STEP_NUM_TASKS", "16"}, {"SLURM_PROCID", "3"}};
  auto pmix = slurm, pmi2 = slurm;
  pmix.insert({"PMIX_RANK", "3"});
  pmi2.insert({{"PMI_RANK", "3"}, {"PMI_SIZE", "16"}});
  expect(launched_with(pmix), Launcher::Kind::open_mpi, 3, 16, "srun");
  expect(launched_with(pmi2), Launcher::Kind::mpich, 3, 16, "srun");
}

TEST(Launch, TasksOfSrunWithoutAnMpiAreAlone) {
  const auto launch = launched_with(
      {{"SLURM_JOB_ID", "7"}, {"SLURM_STEP_ID", "0"}, {"SLURM_STEP_NUM_TASKS", "16"}, {"SLURM_PROCID", "3"}});
  expect(launch, Launcher::Kind::alone, 0, 1, "");
  EXPECT_EQ(launch.task, 3);
  EXPECT_EQ(launch.tasks, 16);
}

// A batch script, and a shell that salloc opened: one process each.
TEST(Launch, WithinASlurmJob) {
  expect(launched_with({{"SLURM_JOB_ID", "7"}, {"SLURM_NTASKS", "16"}, {"SLURM_PROCID", "0"}}),
         Launcher::Kind::alone, 0, 1, "");
  expect(
      launched_with({{"SLURM_JOB_ID", "7"}, {"SLURM_STEP_ID", "4294967290"}, {"SLURM_STEP_NUM_TASKS", "1"}}),
      Launcher::Kind::alone, 0, 1, "");
}

TEST(LocalShare, CountsRanksOfTheHostAndThoseOnTheSameCores) {
  const CoreBinding ranks[] = {{1, 10}, {2, 10}, {1, 10}, {1, 11}, {2, 10}};
  const auto share = local_share(ranks, 2);
  EXPECT_EQ(share.local_rank, 1);
  EXPECT_EQ(share.local_size, 3);
  EXPECT_EQ(share.sharing, 2);
  EXPECT_EQ(share.hosts, 2);
  EXPECT_EQ(local_share(ranks, 3).sharing, 1);
  EXPECT_EQ(local_share(ranks, 4).local_rank, 1);
}

}  // namespace
}  // namespace shoal::test
