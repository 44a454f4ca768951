#include "parallel/activity.h"

namespace inlay::parallel {

Activity::Wait::Wait(Activity& activity, std::string_view what) : activity_(activity) {
  const std::lock_guard lock(activity_.mutex_);
  number_ = ++activity_.begun_;
  activity_.open_.push_back({number_, std::string(what), {}});
}

Activity::Wait::~Wait() {
  const std::lock_guard lock(activity_.mutex_);
  std::erase_if(activity_.open_, [this](const Exchange& e) { return e.number == number_; });
}

void Activity::launched(std::string_view what, std::function<bool()> done) {
  const std::lock_guard lock(mutex_);
  while (!open_.empty() && open_.front().done && open_.front().done()) open_.pop_front();
  open_.push_back({++begun_, std::string(what), std::move(done)});
}

std::list<Activity::Check>::iterator Activity::add_check(Check check) {
  const std::lock_guard lock(mutex_);
  return checks_.insert(checks_.end(), std::move(check));
}

void Activity::remove_check(std::list<Check>::iterator check) {
  const std::lock_guard lock(mutex_);
  checks_.erase(check);
}

Activity::Now Activity::now() {
  const std::lock_guard lock(mutex_);
  while (!open_.empty() && open_.front().done && open_.front().done()) open_.pop_front();
  Now now{.begun = begun_, .long_work = long_works_ > 0};
  if (!open_.empty()) {
    now.waiting = open_.front().number;
    now.what = open_.front().what;
  }
  for (const Check& check : checks_) {
    if (now.trouble.empty()) now.trouble = check();
  }
  return now;
}

Activity& activity() {
  static Activity process;
  return process;
}

namespace {

thread_local bool beside = false;

}  // namespace

LongWork::LongWork() : counts_(!beside) {
  if (!counts_) return;
  const std::lock_guard lock(activity().mutex_);
  ++activity().long_works_;
}

LongWork::~LongWork() {
  if (!counts_) return;
  const std::lock_guard lock(activity().mutex_);
  --activity().long_works_;
}

WorkBeside::WorkBeside() { beside = true; }
WorkBeside::~WorkBeside() { beside = false; }

}  // namespace inlay::parallel
