#include "train/board.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <condition_variable>
#include <mutex>

#include <nlohmann/json.hpp>

#include "support/files.h"
#include "support/http_server.h"
#include "train/mlflow.h"

namespace inlay::train {
namespace {

using inlay::testing::HttpServer;
using inlay::testing::Setting;
using inlay::testing::TempFolder;
using inlay::testing::user_error_of;
using nlohmann::json;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

BoardRecord record(std::int64_t step) { return {.time = 1000.5, .step = step, .values = {{"train/loss", 2.5}}}; }

TEST(TrainBoard, NamesAreThoseThatPeopleKnow) {
  const BoardRecord step =
      board_record(R"({"step":3,"total_steps":9,"loss":2.5,"lr":0.001,"time":"2026","run":"a"})", 7);
  EXPECT_EQ(step.step, 3);
  EXPECT_EQ(step.time, 7);
  EXPECT_THAT(step.values, ElementsAre(std::pair("train/loss", 2.5), std::pair("train/learning_rate", 0.001)));
  const BoardRecord evaluation = board_record(R"({"step":3,"eval_loss":1.5,"eval_accuracy":0.5,"best_step":3})", 7);
  EXPECT_THAT(evaluation.values, ElementsAre(std::pair("eval/loss", 1.5), std::pair("eval/accuracy", 0.5),
                                             std::pair("eval/best_step", 3.0)));
}

// A board that does what a test says.
struct Story {
  std::mutex mutex;
  std::condition_variable changed;
  std::vector<std::int64_t> steps;
  std::vector<BoardEnd> ends;
  bool blocked = false;
  int failures = 0;
  int tries = 0;
};
class ToldBoard final : public Board {
 public:
  explicit ToldBoard(std::shared_ptr<Story> story) : story_(std::move(story)) {}
  std::string name() const override { return "told"; }
  void write(const std::vector<BoardRecord>& records) override {
    std::unique_lock lock(story_->mutex);
    ++story_->tries;
    story_->changed.notify_all();
    story_->changed.wait(lock, [&] { return !story_->blocked; });
    if (story_->failures-- > 0) throw std::runtime_error("out of order");
    for (const BoardRecord& r : records) story_->steps.push_back(r.step);
  }
  void end(BoardEnd how) override {
    const std::lock_guard lock(story_->mutex);
    story_->ends.push_back(how);
  }

 private:
  std::shared_ptr<Story> story_;
};

TEST(TrainBoard, RecordsArriveInTheirOrderAndTheEndAfterThem) {
  const auto story = std::make_shared<Story>();
  BoardQueue queue(std::make_unique<ToldBoard>(story));
  std::vector<std::int64_t> expected;
  for (std::int64_t step = 1; step <= 1000; ++step) {
    queue.offer(record(step));
    expected.push_back(step);
  }
  queue.end(BoardEnd::finished, std::chrono::minutes(5));
  EXPECT_EQ(story->steps, expected);
  EXPECT_THAT(story->ends, ElementsAre(BoardEnd::finished));
  EXPECT_THAT(queue.take_messages(), IsEmpty());
}

TEST(TrainBoard, AFailureIsSaidOnceAndTriedAgain) {
  const auto story = std::make_shared<Story>();
  story->failures = 2;
  BoardQueue queue(std::make_unique<ToldBoard>(story));
  queue.offer(record(1));
  queue.end(BoardEnd::stopped, std::chrono::minutes(5));
  EXPECT_EQ(story->tries, 3);
  EXPECT_THAT(story->steps, ElementsAre(1));
  EXPECT_THAT(story->ends, ElementsAre(BoardEnd::stopped));
  EXPECT_THAT(queue.take_messages(),
              ElementsAre("told: out of order; the run continues, and will try again", "told: can be reached again"));
}

// One that hangs keeps nobody waiting: what is offered is taken or left out, and the end comes when patience is over.
TEST(TrainBoard, ABoardThatHangsHoldsNothingUp) {
  const auto story = std::make_shared<Story>();
  story->blocked = true;
  {
    BoardQueue queue(std::make_unique<ToldBoard>(story));
    const auto count = static_cast<std::int64_t>(BoardQueue::most_waiting) + 7;
    for (std::int64_t step = 1; step <= count; ++step) queue.offer(record(step));
    queue.end(BoardEnd::finished, std::chrono::milliseconds(1));
    EXPECT_THAT(queue.take_messages(),
                ElementsAre(HasSubstr("told: 10,007 records did not reach it; metrics.jsonl has all of them")));
    EXPECT_THAT(story->steps, IsEmpty());
  }
  // The thread outlives the queue, and may still wake up.
  const std::lock_guard lock(story->mutex);
  story->blocked = false;
  story->changed.notify_all();
}

// As much of MLflow as is asked for.
class FakeMlflow {
 public:
  HttpServer server{[this](const HttpServer::Request& request) { return answer(request); }};
  std::string experiment;  // that exists
  bool broken = false;
  int refused = 0;       // batches of parameters that it does not take before it does
  std::string stranger;  // what something else than MLflow answers

