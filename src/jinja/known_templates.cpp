#include "jinja/known_templates.h"

#include <array>

namespace inlay::jinja {

namespace {

constexpr std::string_view alpaca = R"({{- bos_token -}}
{%- for message in messages -%}
  {%- if message.role == 'user' -%}{{ '### Instruction:\n' ~ message.content }}
  {%- elif message.role == 'assistant' -%}{{ '### Response:\n' ~ message.content ~ eos_token }}
  {%- elif loop.first -%}{{ message.content }}
  {%- endif -%}
  {{- '' if loop.last else '\n\n' -}}
{%- endfor -%}
{{- '\n\n### Response:\n' if add_generation_prompt else '' -}}
)";

constexpr std::string_view chatml = R"({%- for message in messages -%}
  {{- '<|im_start|>' ~ message.role ~ '\n' ~ message.content ~ '<|im_end|>\n' -}}
{%- endfor -%}
{{- '<|im_start|>assistant\n' if add_generation_prompt else '' -}}
)";

constexpr std::string_view llama3 = R"({%- macro header(role) -%}
  {{- '<|start_header_id|>' ~ role ~ '<|end_header_id|>\n\n' -}}
{%- endmacro -%}
{%- for message in messages -%}
  {{- (bos_token if loop.first else '') ~ header(message.role) ~ message.content | trim ~ '<|eot_id|>' -}}
{%- endfor -%}
{{- header('assistant') if add_generation_prompt else '' -}}
)";

// The first models have no system message; in the third ones it stands before the first question.
constexpr std::string_view gemma = R"({%- if messages[0].role == 'system' -%}
  {{- raise_exception('This template has no system message') -}}
{%- endif -%}
{{- bos_token -}}
{%- for message in messages -%}
  {%- if (message.role == 'user') != (loop.index0 is even) -%}
    {{- raise_exception('Roles must alternate: user, assistant, user, ...') -}}
  {%- endif -%}
  {%- set role = 'model' if message.role == 'assistant' else message.role -%}
  {{- '<start_of_turn>' ~ role ~ '\n' ~ message.content | trim ~ '<end_of_turn>\n' -}}
{%- endfor -%}
{{- '<start_of_turn>model\n' if add_generation_prompt else '' -}}
)";

constexpr std::string_view gemma3 = R"({%- set has_system = messages[0].role == 'system' -%}
{{- bos_token -}}
{%- for message in (messages[1:] if has_system else messages) -%}
  {%- if (message.role == 'user') != (loop.index0 is even) -%}
    {{- raise_exception('Roles must alternate: user, assistant, user, ...') -}}
  {%- endif -%}
  {%- set role = 'model' if message.role == 'assistant' else message.role -%}
  {%- set before = messages[0].content ~ '\n\n' if has_system and loop.first else '' -%}
  {{- '<start_of_turn>' ~ role ~ '\n' ~ before ~ message.content | trim ~ '<end_of_turn>\n' -}}
{%- endfor -%}
{{- '<start_of_turn>model\n' if add_generation_prompt else '' -}}
)";

// A question is followed by the head of its answer.
constexpr std::string_view phi_3 = R"({{- bos_token -}}
{%- for message in messages -%}
  {%- set text = message.content ~ '<|end|>\n' -%}
  {%- if message.role == 'system' -%}{{ '<|system|>\n' ~ text }}
  {%- elif message.role == 'user' -%}{{ '<|user|>\n' ~ text ~ '<|assistant|>\n' }}
  {%- elif message.role == 'assistant' -%}{{ text }}
  {%- endif -%}
{%- endfor -%}
)";

constexpr std::string_view phi_35 = R"({%- for message in messages -%}
  {%- if message.role in ['user', 'assistant'] or (message.role == 'system' and message.content) -%}
    {{- '<|' ~ message.role ~ '|>\n' ~ message.content ~ '<|end|>\n' -}}
  {%- endif -%}
{%- endfor -%}
{{- '<|assistant|>\n' if add_generation_prompt else '' -}}
)";

