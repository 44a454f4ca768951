#include <gtest/gtest.h>

#include "backend/cuda/context.h"
#include "support/command.h"
#include "support/files.h"

// Runs the tests of ranks/ as so many processes.
namespace inlay::testing {
namespace {

std::string ranks_program() { return (program().parent_path() / "inlay_ranks").string(); }

class ParallelMpi : public ::testing::TestWithParam<int> {};

TEST_P(ParallelMpi, RanksExchangeOnTheHost) {
  if (!has_mpirun()) GTEST_SKIP() << "mpirun is not installed (Debian: openmpi-bin)";
  const CommandResult result = mpirun(GetParam(), {ranks_program(), "--gtest_filter=UnderMpirun.*", "--gtest_brief=1"});
  EXPECT_EQ(result.code, 0) << result.out << result.err;
  EXPECT_EQ(result.out.find("SKIPPED"), std::string::npos) << result.out;
}

INSTANTIATE_TEST_SUITE_P(Ranks, ParallelMpi, ::testing::Values(2, 3, 4, 8));

// Ranks share the GPU that there is: NCCL lets them where each seems to be on a host of its own.
class ParallelNccl : public ::testing::TestWithParam<int> {};

TEST_P(ParallelNccl, RanksExchangeOnGpus) {
  if (!backend::cuda::available()) GTEST_SKIP() << "no GPU";
  if (!has_mpirun()) GTEST_SKIP() << "mpirun is not installed (Debian: openmpi-bin)";
  const CommandResult result = mpirun(GetParam(),
                                      {"bash", "-c", "NCCL_HOSTID=rank$OMPI_COMM_WORLD_RANK exec \"$@\"", "bash",
                                       ranks_program(), "--gtest_filter=UnderMpirun.*", "--gtest_brief=1"},
                                      {.environment = {{"INLAY_TEST_RANKS_ON", "cuda"},
                                                       {"INLAY_SHARE_GPU", "1"},
                                                       {"NCCL_SOCKET_IFNAME", "lo"},
                                                       {"NCCL_IB_DISABLE", "1"}}});
  EXPECT_EQ(result.code, 0) << result.out << result.err;
  EXPECT_EQ(result.out.find("SKIPPED"), std::string::npos) << result.out;
}

INSTANTIATE_TEST_SUITE_P(Ranks, ParallelNccl, ::testing::Values(2, 4));

}  // namespace
}  // namespace inlay::testing
