#include "core/environment.h"

#include <algorithm>
#include <cstdlib>

#include "core/error.h"

namespace inlay {

std::span<const EnvironmentVariable> environment_variables() {
  static const std::vector<EnvironmentVariable> table = {
      {"XDG_CACHE_HOME", {}, "~/.cache", "the folder in which inlay/ keeps what can be made again"},
      {"HOME", {}, "no cache is kept", "the home folder, for ~/.cache, and for ~ in configurations"},
      {"HF_HOME", {}, "~/.cache/huggingface", "where Hugging Face's programs keep models, datasets and the token"},
      {"HF_HUB_CACHE", {}, "hub in HF_HOME", "the folder of models and datasets alone"},
      {"HF_ENDPOINT", {}, "https://huggingface.co", "the server that --download asks"},
      {"HF_TOKEN", {}, "what HF_TOKEN_PATH says", "the token for models that need one; it is never printed"},
      {"HUGGING_FACE_HUB_TOKEN", {}, "what HF_TOKEN says", "the same, under its former name"},
      {"HF_TOKEN_PATH", {}, "token in HF_HOME", "the file that holds the token"},
      {"PATH", {}, "no mpirun is found", "where `inlay doctor` looks for mpirun"},
      {"TERM", {}, "no terminal", "the kind of terminal; dumb: plain lines, as in a file"},
      {"NO_COLOR", {}, "colours", "any text: no colours on a terminal"},
      {"INLAY_CPU_ISA",
       {"baseline", "avx2", "avx512", "avx512_bf16", "amx"},
       "the best that the CPU has",
       "the instruction set of the CPU's kernels; one that the machine lacks is an error"},
      {"OMP_NUM_THREADS",
       {},
       "as many as affinity and cgroup grant",
       "the threads of the CPU's kernels, up to that many"},
      {"ONEDNN_MAX_CPU_ISA", {}, "as INLAY_CPU_ISA, without tiles", "the instructions that oneDNN may use"},
      {"DNNL_MAX_CPU_ISA", {}, "as INLAY_CPU_ISA, without tiles", "the same, under its former name"},
      {"INLAY_TUNE", {"0", "1"}, "1", "0: large products on a GPU take cuBLASLt's first algorithm untimed"},
      {"INLAY_ATTENTION", {"plain", "cudnn", "compiled"}, "the fastest that can", "the kernels of attention on a GPU"},
      {"INLAY_ATTENTION_PRODUCTS",
       {"warp", "warpgroup"},
       "warpgroup on Hopper, warp elsewhere",
       "warp: compiled attention without Hopper's products of a warpgroup"},
      {"INLAY_GROUPED_MATMUL",
       {"plain", "tensor", "hopper"},
       "the fastest that can",
       "the kernels of the experts' products on a GPU; hopper: an error where they cannot"},
      {"INLAY_SHARE_GPU",
       {"0", "1"},
       "0",
       "1: several processes may work on one GPU, for tests; NCCL needs another NCCL_HOSTID for each of them"},
      {"OMPI_COMM_WORLD_SIZE", {}, "one process", "set by mpirun: the processes of the run"},
      {"OMPI_COMM_WORLD_RANK", {}, "0", "set by mpirun: which of them this is"},
      {"PMIX_RANK", {}, "0", "set by srun --mpi=pmix: which process this is"},
      {"SLURM_STEP_NUM_TASKS", {}, "one process", "set by srun: the processes of the run"},
      {"PMI_SIZE", {}, "one process", "set by other MPIs: the processes of the run"},
      {"PMI_RANK", {}, "0", "set by other MPIs: which of them this is"},
      {"WORLD_SIZE", {}, "one process", "set by torchrun; more than 1 without MPI: an error that says what to use"},
      {"INLAY_EXIT_CODE_FILE",
       {},
       "processes end with their code",
       "set by inlay train --processes: where the run's exit code is left, so that mpirun does not report it"},
      {"MLFLOW_TRACKING_URI", {}, "mlflow_tracking_uri must say it", "where MLflow's server is, for report_to: mlflow"},
      {"MLFLOW_EXPERIMENT_NAME", {}, "inlay", "the experiment that runs belong to, for report_to: mlflow"},
      {"MLFLOW_TRACKING_SERVER_CERT_PATH",
       {},
       "what SSL_CERT_FILE says",
       "the certificates to trust an MLflow server by"},
      {"SSL_CERT_FILE", {}, "the system's", "the certificates to trust servers by"},
      {"MLFLOW_TRACKING_TOKEN", {}, "none is sent", "the token that identifies you to an MLflow server"},
      {"MLFLOW_TRACKING_USERNAME", {}, "none is sent", "the user's name for an MLflow server"},
      {"MLFLOW_TRACKING_PASSWORD", {}, "an empty one", "the password of that user"},
      {"INLAY_TEST_FAULT",
       {},
       "nothing fails",
       "for tests: kill:N, enospc:N or defect:N, what happens at the N-th operation on the disk; stuck:TEXT and "
       "log:FILE (io/fault.h)"},
  };
  return table;
}

std::optional<std::string> environment(std::string_view name) {
  const auto known = std::ranges::find(environment_variables(), name, &EnvironmentVariable::name);
  INLAY_ASSERT(known != environment_variables().end(), "{} is not in the table of environment variables", name);
  const char* const text = std::getenv(known->name.data());
  if (text == nullptr || *text == '\0') return std::nullopt;
  if (!known->values.empty() && std::ranges::find(known->values, std::string_view(text)) == known->values.end()) {
    std::string expected;
    for (const std::string_view value : known->values)
      expected += fmt::format("{}{}", expected.empty() ? "" : ", ", value);
    user_error("{} is \"{}\" in the environment, expected one of {}", name, text, expected);
  }
  return text;
}

}  // namespace inlay