// What the model was taught to be told where there is no system message.
constexpr std::string_view phi_4 =
    R"({%- macro turn(role, text) -%}{{- '<|im_start|>' ~ role ~ '<|im_sep|>' ~ text ~ '<|im_end|>' -}}{%- endmacro -%}
{%- set otherwise = 'You are Phi, a language model trained by Microsoft to help users. Your role as an assistant involves thoroughly exploring questions through a systematic thinking process before providing the final precise and accurate solutions. This requires engaging in a comprehensive cycle of analysis, summarizing, exploration, reassessment, reflection, backtracing, and iteration to develop well-considered thinking process. Please structure your response into two main sections: Thought and Solution using the specified format: <think> {Thought section} </think> {Solution section}. In the Thought section, detail your reasoning process in steps. Each step should include detailed considerations such as analysing questions, summarizing relevant findings, brainstorming new ideas, verifying the accuracy of the current steps, refining any errors, and revisiting previous steps. In the Solution section, based on various attempts, explorations, and reflections from the Thought section, systematically present the final solution that you deem correct. The Solution section should be logical, accurate, and concise and detail necessary steps needed to reach the conclusion. Now, try to solve the following question through the above guidelines:' -%}
{%- set has_system = messages and messages[0].role == 'system' -%}
{{- turn('system', messages[0].content if has_system else otherwise) -}}
{%- for message in messages -%}
  {%- if message.role in ['user', 'assistant'] -%}{{ turn(message.role, message.content) }}{%- endif -%}
{%- endfor -%}
{{- '<|im_start|>assistant<|im_sep|>' if add_generation_prompt else '' -}}
)";

// Mistral's write a question as SPACE [INST] SPACE ... with spaces that differ between their tokenizers, and the system
// message before the first question, or from the second version on before one that the conversation ends with.
constexpr std::string_view mistral_begin =
    R"({%- if tools -%}{{ raise_exception('This template writes no tools; give the model its own') }}{%- endif -%}
{%- set has_system = messages[0].role == 'system' -%}
{{- bos_token -}}
{%- for message in (messages[1:] if has_system else messages) -%}
  {%- if message.role not in ['user', 'assistant'] or (message.role == 'user') != (loop.index0 is even) -%}
    {{- raise_exception('After a system message roles must alternate: user, assistant, user, ...') -}}
  {%- endif -%}
)";
constexpr std::string_view mistral_v1 =
    R"(  {%- if message.role == 'assistant' -%}{{ ' ' ~ message.content ~ eos_token }}
  {%- else -%}{{ ' [INST] ' ~ (messages[0].content ~ '\n\n' if has_system and loop.first) ~ message.content ~ ' [/INST]' }}
  {%- endif -%}
{%- endfor -%}
)";
constexpr std::string_view mistral_v2v3 =
    R"(  {%- if message.role == 'assistant' -%}{{ ' ' ~ message.content | trim ~ eos_token }}
  {%- else -%}{{ '[INST] ' ~ (messages[0].content ~ '\n\n' if has_system and loop.last) ~ message.content ~ '[/INST]' }}
  {%- endif -%}
{%- endfor -%}
)";
constexpr std::string_view mistral_v3_tekken =
    R"(  {%- if message.role == 'assistant' -%}{{ message.content ~ eos_token }}
  {%- else -%}{{ '[INST]' ~ (messages[0].content ~ '\n\n' if has_system and loop.last) ~ message.content ~ '[/INST]' }}
  {%- endif -%}
{%- endfor -%}
)";

// What Qwen's have in common: how tools are told of, called and answered.
constexpr std::string_view qwen_begin = R"({%- macro tool_text() -%}
  {{- '# Tools\n\nYou may call one or more functions to assist with the user query.\n\nYou are provided with function signatures within <tools></tools> XML tags:\n<tools>' -}}
  {%- for tool in tools -%}{{ '\n' ~ tool | tojson }}{%- endfor -%}
  {{- '\n</tools>\n\nFor each function call, return a json object with function name and arguments within <tool_call></tool_call> XML tags:\n<tool_call>\n{"name": <function-name>, "arguments": <args-json-object>}\n</tool_call>' -}}
{%- endmacro -%}
{%- macro call_text(call) -%}
  {%- set function = call.function if call.function else call -%}
  {%- set arguments = function.arguments if function.arguments is string else function.arguments | tojson -%}
  {{- '<tool_call>\n{"name": "' ~ function.name ~ '", "arguments": ' ~ arguments ~ '}\n</tool_call>' -}}
{%- endmacro -%}
{%- macro answer_text(message, before, behind) -%}
  {{- ('' if before == 'tool' else '<|im_start|>user') ~ '\n<tool_response>\n' ~ message.content -}}
  {{- '\n</tool_response>' ~ ('' if behind == 'tool' else '<|im_end|>\n') -}}
{%- endmacro -%}
)";

