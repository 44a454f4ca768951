#include "options/foreign.h"

#include <algorithm>
#include <cctype>
#include <functional>

#include <fmt/format.h>

#include "core/text.h"

namespace inlay::options::option {

namespace {

using Kind = Meaning::Kind;
using Answer = std::function<std::optional<Meaning>(const YAML::Node& value)>;

struct Entry {
  std::vector<std::string_view> patterns;  // in which * stands for anything
  Answer answer;
};

Meaning unneeded(std::string why) { return {Kind::unneeded, std::move(why)}; }
Meaning refused(std::string why) { return {Kind::refused, std::move(why)}; }

std::string lower(std::string text) {
  std::ranges::transform(text, text.begin(), [](unsigned char c) { return static_cast<char>(std::tolower(c)); });
  return text;
}

std::string word_of(const YAML::Node& value) { return value.IsScalar() ? lower(value.Scalar()) : ""; }

bool is_off(const YAML::Node& value) {
  const std::string word = word_of(value);
  return word == "false" || word == "no" || word == "off" || word == "0" || word == "0.0" || word == "none";
}

std::string in_one_line(const YAML::Node& value) {
  YAML::Emitter out;
  out.SetSeqFormat(YAML::Flow);
  out.SetMapFormat(YAML::Flow);
  out << value;
  return out.c_str();
}

Answer not_needed(std::string why) {
  return [=](const YAML::Node&) { return unneeded(why); };
}
// What is off is what happens here.
Answer only_off(std::string why) {
  return [=](const YAML::Node& value) { return is_off(value) ? unneeded("it is off") : refused(why); };
}
// And this, what is on.
Answer only_on(std::string why) {
  return [=](const YAML::Node& value) { return is_off(value) ? refused(why) : unneeded("it is on"); };
}
Answer is_called(std::string ours) {
  return [=](const YAML::Node& value) {
    return Meaning{Kind::same, "the key is " + ours, {{ours, in_one_line(value)}}};
  };
}

// ---- answers that look at the value ---------------------------------------------------------------------------------

std::optional<Meaning> bf16(const YAML::Node& value) {
  if (is_off(value)) return Meaning{Kind::same, "products are made in fp32", {{"dtype", "fp32"}}};
  return unneeded("bf16 with fp32 master weights is the default wherever the device multiplies it");
}

std::optional<Meaning> optimizer(const YAML::Node& value) {
  const std::string word = word_of(value);
  if (word == "adamw" || word == "muon" || word == "schedule_free_adamw") return std::nullopt;
  // Other implementations of the same steps. What only has the word in its name (galore_adamw, stable_adamw) steps
  // otherwise.
  const auto is_one_of = [&](std::initializer_list<std::string_view> names) {
    return std::ranges::find(names, word) != names.end();
  };
  if (is_one_of({"adamw_torch", "adamw_torch_fused", "adamw_torch_xla", "adamw_hf", "adamw_apex_fused",
                 "adamw_anyprecision", "paged_adamw", "paged_adamw_32bit"})) {
    return unneeded("AdamW is the optimizer");
  }
  if (is_one_of({"adamw_8bit", "adamw_bnb_8bit", "paged_adamw_8bit", "adamw_torch_8bit", "ao_adamw_8bit"})) {
    return Meaning{Kind::same, "", {{"optimizer_state", "8bit"}}};
  }
  if (is_one_of({"adamw_torch_4bit", "ao_adamw_4bit", "adamw_torch_fp8", "ao_adamw_fp8"})) {
    return Meaning{Kind::same, "below 16 bits only 8 are supported", {{"optimizer_state", "8bit"}}};
  }
  return refused("expected adamw, muon or schedule_free_adamw (docs/optimizers.md); leave the key out for AdamW");
}

std::optional<Meaning> plugins(const YAML::Node& value) {
  std::vector<std::string> others;
  for (const auto& entry : value.IsSequence() ? value : YAML::Load(fmt::format("[{}]", in_one_line(value)))) {
    const std::string name = entry.IsScalar() ? entry.Scalar() : "?";
    const bool built_in = std::ranges::any_of(
        std::initializer_list<std::string_view>{"LigerPlugin", "CutCrossEntropyPlugin", "KernelsPlugin"},
        [&](std::string_view known) { return name.ends_with(known); });
    if (!built_in) others.push_back(name);
  }
  if (others.empty()) return unneeded("fused kernels and a loss without all logits are built in");
  return refused(fmt::format("{} is not supported; leave it out", join(others, ", ")));
}

// deepspeed_configs/zero3_bf16.json, or such a file's content.
std::optional<Meaning> deepspeed(const YAML::Node& value) {
  const std::string text = lower(in_one_line(value));
  const std::string note = "nothing else of DeepSpeed's file is read, and what does not fit lives on the host";
  for (const char* stage : {"1", "2", "3"}) {
    if (text.find(std::string("zero") + stage) != text.npos || text.find(std::string("stage: ") + stage) != text.npos) {
      return Meaning{Kind::same, note, {{"parallel.zero", stage}}};
    }
  }
  return refused(
      "it does not say which stage it means; write parallel: {zero: 1}, 2 or 3, or leave it out: the lowest "
      "that fits is chosen");
}

std::optional<Meaning> fsdp(const YAML::Node& value) {
  const std::string text = lower(in_one_line(value));
  const std::string note = "nothing is wrapped, and what does not fit lives on the host";
  const auto has = [&](const char* word) { return text.find(word) != text.npos; };
  if (has("hybrid_shard")) {
    return Meaning{Kind::same, note, {{"parallel.zero", "3"}, {"parallel.shard", "node"}}};
  }
  if (has("no_shard")) return Meaning{Kind::same, note, {{"parallel.zero", "0"}}};
  if (has("shard_grad_op") || has("reshard_after_forward: false")) {
    return Meaning{Kind::same, note, {{"parallel.zero", "2"}}};
  }
  return Meaning{Kind::same, note, {{"parallel.zero", "3"}}};
}

std::optional<Meaning> gigabytes(const YAML::Node& value) {
  const std::string text = word_of(value);
  const std::string number = text.substr(0, text.find_first_not_of("0123456789."));
  const std::string unit = text.substr(number.size());
  if (number.empty() || (!unit.empty() && unit != "gib" && unit != "gb")) {
    return refused("write memory: {device: GiB}");
  }
  return Meaning{Kind::same, "the key is memory.device, in GiB", {{"memory.device", number}}};
}

std::optional<Meaning> one_only(const YAML::Node& value) {
  if (word_of(value) == "1" || is_off(value)) return unneeded("1 means that it is not used");
  return refused(
      "a model is not divided this way; leave it out: parallel.zero divides weights and optimizer state over "
      "processes");
}

std::optional<Meaning> lora_start(const YAML::Node& value) {
  const std::string word = word_of(value);
  if (word == "true" || word == "gaussian") return Meaning{Kind::same, "", {{"lora_init", "gaussian"}}};
  if (word.starts_with("pissa")) return Meaning{Kind::same, "", {{"lora_init", "pissa"}}};
  return refused("write lora_init: gaussian, pissa or free");
}

// A switch of one of our keys.
Answer switched(const char* key, const char* to) {
  return [key, to](const YAML::Node& value) -> std::optional<Meaning> {
    if (is_off(value)) return unneeded("it is off");
    return Meaning{Kind::same, "", {{key, to}}};
  };
}

std::optional<Meaning> resume(const YAML::Node& value) {
  if (is_off(value)) return unneeded("a run continues only if --resume is given");
  return refused("leave it out; to continue a run: inlay train run.yaml --resume");
}

// ---- the tables -----------------------------------------------------------------------------------------------------

const std::vector<Entry>& keys() {
  static const std::string text_only = "only text can be learned; give a text model and its data, and leave it out";
  static const std::string by_report =
      "not supported; leave it out, or write report_to: [tensorboard] or [mlflow]; wandb sync uploads TensorBoard's "
      "files (docs/watching.md)";
  static const std::vector<Entry> table = {
      // arithmetic and kernels
      {{"bf16"}, bf16},
      {{"fp16", "float16"}, only_off("fp16 is not supported; write bf16: auto")},
      {{"bfloat16"}, not_needed("weights are read as they are, and master weights are fp32")},
      {{"tf32"}, not_needed("it only concerns fp32 products, which are exact here")},
      {{"fp8"},
       [](const YAML::Node& value) -> std::optional<Meaning> {
         if (!value.IsScalar()) return std::nullopt;
         return is_off(value) ? unneeded("it is off") : Meaning{Kind::same, "", {{"matmul_dtype", "fp8"}}};
       }},
      {{"fp8_*", "torch_compile*", "liger_*", "cut_cross_entropy*", "use_kernels", "use_scattermoe", "use_sonicmoe",
        "experts_implementation", "fused_attn_kernel", "lora_*_kernel", "moe_bnb_fast", "moe_dequant_chunk_size",
        "autotune_*", "unsloth_*"},
       not_needed("fast kernels are built in, and nothing needs to be compiled")},
      {{"attn_implementation", "flash_attention", "sdp_attention", "xformers_attention", "flex_attention",
        "eager_attention", "flash_attn_*", "flash_optimum", "flex_attn_*", "gemma4_hybrid_attn_impl"},
       not_needed("there is one kind of attention, which never stores scores")},
      {{"plugins"}, plugins},
      // memory
      {{"gradient_checkpointing", "gradient_checkpointing_kwargs", "activation_offloading"},
       not_needed("the cheapest way that fits is chosen; activation_policy sets one")},
      {{"tiled_mlp", "tiled_mlp_*"}, not_needed("tiles are used if memory is short; mlp_tile sets their size")},
      {{"gpu_memory_limit"}, gigabytes},
      {{"low_cpu_mem_usage", "device_map", "max_memory", "experimental_skip_move_to_device", "lora_on_cpu",
        "torchdistx_path", "ple_cpu_offload"},
       not_needed("weights go where the plan puts them (inlay plan)")},
      {{"auto_find_batch_size"}, only_off("leave it out; inlay plan says what fits before you start")},
      // optimizer and schedule
      {{"optim_args", "optim_target_modules", "lr_groups", "loraplus_*", "embedding_lr", "embedding_lr_scale",
        "lr_quadratic_warmup", "eta_min", "cosine_constant_lr_ratio", "lisa_*", "relora", "relora_*", "jagged_*",
        "neftune_noise_alpha", "noisy_embedding_alpha"},
       only_off("not supported; leave it out")},
      {{"loss_watchdog_threshold", "loss_watchdog_patience"},
       not_needed("a run stops if its loss is not finite; early_stopping_patience stops one that no longer improves")},
      {{"label_smoothing_factor"}, is_called("loss.label_smoothing")},
      {{"use_dft"}, switched("loss.token_weight", "dft")},
      {{"use_eaft"}, switched("loss.token_weight", "eaft")},
      {{"eaft_k"}, is_called("loss.eaft_top_k")},
      {{"eaft_alpha"},
       [](const YAML::Node& value) {
         const std::string word = word_of(value);
         return word == "1" || word == "1.0" ? unneeded("the entropy's own power is 1")
                                             : refused("the entropy is not raised to a power; leave it out");
       }},
      {{"dpo_beta", "simpo_beta"}, is_called("rl_beta")},
      {{"kd_online_server*"}, only_off("not supported; set kd_teacher to a folder")},
      {{"kd_normalize_topk"},
       only_on("not supported: log-probabilities in the data are always normalised; leave it out")},
      {{"precompute_ref_*"}, not_needed("the reference's log-probabilities are always computed before the first step")},
      {{"qat", "quantization", "kd_*", "reward_model", "process_reward_model", "llmcompressor", "diffusion",
        "diffusion_*"},
       only_off("not supported (docs/objectives.md says what can be learned)")},
      {{"unfrozen_parameters"},
       [](const YAML::Node&) {
         return refused(
             "instead, name what does not train, with patterns of tensor names: freeze: [\"model.layers.*\"]");
       }},
      // batches
      {{"batch_size"},
       [](const YAML::Node&) {
         return refused("leave it out, and write gradient_accumulation_steps: it is batch_size / micro_batch_size");
       }},
      {{"eval_batch_size", "pad_to_sequence_len", "eval_sample_packing", "group_by_length", "batch_flattening",
        "sample_packing_eff_est", "sample_packing_group_size", "sample_packing_bin_size", "total_num_tokens",
        "sample_packing_seq_len_multiplier", "multipack_real_batches", "pretrain_multipack_attn"},
       not_needed("nothing is ever padded, and batches are as full as possible")},
      {{"max_packed_sequence_len"}, is_called("sequence_len")},
      {{"sample_packing_sequentially", "curriculum_sampling"},
       [](const YAML::Node& value) {
         return is_off(value) ? unneeded("it is off")
                              : Meaning{Kind::same, "documents stay in the order of the files", {{"shuffle", "false"}}};
       }},
      {{"shuffle_merged_datasets"}, is_called("shuffle")},
      {{"min_sample_len", "dataset_exact_deduplication"}, only_off("not supported; leave it out and filter the data")},
      {{"shuffle_before_merging_datasets", "dataset_processes", "dataset_num_proc", "dataloader_*",
        "skip_prepare_dataset", "remove_unused_columns", "dataset_keep_in_memory", "streaming_multipack_buffer_size"},
       not_needed("data is read once, on all cores, and shuffled again every epoch")},
      {{"pretraining_dataset", "streaming"},
       only_off("not supported; give the texts as datasets with type: completion")},
      // models and tokenizers
      {{"model_type", "tokenizer_type", "trust_remote_code", "tokenizer_use_fast", "tokenizer_legacy",
        "tokenizer_use_mistral_common", "is_falcon_derived_model", "is_llama_derived_model", "is_qwen_derived_model",
        "is_mistral_derived_model", "cls_model_config", "llama4_linearized_experts", "use_onebitllms"},
       not_needed("config.json and tokenizer.json say what the model is, and none of its code is run")},
      {{"resize_token_embeddings_to_32x", "shrink_embeddings", "embeddings_skip_upcast", "mean_resizing_embeddings"},
       not_needed("the vocabulary keeps its size unless tokens are added")},
      {{"quantize_moe_experts", "bnb_config_kwargs", "nf4_backend", "model_quantization_config",
        "model_quantization_config_kwargs"},
       not_needed("load_in_4bit holds all matrices of the base in NF4, and MXFP4 models are read as they are")},
      {{"model_config", "overrides_of_model_config"},
       [](const YAML::Node& value) {
         const bool losses = value.IsMap() && value.size() == 1 && value["output_router_logits"];
         return losses ? unneeded("config.json or router_aux_loss_coef sets the loss of a mixture's router")
                       : refused("not supported; change config.json in a copy of the model's folder");
       }},
      {{"gptq", "gptq_*"}, only_off("GPTQ models are not supported; give the model that it was made from")},
      {{"processor_type", "freeze_mm_modules", "image_size", "image_resize_algorithm"},
       [](const YAML::Node&) { return refused(text_only); }},
      {{"chat_template_jinja"},
       [](const YAML::Node& value) {
         const bool inline_text = value.IsScalar() && value.Scalar().find_first_of("{\n") != std::string::npos;
         return inline_text ? refused("write the template to a file, and chat_template: FILE.jinja")
                            : Meaning{Kind::same, "the key is chat_template", {{"chat_template", in_one_line(value)}}};
       }},
      {{"added_tokens"}, is_called("tokens")},
      {{"added_tokens_overrides"}, only_off("not supported; tokens adds new ones")},
      {{"default_system_message", "chat_template_kwargs"},
       only_off("not supported; give a template of your own: chat_template: FILE.jinja")},
      {{"peft_init_lora_weights"}, lora_start},
      {{"lora_fan_in_fan_out"}, not_needed("every matrix is read as its family stores it")},
      {{"peft_layers_pattern", "peft_trainable_token_indices", "peft"}, only_off("not supported; leave it out")},
      // several processes
      {{"deepspeed"}, deepspeed},
      {{"fsdp", "fsdp_config"}, fsdp},
      {{"fsdp_version", "fsdp_final_state_dict_type", "dp_shard_size", "ddp", "ddp_find_unused_parameters",
        "ddp_bucket_cap_mb", "ddp_broadcast_buffers", "local_rank", "accelerator_config"},
       not_needed("--processes gives the number of processes, parallel.zero what they divide")},
      {{"dp_replicate_size"},
       [](const YAML::Node& value) {
         return word_of(value) == "1" ? unneeded("1 means that it is not used")
                                      : Meaning{Kind::same, "", {{"parallel.zero", "3"}, {"parallel.shard", "node"}}};
       }},
      {{"ddp_timeout"}, is_called("parallel.timeout")},
      {{"tensor_parallel_size", "context_parallel_size", "sequence_parallel_degree", "expert_parallel_size",
        "expert_parallel_*", "ring_attn_func", "heads_k_stride", "context_parallel"},
       one_only},
      {{"use_ray", "ray_*"}, only_off("not supported; start it with --processes, mpirun or srun")},
      // along the run
      {{"evaluation_strategy"}, is_called("eval_strategy")},
      {{"resume_from_checkpoint", "auto_resume_from_checkpoints"}, resume},
      {{"save_safetensors"}, only_on("models are always written as safetensors; leave it out")},
      {{"eval_table_size", "eval_max_new_tokens", "eval_causal_lm_metrics", "do_causal_lm_eval", "do_bench_eval",
        "bench_dataset"},
       only_off("not supported; leave it out: evaluation reports loss and accuracy")},
      {{"use_tensorboard"}, switched("report_to", "[tensorboard]")},
      {{"use_mlflow"}, switched("report_to", "[mlflow]")},
      {{"wandb_mode", "wandb_watch", "wandb_name", "wandb_run_id", "wandb_log_model", "wandb_entity"},
       not_needed("nothing logs to Weights & Biases without wandb_project")},
      {{"use_wandb", "wandb_*", "hf_mlflow_log_artifacts", "use_comet", "comet_*", "use_swanlab", "swanlab_*",
        "trackio_*", "use_trackio", "use_otel_metrics", "otel_*"},
       only_off(by_report)},
      {{"hub_*", "push_dataset_to_hub"},
       only_off("nothing is uploaded; leave it out, and use hf upload with the result's folder")},
      {{"hf_use_auth_token"}, not_needed("a token comes from HF_TOKEN or from hf auth login")},
      {{"strict"}, not_needed("unknown keys are always errors")},
      {{"debug", "profiler_steps"}, only_off("not supported; leave it out")},
  };
  return table;
}

const std::vector<Entry>& values() {
  static const std::vector<Entry> table = {
      {{"tokens"},
       [](const YAML::Node& value) -> std::optional<Meaning> {
         if (!value.IsMap()) return std::nullopt;
         return Meaning{Kind::same, "they have names", {{"special_tokens", in_one_line(value)}}};
       }},
      {{"optimizer"}, optimizer},
      {{"chat_template"},
       [](const YAML::Node& value) -> std::optional<Meaning> {
         if (word_of(value) != "jinja") return std::nullopt;
         return unneeded("chat_template_jinja says which");
       }},
      {{"lr_scheduler"},
       [](const YAML::Node& value) -> std::optional<Meaning> {
         const std::string word = word_of(value);
         if (word == "cosine_with_min_lr") {
           return Meaning{Kind::same, "cosine_min_lr_ratio says where it ends", {{"lr_scheduler", "cosine"}}};
         }
         return std::nullopt;
       }},
  };
  return table;
}

// Types of pairs and of judged answers have the name of a template and that of their rows: chatml.intel. Of judged
// answers rows are told by rl: kto alone.
std::optional<Meaning> meaning_of_preferences(const std::string& word, bool judged) {
  const std::string style = word.substr(0, word.find('.'));
  if (style.size() == word.size()) return std::nullopt;
  const std::string rows = word.substr(style.size() + 1), type = judged ? "judged" : "preference";
  if (style == "passthrough") return Meaning{Kind::same, "", {{"type", type}}};
  const std::string ours = style == "zephyr" ? "FILE.jinja" : style;
  if (style != "chatml" && style != "llama3" && style != "zephyr") return std::nullopt;
  Meaning meaning{Kind::same, "", {{"type", type}, {"chat_template", ours}}};
  const auto refuse = [&](std::string_view what) {
    meaning.kind = Kind::refused;
    meaning.why = fmt::format("write type: {}{} and chat_template: {}; {}", type,
                              judged ? "" : " (for rl: kto, type: judged)", ours, what);
    return meaning;
  };
  if (style == "zephyr") {
    return refuse("write Zephyr's template into that file, and two of a row's ranked answers as chosen and rejected");
  }
  if (rows == "intel") {
    meaning.keys.emplace_back("field_messages", "question");
  } else if (rows == "icr") {
    meaning.keys.emplace_back("field_messages", "input");
  } else if (rows == "argilla") {
    meaning.keys.emplace_back("field_messages", "instruction");
    if (!judged) meaning.why = "where a row has chosen_response, field_chosen and field_rejected name its answers";
  } else if (rows != "prompt_pairs" && rows != "argilla_chat" && rows != "ultra") {
    return refuse(judged ? "rows have a prompt or messages, completion and label (docs/objectives.md)"
                         : "rows have a prompt or messages, chosen and rejected (docs/objectives.md)");
  }
  return meaning;
}

const std::vector<Entry>& entry_keys() {
  static const std::vector<Entry> table = {
      {{"type"}, [](const YAML::Node& value) { return meaning_of_type(value, ""); }},
      {{"message_field_role"},
       [](const YAML::Node& value) {
         return refused(fmt::format("write message_property_mappings: {{role: {}, content: ...}}", in_one_line(value)));
       }},
      {{"message_field_content"},
       [](const YAML::Node& value) {
         return refused(fmt::format("write message_property_mappings: {{role: ..., content: {}}}", in_one_line(value)));
       }},
      {{"field_thinking", "template_thinking_key", "split_thinking"},
       not_needed("reasoning goes to the template under the name that it has in the data")},
      {{"trust_remote_code", "preprocess_shards", "shards_idx"},
       not_needed("data is only read, and none of its code is run")},
      {{"conversation"},
       [](const YAML::Node&) { return refused("leave it out: chat_template says how conversations are written"); }},
      {{"system_prompt", "system_format", "message_field_training_detail", "shards"}, only_off("not supported")},
  };
  return table;
}

std::optional<Meaning> answer_of(const std::vector<Entry>& table, const std::string& key, const YAML::Node& value) {
  for (const Entry& entry : table) {
    if (std::ranges::any_of(entry.patterns, [&](std::string_view pattern) { return matches(key, pattern); })) {
      return entry.answer(value);
    }
  }
  return std::nullopt;
}

}  // namespace

std::optional<Meaning> meaning_of_key(const std::string& key, const YAML::Node& value) {
  return answer_of(keys(), key, value);
}

std::optional<Meaning> meaning_of_value(const std::string& key, const YAML::Node& value) {
  return answer_of(values(), key, value);
}

std::optional<Meaning> meaning_of_type(const YAML::Node& value, const std::string& rl) {
  const std::string word = word_of(value);
  const auto is = [](const char* type) { return Meaning{Kind::same, "", {{"type", type}}}; };
  const bool judged = rl == "kto", pairs = rl == "dpo" || rl == "ipo" || rl == "orpo" || rl == "simpo";
  if (auto preferences = meaning_of_preferences(word, judged)) return preferences;
  if (word == "chat_template.argilla_chat") return is(judged ? "judged" : "preference");
  // Of an objective that compares answers, conversations are those that its answers belong to.
  if ((judged || pairs) && word.starts_with("chat_template")) return is(judged ? "judged" : "preference");
  if (word == "chat_template.default" || word.starts_with("sharegpt")) return is("chat_template");
  if (word == "alpaca.load_no_prompt" || word == "alpaca_w_system") {
    return refused("write type: alpaca, with format and no_input_format for the prompt");
  }
  if (word.starts_with("alpaca:") || word.starts_with("alpaca_") || word == "jeopardy" || word == "oasst" ||
      word == "gpteacher" || word == "reflection" || word.starts_with("explainchoice") ||
      word.starts_with("concisechoice") || word == "summarizetldr" || word.starts_with("context_qa") ||
      word.starts_with("user_defined")) {
    return refused(
        "write type: alpaca with field_instruction, field_input, field_output and format, which say the same "
        "(docs/data.md)");
  }
  if (word == "pretrain") return is("completion");
  return std::nullopt;
}

std::optional<Meaning> meaning_in_dataset(const std::string& key, const YAML::Node& value) {
  return answer_of(entry_keys(), key, value);
}

bool is_absent(const YAML::Node& value) {
  if (value.IsNull()) return true;
  if (value.IsScalar()) return value.Scalar().empty();
  return value.size() == 0;
}

}  // namespace inlay::options::option