  std::vector<json> posted(const std::string& path) {
    std::vector<json> bodies;
    for (const auto& request : server.requests()) {
      if (request.path == "/api/2.0/mlflow/" + path) bodies.push_back(json::parse(request.body));
    }
    return bodies;
  }

 private:
  std::string answer(const HttpServer::Request& request) {
    if (!stranger.empty()) return HttpServer::json(200, stranger);
    if (request.path.ends_with("log-batch") && request.body.find("\"params\"") != std::string::npos && refused-- > 0) {
      return HttpServer::json(500, "{}");
    }
    if (broken) return HttpServer::json(500, R"({"error_code": "INTERNAL_ERROR", "message": "the disk is full"})");
    if (request.path.find("get-by-name?experiment_name=") != std::string::npos) {
      if (request.path.ends_with("=" + experiment)) {
        return HttpServer::json(200, R"({"experiment": {"experiment_id": "7"}})");
      }
      return HttpServer::json(404, R"({"error_code": "RESOURCE_DOES_NOT_EXIST", "message": "no"})");
    }
    if (request.path.ends_with("experiments/create")) return HttpServer::json(200, R"({"experiment_id": "8"})");
    if (request.path.ends_with("runs/create")) return HttpServer::json(200, R"({"run": {"info": {"run_id": "r1"}}})");
    return HttpServer::json(200, "{}");
  }
};

class TrainMlflow : public ::testing::Test {
 protected:
  void deliver(std::int64_t resumed_after, BoardEnd how, int records = 1) {
    BoardQueue queue(make_mlflow(
        options(), {.output = folder.path(), .run = "abc", .version = "1.2", .resumed_after = resumed_after}));
    for (int i = 0; i < records; ++i) queue.offer(record(resumed_after + i + 1));
    queue.end(how, std::chrono::minutes(5));
    messages = queue.take_messages();
  }
  options::TrainOptions options() {
    options::TrainOptions o;
    o.report_to = {"mlflow"};
    o.mlflow_tracking_uri = mlflow.server.url();
    o.mlflow_experiment_name = "my experiment";
    o.mlflow_run_name = "first";
    return o;
  }