constexpr std::string_view qwen_25 = R"({%- set has_system = messages[0].role == 'system' -%}
{{- '<|im_start|>system\n' -}}
{{- messages[0].content if has_system else 'You are Qwen, created by Alibaba Cloud. You are a helpful assistant.' -}}
{{- ('\n\n' ~ tool_text() if tools else '') ~ '<|im_end|>\n' -}}
{%- for message in messages -%}
  {%- if message.role == 'tool' -%}
    {{- answer_text(message, loop.previtem.role if not loop.first, loop.nextitem.role if not loop.last) -}}
  {%- elif message.role == 'assistant' and message.tool_calls -%}
    {{- '<|im_start|>assistant' ~ ('\n' ~ message.content if message.content else '') -}}
    {%- for call in message.tool_calls -%}{{ '\n' ~ call_text(call) }}{%- endfor -%}
    {{- '<|im_end|>\n' -}}
  {%- elif message.role in ['user', 'assistant'] or (message.role == 'system' and not loop.first) -%}
    {{- '<|im_start|>' ~ message.role ~ '\n' ~ message.content ~ '<|im_end|>\n' -}}
  {%- endif -%}
{%- endfor -%}
{{- '<|im_start|>assistant\n' if add_generation_prompt else '' -}}
)";

// Reasoning is written behind the last question alone, and for the last answer even where there is none.
constexpr std::string_view qwen3 = R"({%- set has_system = messages[0].role == 'system' -%}
{%- if tools -%}
  {{- '<|im_start|>system\n' ~ (messages[0].content ~ '\n\n' if has_system else '') ~ tool_text() ~ '<|im_end|>\n' -}}
{%- elif has_system -%}
  {{- '<|im_start|>system\n' ~ messages[0].content ~ '<|im_end|>\n' -}}
{%- endif -%}
{%- set last = namespace(question=-1) -%}
{%- for message in messages -%}
  {%- if message.role == 'user' and not (message.content.startswith('<tool_response>')
                                         and message.content.endswith('</tool_response>')) -%}
    {%- set last.question = loop.index0 -%}
  {%- endif -%}
{%- endfor -%}
{%- set question = last.question if last.question >= 0 else messages | length - 1 -%}
{%- for message in messages -%}
  {%- if message.role == 'tool' -%}
    {{- answer_text(message, loop.previtem.role if not loop.first, loop.nextitem.role if not loop.last) -}}
  {%- elif message.role == 'assistant' -%}
    {%- set content = message.content -%}
    {%- set thoughts = '' -%}
    {%- if message.reasoning_content is defined and message.reasoning_content is not none -%}
      {%- set thoughts = message.reasoning_content -%}
    {%- elif '</think>' in content -%}
      {%- set thoughts = content.split('</think>')[0].rstrip('\n').split('<think>')[-1].lstrip('\n') -%}
      {%- set content = content.split('</think>')[-1].lstrip('\n') -%}
    {%- endif -%}
    {{- '<|im_start|>assistant\n' -}}
    {%- if loop.index0 > question and (loop.last or thoughts) -%}
      {{- '<think>\n' ~ thoughts.strip('\n') ~ '\n</think>\n\n' ~ content.lstrip('\n') -}}
    {%- else -%}{{ content }}{%- endif -%}
    {%- for call in message.tool_calls or [] -%}
      {{- ('\n' if content or not loop.first else '') ~ call_text(call) -}}
    {%- endfor -%}
    {{- '<|im_end|>\n' -}}
  {%- elif message.role == 'user' or (message.role == 'system' and not loop.first) -%}
    {{- '<|im_start|>' ~ message.role ~ '\n' ~ message.content ~ '<|im_end|>\n' -}}
  {%- endif -%}
{%- endfor -%}
{%- if add_generation_prompt -%}
  {{- '<|im_start|>assistant\n' ~ ('<think>\n\n</think>\n\n' if enable_thinking is defined and enable_thinking is false else '') -}}
{%- endif -%}
)";

// A template, and what it begins with.
struct Known {
  std::string_view name, begin, text;
};
constexpr std::array known = {Known{"alpaca", "", alpaca},
                              Known{"chatml", "", chatml},
                              Known{"gemma", "", gemma},
                              Known{"gemma3", "", gemma3},
                              Known{"llama3", "", llama3},
                              Known{"mistral_v1", mistral_begin, mistral_v1},
                              Known{"mistral_v2v3", mistral_begin, mistral_v2v3},
                              Known{"mistral_v3_tekken", mistral_begin, mistral_v3_tekken},
                              Known{"phi_3", "", phi_3},
                              Known{"phi_35", "", phi_35},
                              Known{"phi_4", "", phi_4},
                              Known{"qwen_25", qwen_begin, qwen_25},
                              Known{"qwen3", qwen_begin, qwen3}};

}  // namespace

std::optional<std::string> known_template(std::string_view name) {
  for (const Known& k : known) {
    if (k.name == name) return std::string(k.begin) + std::string(k.text);
  }
  return std::nullopt;
}

std::string known_template_names() {
  std::string names;
  for (const Known& k : known) names += (names.empty() ? "" : ", ") + std::string(k.name);
  return names;
}

}  // namespace inlay::jinja
