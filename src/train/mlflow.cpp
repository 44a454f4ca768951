#include "train/mlflow.h"

#include <cmath>

#include <fmt/format.h>
#include <yaml-cpp/yaml.h>
#include <nlohmann/json.hpp>

#include "core/clock.h"
#include "core/environment.h"
#include "core/error.h"
#include "core/terminal.h"
#include "io/file.h"
#include "io/json.h"
#include "io/paths.h"

namespace inlay::train {

using nlohmann::json;

io::Url mlflow_server(const options::TrainOptions& options) {
  const std::string address = !options.mlflow_tracking_uri.empty() ? options.mlflow_tracking_uri
                                                                   : environment("MLFLOW_TRACKING_URI").value_or("");
  if (address.empty()) {
    user_error(
        "report_to names mlflow, but neither mlflow_tracking_uri nor MLFLOW_TRACKING_URI says where its server is");
  }
  try {
    return io::parse_url(address);
  } catch (const UserError& error) {
    user_error("mlflow_tracking_uri: {}", error.what());
  }
}

namespace {

constexpr double patience = 10;            // seconds, of a request
constexpr std::size_t most_values = 1000;  // of a request, as MLflow allows
constexpr std::size_t most_parameters = 100;
constexpr std::size_t longest_parameter = 500;

std::int64_t milliseconds(double seconds) { return std::llround(1000 * seconds); }

class MlFlow final : public Board {
 public:
  MlFlow(const options::TrainOptions& options, BoardRun run)
      : server_(mlflow_server(options)), run_(std::move(run)), parameters_(parameters_of(options)) {
    experiment_name_ = !options.mlflow_experiment_name.empty()
                           ? options.mlflow_experiment_name
                           : environment("MLFLOW_EXPERIMENT_NAME").value_or("inlay");
    run_name_ =
        !options.mlflow_run_name.empty() ? options.mlflow_run_name : io::real_path(run_.output).filename().string();
    if (const auto token = environment("MLFLOW_TRACKING_TOKEN")) {
      authorization_ = "Bearer " + *token;
    } else if (const auto user = environment("MLFLOW_TRACKING_USERNAME")) {
      authorization_ = "Basic " + io::base64(*user + ":" + environment("MLFLOW_TRACKING_PASSWORD").value_or(""));
    }
  }

  std::string name() const override { return "mlflow"; }

  void write(const std::vector<BoardRecord>& records) override {
    if (id_.empty()) begin();
    json metrics = json::array();
    const auto send = [&] {
      if (!metrics.empty()) post("runs/log-batch", {{"run_id", id_}, {"metrics", std::move(metrics)}});
      metrics = json::array();
    };
    for (const BoardRecord& record : records) {
      if (metrics.size() + record.values.size() > most_values) send();
      for (const auto& [key, value] : record.values) {
        metrics.push_back(
            {{"key", key}, {"value", value}, {"timestamp", milliseconds(record.time)}, {"step", record.step}});
      }
    }
    send();
  }

  void end(BoardEnd how) override {
    if (id_.empty()) begin();
    const char* const status = how == BoardEnd::finished ? "FINISHED" : how == BoardEnd::stopped ? "KILLED" : "FAILED";
    post("runs/update", {{"run_id", id_}, {"status", status}, {"end_time", milliseconds(wall_clock())}});
  }

 private:
  static std::vector<std::pair<std::string, std::string>> parameters_of(const options::TrainOptions& options) {
    std::vector<std::pair<std::string, std::string>> list;
    for (const auto& item : YAML::Load(options::to_yaml(options))) {
      YAML::Emitter out;
      out << YAML::Flow << item.second;
      list.emplace_back(item.first.Scalar(), first_characters(out.c_str(), longest_parameter));  // half of one is none
    }
    return list;
  }

