#include "options/adapter_fields.h"

#include <algorithm>

#include "core/problems.h"
#include "core/text.h"

namespace inlay::options::option {

namespace {

using adapter::AdapterKind;
using adapter::LoraInit;
using adapter::ModuleNames;

template <class Value>
auto in_adapter(Value adapter::AdapterOptions::*member) {
  return [member](auto& o) -> auto& { return o.adapter.*member; };
}

bool is_plain_name(const std::string& text) {
  return text.find_first_not_of("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_.") == text.npos;
}

// Names of modules: a list, or a text that is a pattern, or else a single name.
template <class Member>
Field modules(std::string name, Member member, std::string meaning) {
  const std::string type = "list of names, or a regular expression";
  return {name,
          type,
          std::move(meaning),
          [member, type](TrainOptions& o, const YAML::Node& node, const Place& place) {
            ModuleNames& into = std::invoke(member, o);
            into = {};
            const std::vector<std::string> entries = entries_of(node, place, type);
            std::set<std::string> seen;
            for (const std::string& entry : entries) {
              if (entry.empty()) place.fail("expected {}, got nothing", type);
              if (!seen.insert(entry).second) place.fail("'{}' is given twice", entry);
            }
            ModuleNames word{.pattern = entries.size() == 1 ? entries.front() : ""};
            if (word.all_linear() || (node.IsScalar() && !is_plain_name(word.pattern))) {
              into = word;
            } else {
              into.names = entries;
            }
          },
          [member](const TrainOptions& o, YAML::Emitter& out) {
            const ModuleNames& names = std::invoke(member, o);
            if (!names.pattern.empty()) {
              out << YAML::DoubleQuoted << names.pattern;
              return;
            }
            out << YAML::Flow << YAML::BeginSeq;
            for (const std::string& entry : names.names) out << YAML::DoubleQuoted << entry;
            out << YAML::EndSeq;
          },
          one_or_list({{"type", "string"}, {"minLength", 1}})};
}

std::string value_of(const Field& field, const TrainOptions& options) {
  YAML::Emitter out;
  field.emit(options, out);
  return out.c_str();
}

// axolotl's files have keys of adapters without a value where there is none.
Field nullable(Field field) {
  field.set = [set = field.set, otherwise = value_of(field, {})](TrainOptions& o, const YAML::Node& node,
                                                                 const Place& place) {
    set(o, node.IsNull() ? YAML::Load(otherwise) : node, place);
  };
  field.schema = {{"anyOf", {field.schema, {{"type", "null"}}}}};
  return field;
}

}  // namespace

const std::vector<Field>& adapter_fields() {
  using A = adapter::AdapterOptions;
  static const std::vector<Field> table = [] {
    const std::string parameters = "list of names";
    std::vector<Field> fields = {
        choice("adapter", in_adapter(&A::kind),
               {{"none", AdapterKind::none}, {"lora", AdapterKind::lora}, {"qlora", AdapterKind::qlora}},
               "train an adapter beside the base model, which does not change; qlora: with the base in four bits"),
        or_auto("lora_r", in_adapter(&A::rank), 1, "rank of an adapter; auto: as in lora_model_dir"),
        or_auto("lora_alpha", in_adapter(&A::alpha), 0,
                "what is added to a weight is B·A times lora_alpha / lora_r; auto: as in lora_model_dir"),
        number("lora_dropout", in_adapter(&A::dropout), 0, 0.999999, "share of an adapter's inputs that is dropped"),
        modules("lora_target_modules", in_adapter(&A::target_modules),
                "linear layers to adapt: what their names end with, a regular expression for whole names, or "
                "all-linear"),
        boolean("lora_target_linear", in_adapter(&A::target_linear),
                "adapt all linear layers except the head; experts and routers are not linear layers"),
        optional_texts("lora_target_parameters", in_adapter(&A::target_parameters), parameters,
                       "tensors to adapt that are not layers: experts.gate_up_proj, experts.down_proj, router.weight"),
        modules("lora_exclude_modules", in_adapter(&A::exclude_modules), "linear layers not to adapt"),
        optional_texts("lora_modules_to_save", in_adapter(&A::modules_to_save), parameters,
                       "modules of the base model that train in full and are saved with the adapter: embed_tokens, "
                       "lm_head"),
        numbers("peft_layers_to_transform", in_adapter(&A::layers), "layers to adapt, counted from 0; none: all"),
        boolean("peft_use_rslora", in_adapter(&A::rslora), "lora_alpha / sqrt(lora_r) in place of lora_alpha / lora_r"),
        boolean("peft_use_dora", in_adapter(&A::dora), "DoRA: adapt direction and magnitude of each row separately"),
        choice("lora_init", in_adapter(&A::init),
               {{"auto", {}}, {"gaussian", LoraInit::gaussian}, {"pissa", LoraInit::pissa}, {"free", LoraInit::free}},
               "what an adapter starts from: gaussian: random; pissa: the weights' largest directions; free: the "
               "directions that carry the least of what the model knows, which it never leaves; auto: gaussian"),
        positive_share(
            "lora_free_ratio", in_adapter(&A::free_ratio),
            "lora_init: free: share of the directions of each input that an adapter may use, rounded up like "
            "osft.unfreeze_rank_ratio; osft.calibration says what text they are found from"),
        optional_text("lora_model_dir", in_adapter(&A::model_dir), "folder", "an adapter to continue from"),
        boolean("load_in_4bit", in_adapter(&A::load_in_4bit), "hold the base model's matrices in four bits (NF4)"),
        boolean("load_in_8bit", in_adapter(&A::load_in_8bit), "hold the base model's matrices in eight bits (int8)"),
        boolean("load_in_fp8", in_adapter(&A::load_in_fp8), "hold the base model's matrices in fp8 (e4m3)"),
    };
    for (Field& field : fields) field = nullable(std::move(field));
    return fields;
  }();
  return table;
}

bool is_adapter_key(const std::string& name) {
  return std::ranges::any_of(adapter_fields(), [&](const Field& field) { return field.name == name; });
}

void validate_adapter(const TrainOptions& options, KeyProblems& problems) {
  const adapter::AdapterOptions& a = options.adapter;
  const auto refuse = [&](bool wrong, const std::string& key, std::string_view what) {
    problems.add_if(wrong, key, what);
  };
  const auto any_wrong = [&](const std::vector<std::string>& keys) {
    return std::ranges::any_of(keys, [&](const std::string& key) { return problems.is_wrong(key); });
  };
  if (!a.enabled()) {
    if (problems.is_wrong("adapter")) return;
    std::vector<std::string> given;
    for (const Field& field : adapter_fields()) {
      const bool set = value_of(field, options) != value_of(field, {});
      if (set && !field.name.starts_with("load_in_")) given.push_back(field.name);
    }
    if (!given.empty()) {
      problems.add(given.front(),
                   fmt::format("{} {} for adapters, but adapter is not given; add adapter: lora, or leave {} out",
                               join(given, ", "), given.size() == 1 ? "is" : "are", given.size() == 1 ? "it" : "them"));
    }
    for (const auto& [key, given_too] : {std::pair("load_in_4bit", a.load_in_4bit),
                                         {"load_in_8bit", a.load_in_8bit},
                                         {"load_in_fp8", a.load_in_fp8}}) {
      refuse(given_too, key,
             fmt::format("{} without an adapter: quantized weights cannot train; add adapter: {}, or leave it out", key,
                         key == std::string_view("load_in_4bit") ? "qlora" : "lora"));
    }
    return;
  }
  refuse(a.dora && a.keeps_to_free(), "peft_use_dora",
         "peft_use_dora does not go with lora_init: free: magnitudes would change the output for every input");
  refuse(a.free_ratio != adapter::AdapterOptions{}.free_ratio && !a.keeps_to_free(), "lora_free_ratio",
         "lora_free_ratio is for lora_init: free");
  refuse(options.osft.enabled, "adapter",
         "adapter and osft are both given: osft trains the weights themselves, which an adapter leaves as they are; "
         "leave one out (lora_init: free keeps an adapter to directions that osft would train)");
  refuse(options.freeze != std::vector<std::string>{"none"}, "freeze",
         "freeze: with an adapter all of the base model is frozen, except lora_modules_to_save; leave it out");
  refuse(options.attention != model::AttentionText{}, "attention",
         "attention: an adapter's files cannot carry a rule of attention, so a program that loads them would compute "
         "something else; put it into the base model (inlay_attention in its config.json), or leave it out");
  refuse(a.kind == AdapterKind::qlora && !a.load_in_4bit && !problems.is_wrong("load_in_4bit"), "adapter",
         "adapter: qlora needs load_in_4bit: true");
  refuse(a.load_in_4bit && a.load_in_8bit, "load_in_8bit",
         "load_in_4bit and load_in_8bit are both given; one of them is enough");
  refuse(a.load_in_fp8 && (a.load_in_4bit || a.load_in_8bit), "load_in_fp8",
         "load_in_fp8 is given together with load_in_4bit or load_in_8bit; one of them is enough");
  refuse(a.alpha && !(*a.alpha > 0), "lora_alpha",
         "lora_alpha: expected a number above 0; with 0 nothing would be learned");
  const bool goes_on = !a.model_dir.empty() || problems.is_wrong("lora_model_dir");
  if (!goes_on) {
    refuse(!a.rank && !problems.is_wrong("lora_r"), "adapter",
           "lora_r is required with an adapter: an integer above 0, such as 16");
    refuse(!a.alpha && !problems.is_wrong("lora_alpha"), "adapter",
           "lora_alpha is required with an adapter: a number above 0, such as 16");
    refuse(!a.names_targets() && !any_wrong({"lora_target_linear", "lora_target_modules", "lora_target_parameters"}),
           "adapter",
           "an adapter needs something to adapt: lora_target_linear: true, or names in lora_target_modules or "
           "lora_target_parameters");
  } else {
    refuse(a.init.has_value(), "lora_init",
           "lora_init is for a new adapter; the one in lora_model_dir continues as it is");
  }
  const bool pattern = !a.target_modules.pattern.empty() && !a.target_modules.all_linear();
  refuse(
      pattern && a.target_linear, "lora_target_linear",
      "lora_target_linear and a pattern in lora_target_modules are both given; a pattern can name all layers itself");
  refuse(pattern && !a.layers.empty(), "peft_layers_to_transform",
         "peft_layers_to_transform is for a list of lora_target_modules; a pattern can name the layers itself");
  for (const std::int64_t layer : a.layers) {
    refuse(layer < 0, "peft_layers_to_transform",
           fmt::format("peft_layers_to_transform: layers are counted from 0, got {}", layer));
  }
  if (!a.target_parameters.empty()) {
    // PEFT refuses to load such adapters.
    refuse(a.dropout > 0, "lora_dropout",
           "lora_dropout must be 0 with lora_target_parameters: their inputs cannot be dropped separately");
    refuse(a.dora, "peft_use_dora", "peft_use_dora does not go with lora_target_parameters: DoRA is for linear layers");
  }
}

}  // namespace inlay::options::option
