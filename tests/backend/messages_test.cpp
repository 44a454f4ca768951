#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "backend/exec.h"
#include "core/console.h"

namespace inlay::backend {
namespace {

// What goes to standard error meanwhile.
template <class Action>
std::string said(const Action& action) {
  ::testing::internal::CaptureStderr();
  action();
  return ::testing::internal::GetCapturedStderr();
}

TEST(BackendMessages, NotesAreNotLostWhereNobodyTakesThem) {
  const Exec exec = Exec::planner(Device::cpu);
  EXPECT_EQ(said([&] { exec.say(Message::note, "slow"); }), "inlay: slow\n");
  EXPECT_EQ(said([&] { exec.say(Message::progress, "compiling"); }), "");
}

TEST(BackendMessages, WhoMadeTheExecTakesThem) {
  Exec exec = Exec::planner(Device::cpu);
  std::vector<std::string> lines;
  exec.set_messages([&](Message kind, std::string_view text) {
    lines.push_back((kind == Message::note ? "note " : "progress ") + std::string(text));
  });
  const Exec moved = std::move(exec);
  EXPECT_EQ(said([&] {
              moved.say(Message::progress, "compiling");
              moved.say(Message::note, "slow");
            }),
            "");
  EXPECT_EQ(lines, (std::vector<std::string>{"progress compiling", "note slow"}));
}

TEST(BackendMessages, AQuietConsoleStaysQuiet) {
  for (const bool quiet : {false, true}) {
    const std::string text = said([&] {
      Console console(quiet);
      Exec exec = Exec::planner(Device::cpu);
      exec.set_messages(messages_to(console));
      exec.say(Message::note, "slow");
    });
    EXPECT_EQ(text, quiet ? "" : "slow\n");
  }
}

}  // namespace
}  // namespace inlay::backend
