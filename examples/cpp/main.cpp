// What a model says next, how sure it is, and an operation of training by itself.
#include <cstdio>
#include <string>
#include <vector>

#include <inlay/inlay.h>

namespace {

// The loss of two rows of hidden states over three words, and its gradient.
void loss_by_hand() {
  std::vector<float> hidden = {1, 2, 3, 4}, head = {1, 0, 0, 1, 1, 1}, gradient(4);
  std::vector<std::int32_t> targets = {2, 1};
  float loss = 0;
  inlay::LinearCrossEntropy call;
  call.hidden = inlay::Tensor(hidden.data(), inlay::DType::f32, {2, 2});
  call.weight = inlay::Tensor(head.data(), inlay::DType::f32, {3, 2});
  call.targets = inlay::Tensor(targets.data(), inlay::DType::i32, {2});
  call.loss = inlay::Tensor(&loss, inlay::DType::f32, {1});
  call.dhidden = inlay::Tensor(gradient.data(), inlay::DType::f32, {2, 2});
  inlay::Ops(inlay::Device::cpu).linear_cross_entropy(call);
  std::printf("loss %.6f, gradient %.6f %.6f %.6f %.6f\n", static_cast<double>(loss), static_cast<double>(gradient[0]),
              static_cast<double>(gradient[1]), static_cast<double>(gradient[2]), static_cast<double>(gradient[3]));
}

void continue_text(const std::string& folder, const std::string& prompt) {
  const inlay::Tokenizer tokenizer(folder);
  inlay::Model model(folder);
  const std::vector<std::int32_t> ids = tokenizer.encode(prompt);
  inlay::Model::Sampling sampling;
  sampling.max_new_tokens = 16;
  std::printf("%s%s\n", prompt.c_str(), tokenizer.decode(model.generate(ids, sampling)).c_str());
}

}  // namespace

int main(int argc, char** argv) {
  try {
    std::printf("inlay %s\n", inlay::version().number.c_str());
    loss_by_hand();
    if (argc > 2) continue_text(argv[1], argv[2]);
  } catch (const inlay::UserError& error) {
    std::fprintf(stderr, "example: %s\n", error.what());
    return 2;
  }
}