  TempFolder folder;
  FakeMlflow mlflow;
  std::vector<std::string> messages;
};

TEST_F(TrainMlflow, ARunIsMadeAndToldOfEveryRecord) {
  deliver(0, BoardEnd::finished);
  EXPECT_THAT(messages, IsEmpty());
  EXPECT_EQ(mlflow.posted("experiments/create").at(0).at("name"), "my experiment");
  const json created = mlflow.posted("runs/create").at(0);
  EXPECT_EQ(created.at("experiment_id"), "8");
  EXPECT_EQ(created.at("run_name"), "first");
  const auto batches = mlflow.posted("runs/log-batch");
  std::size_t parameters = 0;
  for (const json& batch : batches) {
    if (batch.contains("params")) parameters += batch.at("params").size();
  }
  EXPECT_GT(parameters, 50u);
  EXPECT_EQ(batches.back().at("metrics"),
            json::parse(R"([{"key": "train/loss", "value": 2.5, "timestamp": 1000500, "step": 1}])"));
  EXPECT_EQ(mlflow.posted("runs/update").at(0).at("status"), "FINISHED");
}

TEST_F(TrainMlflow, AResumedRunGoesOnInTheSameOne) {
  mlflow.experiment = "my%20experiment";
  deliver(0, BoardEnd::stopped);
  EXPECT_EQ(mlflow.posted("experiments/create").size(), 0u);
  EXPECT_EQ(mlflow.posted("runs/create").at(0).at("experiment_id"), "7");
  EXPECT_EQ(mlflow.posted("runs/update").at(0).at("status"), "KILLED");
  deliver(5, BoardEnd::finished);
  EXPECT_EQ(mlflow.posted("runs/create").size(), 1u);
  EXPECT_EQ(mlflow.posted("runs/update").at(1).at("status"), "RUNNING");
  EXPECT_EQ(mlflow.posted("runs/log-batch").back().at("metrics").at(0).at("step"), 6);
  // A run that begins anew there is another.
  deliver(0, BoardEnd::finished);
  EXPECT_EQ(mlflow.posted("runs/create").size(), 2u);
}

TEST_F(TrainMlflow, PasswordsGoIntoAHeaderAndNowhereElse) {
  const Setting user("MLFLOW_TRACKING_USERNAME", "me"), password("MLFLOW_TRACKING_PASSWORD", "secret");
  deliver(0, BoardEnd::finished);
  for (const auto& request : mlflow.server.requests()) {
    EXPECT_THAT(request.head, HasSubstr("\r\nAuthorization: Basic bWU6c2VjcmV0"));
    EXPECT_THAT(request.body, ::testing::Not(HasSubstr("secret")));
  }
}

TEST_F(TrainMlflow, WhatTheServerComplainsOfIsSaid) {
  mlflow.broken = true;
  BoardQueue queue(make_mlflow(options(), {.output = folder.path(), .run = "abc", .version = "1.2"}));
  queue.offer(record(1));
  queue.end(BoardEnd::finished, std::chrono::milliseconds(1500));
  EXPECT_THAT(queue.take_messages(),
              ::testing::Contains(HasSubstr("answered 500: the disk is full; the run continues")));
}

TEST_F(TrainMlflow, SomethingElseThatAnswersIsNamed) {
  for (const char* answer : {"hello", "{}", R"({"experiment": {"experiment_id": 7}})"}) {
    mlflow.stranger = answer;
    BoardQueue queue(make_mlflow(options(), {.output = folder.path(), .run = "abc", .version = "1.2"}));
    queue.offer(record(1));
    queue.end(BoardEnd::finished, std::chrono::milliseconds(1500));
    EXPECT_THAT(queue.take_messages(),
                ::testing::Contains(HasSubstr("answers, but not like an MLflow server; the run continues")))
        << answer;
  }
}

// What is tried again is not begun again.
TEST_F(TrainMlflow, ARunWhoseParametersAreRefusedAtFirstIsOneRun) {
  mlflow.refused = 2;
  deliver(0, BoardEnd::finished);
  EXPECT_EQ(mlflow.posted("runs/create").size(), 1u);
  EXPECT_EQ(mlflow.posted("runs/update").at(0).at("status"), "FINISHED");
}

TEST_F(TrainMlflow, LongParametersEndWithAWholeCharacter) {
  options::TrainOptions long_one = options();
  long_one.sample_prompts = {""};
  for (int i = 0; i < 600; ++i) long_one.sample_prompts[0] += i % 2 == 0 ? "ä" : "漢";
  BoardQueue queue(make_mlflow(long_one, {.output = folder.path(), .run = "abc", .version = "1.2"}));
  queue.offer(record(1));
  queue.end(BoardEnd::finished, std::chrono::minutes(5));
  EXPECT_THAT(queue.take_messages(), IsEmpty());
  EXPECT_EQ(mlflow.posted("runs/update").at(0).at("status"), "FINISHED");
}

TEST(TrainBoards, AnAddressThatCannotBeIsAnErrorBeforeTheRun) {
  options::TrainOptions options;
  options.report_to = {"mlflow"};
  EXPECT_THAT(user_error_of([&] { check_boards(options); }),
              HasSubstr("neither mlflow_tracking_uri nor MLFLOW_TRACKING_URI says where its server is"));
  options.mlflow_tracking_uri = "databricks";
  EXPECT_THAT(user_error_of([&] { check_boards(options); }),
              HasSubstr("mlflow_tracking_uri: databricks: expected http://HOST[:PORT] or https://HOST[:PORT]"));
  options.mlflow_tracking_uri.clear();
  const Setting server("MLFLOW_TRACKING_URI", "http://127.0.0.1:5000");
  check_boards(options);
}

}  // namespace
}  // namespace inlay::train
