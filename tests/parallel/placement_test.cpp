#include "parallel/placement.h"

#include <gtest/gtest.h>

#include "parallel/processes.h"
#include "support/files.h"

namespace inlay::testing {
namespace {

using namespace parallel;

TEST(ParallelPlacement, SharesOutCoresEvenly) {
  const std::vector<int> cores = {0, 8, 1, 9, 2, 10, 3};
  std::vector<int> together;
  for (int i = 0; i < 3; ++i) {
    const std::vector<int> share = share_of(cores, i, 3);
    EXPECT_GE(share.size(), 2u);
    together.insert(together.end(), share.begin(), share.end());
  }
  EXPECT_EQ(together, cores);
  EXPECT_EQ(share_of(cores, 7, 8), cores) << "more processes than cores";
}

TEST(ParallelPlacement, ReadsTheSystemsLists) {
  EXPECT_EQ(parse_cores("0-3,8,10-11\n"), (std::vector<int>{0, 1, 2, 3, 8, 10, 11}));
  EXPECT_EQ(parse_cores("5"), std::vector<int>{5});
  EXPECT_TRUE(parse_cores("").empty());
  EXPECT_FALSE(allowed_cores().empty());
  EXPECT_EQ(cores_near("ffff:ff:1f.7", std::vector<int>{1, 2}), (std::vector<int>{1, 2})) << "no such device";
}

TEST(ParallelProcesses, AreToldApartByTheEnvironment) {
  EXPECT_EQ(place_in_environment().size, 1);
  {
    const Setting size("OMPI_COMM_WORLD_SIZE", "8"), rank("OMPI_COMM_WORLD_RANK", "3");
    EXPECT_EQ(place_in_environment().rank, 3);
    EXPECT_EQ(place_in_environment().size, 8);
  }
  {
    const Setting size("SLURM_STEP_NUM_TASKS", "4"), rank("PMIX_RANK", "1");
    EXPECT_EQ(place_in_environment().rank, 1);
    EXPECT_EQ(place_in_environment().size, 4);
  }
  {
    const Setting size("PMI_SIZE", "many");
    EXPECT_EQ(user_error_of([] { place_in_environment(); }),
              "PMI_SIZE is \"many\" in the environment, expected a number");
  }
}

TEST(ParallelProcesses, OtherLaunchersAreRefused) {
  {
    const Setting size("WORLD_SIZE", "2");
    EXPECT_NE(user_error_of([] { join_processes(); }).find("torchrun (WORLD_SIZE in the environment)"),
              std::string::npos);
  }
  const Setting size("SLURM_STEP_NUM_TASKS", "2");
  EXPECT_NE(user_error_of([] { join_processes(); }).find("srun --mpi=pmix"), std::string::npos);
}

}  // namespace
}  // namespace inlay::testing