  json send(io::HttpRequest request) const {
    request.path = "/api/2.0/mlflow/" + request.path;
    request.headers = {{"Content-Type", "application/json"}};
    if (!authorization_.empty()) request.headers.emplace_back("Authorization", authorization_);
    const io::HttpResponse response = io::ask(server_, request, patience);
    const json answer = json::parse(response.body, nullptr, false);
    if (response.status / 100 == 2 && answer.is_object()) return answer;
    if (response.status / 100 == 2) stranger();
    const std::string why = answer.is_object() ? answer.value("message", "") : "";
    if (response.status == 404 && answer.is_object() && answer.value("error_code", "") == "RESOURCE_DOES_NOT_EXIST") {
      return json();
    }
    throw io::HttpError(
        fmt::format("{}: answered {}{}", server_.text(), response.status, why.empty() ? "" : ": " + why));
  }
  [[noreturn]] void stranger() const {
    throw io::HttpError(fmt::format("{}: answers, but not like an MLflow server", server_.text()));
  }
  // What an answer has under these keys, one within the other.
  std::string text_in(const json& answer, const std::string& pointer) const {
    const json::json_pointer at(pointer);
    if (!answer.contains(at) || !answer.at(at).is_string()) stranger();
    return answer.at(at);
  }
  json post(const std::string& path, const json& body) const {
    const std::string text = body.dump(-1, ' ', false, json::error_handler_t::replace);  // a path may be no UTF-8
    json answer = send({.method = "POST", .path = path, .headers = {}, .body = text});
    if (answer.is_null()) throw io::HttpError(fmt::format("{}: the run no longer exists there", server_.text()));
    return answer;
  }

  std::string experiment() const {
    const json found =
        send({.path = "experiments/get-by-name?experiment_name=" + io::percent_encoded(experiment_name_)});
    if (!found.is_null()) return text_in(found, "/experiment/experiment_id");
    return text_in(post("experiments/create", {{"name", experiment_name_}}), "/experiment_id");
  }

  void begin() {
    const std::filesystem::path file = run_.output / "mlflow.json";
    if (run_.resumed_after > 0 && io::exists(file)) {
      const io::Json known = io::Json::read(file);
      if (known.string("server") == server_.text() && known.string("run") == run_.run) {
        const std::string id = known.string("run_id");
        post("runs/update", {{"run_id", id}, {"status", "RUNNING"}});
        id_ = id;
        return;
      }
    }
    if (created_.empty()) {
      const json created = post("runs/create", {{"experiment_id", experiment()},
                                                {"run_name", run_name_},
                                                {"start_time", milliseconds(wall_clock())},
                                                {"tags",
                                                 {{{"key", "inlay.run"}, {"value", run_.run}},
                                                  {{"key", "inlay.version"}, {"value", run_.version}},
                                                  {{"key", "inlay.output_dir"}, {"value", run_.output.string()}}}}});
      created_ = text_in(created, "/run/info/run_id");
      io::write_file_atomic(file,
                            json{{"server", server_.text()}, {"run", run_.run}, {"run_id", created_}}.dump(2) + "\n");
    }
    for (; told_ < parameters_.size(); told_ += most_parameters) {
      json params = json::array();
      for (std::size_t i = told_; i < std::min(told_ + most_parameters, parameters_.size()); ++i) {
        params.push_back({{"key", parameters_[i].first}, {"value", parameters_[i].second}});
      }
      post("runs/log-batch", {{"run_id", created_}, {"params", std::move(params)}});
    }
    id_ = created_;
  }

  io::Url server_;
  BoardRun run_;
  std::string experiment_name_, run_name_, authorization_;
  std::vector<std::pair<std::string, std::string>> parameters_;
  std::string id_;        // that MLflow gave the run; empty before it knows the run's parameters
  std::string created_;   // the same, as soon as there is one: what goes wrong then is not another run
  std::size_t told_ = 0;  // parameters that it knows
};

}  // namespace

std::unique_ptr<Board> make_mlflow(const options::TrainOptions& options, const BoardRun& run) {
  return std::make_unique<MlFlow>(options, run);
}

}  // namespace inlay::train
