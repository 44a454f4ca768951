#include "backend/cuda/context_internal.h"
#include "backend/cuda/vec.cuh"
#include "ops/preference.h"

namespace inlay::ops::cuda {

namespace {

using backend::cuda::check_launch;
using backend::cuda::pointer;
using backend::cuda::stream_of;

constexpr int threads = 256;

struct Batch {
  const float *losses, *weights, *reference;
  const std::int32_t *targets, *starts, *roles;
  int count;  // of sequences
  double documents, labels;

  __device__ SequenceRole role(int s) const { return static_cast<SequenceRole>(roles[s]); }
  __device__ double weight(int t) const { return weights == nullptr ? 1.0 : static_cast<double>(weights[t]); }
};

// The block's sum in a fixed tree, known to all.
__device__ double block_sum(double value) {
  __shared__ double warps[threads / 32];
  for (int distance = 16; distance > 0; distance /= 2) value += __shfl_xor_sync(~0u, value, distance);
  __syncthreads();  // the last call's readers are done
  if (threadIdx.x % 32 == 0) warps[threadIdx.x / 32] = value;
  __syncthreads();
  double sum = 0;
  for (int w = 0; w < threads / 32; ++w) sum += warps[w];
  return sum;
}

// One block a sequence.
__global__ void __launch_bounds__(threads) sum_sequences(SequenceSum* table, Batch batch) {
  const int s = blockIdx.x;
  double log_prob = 0, tokens = 0, all = 0;
  for (int t = batch.starts[s] + static_cast<int>(threadIdx.x); t < batch.starts[s + 1]; t += threads) {
    if (batch.targets[t] < 0) continue;
    const double loss = batch.losses[t], weight = batch.weight(t);
    log_prob -= weight * loss;
    tokens += weight;
    all += loss;
  }
  log_prob = block_sum(log_prob);
  tokens = block_sum(tokens);
  all = block_sum(all);
  if (threadIdx.x == 0) {
    table[s] = {log_prob, batch.reference == nullptr ? 0.0 : static_cast<double>(batch.reference[s]), tokens, all};
  }
}

// One block in all. Of every sequence the table's log_prob becomes the derivative by it, and all_losses the factor of
// its likelihood, as they enter the tokens' factors.
__global__ void __launch_bounds__(threads)
    judge(SequenceSum* table, float* sums, Batch batch, PreferenceSpec spec, bool averages) {
  double divergence = 0, mismatched = 0;
  for (int s = threadIdx.x; s < batch.count; s += threads) {
    if (batch.role(s) != SequenceRole::mismatched) continue;
    divergence += table[s].log_prob - table[s].reference;
    mismatched += 1;
  }
  divergence = block_sum(divergence);
  mismatched = block_sum(mismatched);
  divergence = mismatched > 0 ? fmax(divergence / mismatched, 0.0) : 0.0;

  double mine[preference_sums] = {};
  const auto add = [&](PreferenceSum what, double value) { mine[static_cast<int>(what)] += value; };
  const auto meet = [&](bool chosen, double reward, const SequenceSum& sum) {
    const double log_prob = averages ? sum.log_prob / fmax(sum.tokens, 1.0) : sum.log_prob;
    add(chosen ? PreferenceSum::chosen_reward : PreferenceSum::rejected_reward, reward);
    add(chosen ? PreferenceSum::chosen_log_prob : PreferenceSum::rejected_log_prob, log_prob);
    add(chosen ? PreferenceSum::chosen : PreferenceSum::rejected, 1);
  };
  for (int s = threadIdx.x; s < batch.count; s += threads) {
    const SequenceRole role = batch.role(s);
    if (role == SequenceRole::chosen) {  // and the rejected one behind it
      const SequenceSum chosen = table[s], rejected = table[s + 1];
      const PreferenceResult result = pair_loss(spec, chosen, rejected);
      const double likelihood = spec.likelihood / batch.labels;
      add(PreferenceSum::loss, result.loss / batch.documents + likelihood * chosen.all_losses);
      add(PreferenceSum::likelihood, chosen.all_losses / batch.labels);
      meet(true, result.chosen_reward, chosen);
      meet(false, result.rejected_reward, rejected);
      add(PreferenceSum::accurate, result.chosen_reward > result.rejected_reward ? 1 : 0);
      add(PreferenceSum::odds, result.odds);
      add(PreferenceSum::odds_ratio, log_logistic(result.odds));
      table[s].log_prob = result.by_chosen / batch.documents;
      table[s].all_losses = likelihood;
      table[s + 1].log_prob = result.by_rejected / batch.documents;
      table[s + 1].all_losses = 0;
    } else if (role == SequenceRole::desirable || role == SequenceRole::undesirable) {
      const bool desirable = role == SequenceRole::desirable;
      const PreferenceResult result = single_loss(spec, table[s], desirable, divergence);
      add(PreferenceSum::loss, result.loss / batch.documents);
      meet(desirable, result.chosen_reward, table[s]);
      table[s].log_prob = result.by_chosen / batch.documents;
      table[s].all_losses = 0;
    } else if (role != SequenceRole::rejected) {
      table[s].log_prob = 0;
      table[s].all_losses = 0;
    }
  }
  if (threadIdx.x == 0 && mismatched > 0) {
    add(PreferenceSum::divergence, divergence);
    add(PreferenceSum::batches, 1);
  }
  for (int i = 0; i < static_cast<int>(preference_sums); ++i) {
    const double sum = block_sum(mine[i]);
    if (threadIdx.x == 0) sums[i] += static_cast<float>(sum);
  }
}

__global__ void __launch_bounds__(threads) write_factors(float* factors, const SequenceSum* table, Batch batch) {
  const int s = blockIdx.x;
  const double by_log_prob = table[s].log_prob, likelihood = table[s].all_losses;
  for (int t = batch.starts[s] + static_cast<int>(threadIdx.x); t < batch.starts[s + 1]; t += threads) {
    factors[t] = batch.targets[t] < 0 ? 0.0f : static_cast<float>(likelihood - batch.weight(t) * by_log_prob);
  }
}

__global__ void __launch_bounds__(threads)
    mean_kernel(float* mean, const float* losses, const std::int32_t* rows, std::int64_t count) {
  double sum = 0;
  for (std::int64_t i = threadIdx.x; i < count; i += threads) sum += losses[rows[i]];
  sum = block_sum(sum);
  if (threadIdx.x == 0) *mean = count > 0 ? static_cast<float>(sum / static_cast<double>(count)) : 1.0f;
}

}  // namespace

void preference(Exec& exec, View factors, View sums, const PreferenceInputs& inputs, const PreferenceSpec& spec,
                View sequences) {
  const Batch batch{.losses = pointer<float>(inputs.losses),
                    .weights = pointer<float>(inputs.weights),
                    .reference = pointer<float>(inputs.reference),
                    .targets = pointer<std::int32_t>(inputs.targets),
                    .starts = pointer<std::int32_t>(inputs.cu_seqlens),
                    .roles = pointer<std::int32_t>(inputs.roles),
                    .count = static_cast<int>(inputs.roles.dim(0)),
                    .documents = inputs.documents,
                    .labels = inputs.labels};
  auto* table = reinterpret_cast<SequenceSum*>(sequences.data());
  const auto blocks = static_cast<unsigned>(batch.count);
  sum_sequences<<<blocks, threads, 0, stream_of(exec)>>>(table, batch);
  judge<<<1, threads, 0, stream_of(exec)>>>(table, sums.as<float>(), batch, spec,
                                            spec.averages() && spec.kind != PreferenceKind::ipo);
  write_factors<<<blocks, threads, 0, stream_of(exec)>>>(factors.as<float>(), table, batch);
  check_launch("preference");
}

void mean_loss(Exec& exec, View mean, ConstView losses, ConstView rows) {
  mean_kernel<<<1, threads, 0, stream_of(exec)>>>(mean.as<float>(), pointer<float>(losses), pointer<std::int32_t>(rows),
                                                  rows.dim(0));
  check_launch("mean_loss");
}

}  // namespace inlay::ops::cuda
