#include "comm/messages/engine.h"

#include <pthread.h>
#include <signal.h>
#include <sys/prctl.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <functional>

#include "comm/arguments.h"
#include "core/error.h"
#include "core/log.h"
#include "core/text.h"

namespace shoal::messages {
namespace {

using std::chrono::duration;
using std::chrono::microseconds;
using std::chrono::milliseconds;
using std::chrono::seconds;

// How long ranks collect failures before they stop.
constexpr double kFailuresMeet = 0.5;
// By then the rank that reports has done so.
constexpr double kReported = 1.5;
// A rank that has not noticed by then is ended by force.
constexpr double kForce = 3;
// Ranks that do not answer within this time are taken for dead.
constexpr double kAnswer = 2;
// How much longer than a deadline the end of the run may take.
constexpr double kEndMore = 1;
// How long a rank that unwinds waits for what it has begun.
constexpr double kUnwind = 1;
// For MPI to end once all ranks have done their work.
constexpr seconds kFinish{10};

// How long after the last message the engine's thread looks for the next without letting go of its core, if
// the rank waits for it, and how long it sleeps shortly. It never yields: where there are more ranks than
// cores, threads that yield all the time keep what sleeps from running for seconds (Linux 6.18).
constexpr double kSpin = 50e-6, kNap = 1e-3;
constexpr microseconds kShortSleep{50}, kLongSleep{200};
constexpr milliseconds kIdleSleep{5};  // with nothing but notes to wait for

// Ends this process at once, for a thread of it does not listen.
[[noreturn]] void end_by_force(const std::string& message) {
  if (!message.empty()) fmt::print(stderr, "shoal: error: {}\n", message);
  ::_exit(1);
}

std::uint64_t hash(const std::string& text) { return std::hash<std::string>()(text) | 1; }

}  // namespace

Engine::Engine(Transport& transport, double deadline_seconds)
    : transport_(transport), deadline_seconds_(deadline_seconds) {
  sigset_t all, before;  // signals are for the rank's threads
  sigfillset(&all);
  pthread_sigmask(SIG_SETMASK, &all, &before);
  thread_ = std::thread([this] { run(); });
  pthread_sigmask(SIG_SETMASK, &before, nullptr);
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [&] { return started_; });
  if (start_error_.empty()) return;
  lock.unlock();
  thread_.join();
  shoal::fail("MPI: {}", start_error_);
}

Engine::~Engine() {
  if (thread_.joinable()) thread_.join();
}

std::shared_ptr<Group> Engine::add_group(int id, std::vector<int> members) {
  const auto me = std::find(members.begin(), members.end(), transport_.rank());
  const int rank = static_cast<int>(me - members.begin());
  auto group = std::make_shared<Group>(Group{id, std::move(members), rank});
  const std::scoped_lock lock(mutex_);
  groups_[id] = group;
  next_group_id_ = std::max(next_group_id_, id + 1);
  return group;
}

void Engine::throw_if_stopped() {
  if (phase_ != Phase::stopped) return;
  if (!own_failure_.empty()) throw Error(own_failure_);
  throw StoppedByPeer();
}

void Engine::begin(const std::shared_ptr<Job>& job) {
  {
    const std::scoped_lock lock(mutex_);
    throw_if_stopped();
    job->number = job->group->begun(job->kind, job->peer)++;
    if (job->plan.pieces == 0) {
      job->done = true;
      return;
    }
    begun_.push_back(job);
    kick_ = true;
  }
  wake_.notify_one();
}

void Engine::start_waiting(Job& job) {
  job.waited.emplace();
  job.awaited = true;
  kick_ = true;
  wake_.notify_one();
}

void Engine::wait(Job& job) {
  if (job.done) return;
  std::unique_lock lock(mutex_);
  start_waiting(job);
  changed_.wait(lock, [&] { return job.done || phase_ == Phase::stopped; });
  if (!job.done) throw_if_stopped();
}

void Engine::settle(Job& job, bool unwinding) noexcept {
  if (job.done) return;
  std::unique_lock lock(mutex_);
  start_waiting(job);
  const auto free = [&] { return job.done || phase_ == Phase::stopped; };
  if (!unwinding) return changed_.wait(lock, free);
  if (changed_.wait_for(lock, duration<double>(kUnwind), free)) return;
  failure_ = {fmt::format("gave up {}", job.describe), false};
  kick_ = true;
  wake_.notify_one();
  changed_.wait(lock, free);
}

// False when it takes so long that something is stuck.
bool Engine::await_stop(std::unique_lock<std::mutex>& lock) {
  kick_ = true;
  wake_.notify_all();
  return changed_.wait_for(lock, duration<double>(kForce), [&] { return phase_ == Phase::stopped; });
}

Engine::Verdict Engine::fail(const std::string& text) {
  std::unique_lock lock(mutex_);
  body_ended_ = true;
  if (phase_ != Phase::stopped && !failure_) failure_ = {text, true};
  if (!await_stop(lock)) end_by_force(fmt::format("rank {}: {}", transport_.rank(), text));
  return verdict_;
}

Engine::Verdict Engine::stopped_by_peer() {
  std::unique_lock lock(mutex_);
  body_ended_ = true;
  if (await_stop(lock)) return verdict_;
  lock.unlock();
  return fail("ended because another rank failed, which nobody has heard of");
}

void Engine::linger() {
  Stopwatch heard;
  {
    const std::scoped_lock lock(mutex_);
    heard = heard_of_failure_;
  }
  std::this_thread::sleep_for(duration<double>(kReported - heard.seconds()));
}

void Engine::finish() {
  {
    const std::scoped_lock lock(mutex_);
    closing_ = true;
    kick_ = true;
  }
  wake_.notify_all();
  {
    std::unique_lock lock(mutex_);
    if (!changed_.wait_for(lock, kFinish, [&] { return ended_; })) leave();
  }
  thread_.join();
}

// MPICH's end over TCP has been seen to hang after all ranks had done their work.
void Engine::leave() {
  log::warn("MPI did not end within {}: leaving without it; nothing is lost",
            format_duration(static_cast<double>(kFinish.count())));
  std::fflush(nullptr);
  ::_exit(0);
}

void Engine::run() {
  prctl(PR_SET_TIMERSLACK, 1000UL);  // ns, so that short sleeps are short
  const bool started = transport_.start();
  if (started) {
    std::vector<int> everyone;
    for (int rank = 0; rank < transport_.size(); ++rank) everyone.push_back(rank);
    world_ = std::make_shared<Group>(Group{kWorldGroup, std::move(everyone), transport_.rank()});
    groups_[kWorldGroup] = world_;
    traffic_ = std::make_unique<Traffic>(transport_);
    control_ = std::make_unique<Control>(transport_);
  }
  {
    const std::scoped_lock lock(mutex_);
    started_ = true;
    if (!started) start_error_ = transport_.error();
  }
  changed_.notify_all();
  if (started) loop();
  const std::scoped_lock lock(mutex_);
  ended_ = true;
  changed_.notify_all();
}

void Engine::loop() {
  while (true) {
    bool moved = false;
    try {
      take_new_jobs();
      const auto done = traffic_->done();
      moved = traffic_->advance();
      if (traffic_->done() != done) {
        std::erase_if(open_, [](const auto& job) { return job->done.load(); });
        { const std::scoped_lock lock(mutex_); }  // the rank is not between looking and sleeping
        changed_.notify_all();
      }
      while (const auto note = control_->receive()) serve(*note);
      check_deadlines();
    } catch (const std::exception& error) {
      fail_here(error.what(), true);
    }
    const bool sent = control_->all_sent();
    std::optional<std::pair<std::string, bool>> failure;
    bool closing = false;
    {
      const std::scoped_lock lock(mutex_);
      failure = failure_;
      closing = closing_;
    }
    if (failure) fail_here(failure->first, failure->second);
    if (phase_ == Phase::ending && sent) conclude();
    if (phase_ == Phase::stopped) return await_end();
    if (closing && sent) {
      control_->close();
      return transport_.finish();
    }
    pause(moved);
  }
}

void Engine::take_new_jobs() {
  std::vector<std::shared_ptr<Job>> begun;
  {
    const std::scoped_lock lock(mutex_);
    begun.swap(begun_);
  }
  for (auto& job : begun) {
    open_.push_back(job);
    traffic_->add(std::move(job));
  }
}

void Engine::serve(const Note& note) {
  switch (note.kind) {
    case Note::Kind::failed:
      failed_[note.from] = {note.text, note.number == 1};
      return start_ending();
    case Note::Kind::ask:
      return answer(note);
    case Note::Kind::answer:
      if (inquiry_) inquiry_->answers[note.from] = note;
      return;
  }
}

void Engine::answer(const Note& ask) {
  Note answer = ask;
  answer.kind = Note::Kind::answer;
  {
    const std::scoped_lock lock(mutex_);
    answer.text = groups_.contains(kEndGroup) ? 1 : 0;
    if (const auto found = groups_.find(ask.group); found != groups_.end()) {
      auto& group = *found->second;
      const auto asker = std::find(group.members.begin(), group.members.end(), ask.from);
      answer.number =
          group.begun(static_cast<JobKind>(ask.job_kind), static_cast<int>(asker - group.members.begin()));
    }
  }
  control_->send(ask.from, answer);
}

// Asks the others when a job is overdue.
void Engine::check_deadlines() {
  if (inquiry_) return conclude_inquiry();
  if (phase_ != Phase::running || deadlines_checked_.seconds() < 0.05) return;
  deadlines_checked_.restart();
  for (const auto& job : open_) {
    {
      const std::scoped_lock lock(mutex_);
      // Who waits for a rank that has ended says more than that one does.
      const double limit = deadline_seconds_ + (job->group->id == kEndGroup ? kEndMore : 0);
      if (!job->waited || job->waited->seconds() < limit) continue;
    }
    inquiry_ = {job, {}, {}};
    const auto& group = *job->group;
    Note ask{Note::Kind::ask, 0, group.id, 0, 0, 0};
    const auto send = [&](JobKind kind, int member) {
      ask.job_kind = static_cast<std::int32_t>(kind);
      control_->send(group.members[static_cast<std::size_t>(member)], ask);
    };
    if (job->kind != JobKind::collective) {
      return send(job->kind == JobKind::send ? JobKind::receive : JobKind::send, job->peer);
    }
    for (int member = 0; member < group.seat().size; ++member) {
      if (member != group.rank) send(JobKind::collective, member);
    }
    return;
  }
}

void Engine::conclude_inquiry() {
  const auto& job = *inquiry_->job;
  if (job.done) {  // they came after all
    inquiry_.reset();
    return;
  }
  std::vector<int> missing, ended, silent;
  for (int member = 0; member < job.group->seat().size; ++member) {
    if (member == job.group->rank || (job.kind != JobKind::collective && member != job.peer)) continue;
    const int rank = job.group->members[static_cast<std::size_t>(member)];
    const auto answer = inquiry_->answers.find(rank);
    const bool answered = answer != inquiry_->answers.end();
    if (answered && answer->second.number > job.number) continue;
    missing.push_back(rank);
    if (!answered) silent.push_back(rank);
    if (answered && answer->second.text == 1) ended.push_back(rank);
  }
  if (!silent.empty() && inquiry_->since.seconds() < kAnswer) return;
  auto text = fmt::format("{} waited {} seconds", job.describe, deadline_seconds_);
  text += missing.empty() ? ", though all ranks came" : fmt::format(" for {}", list_ranks(missing));
  if (!ended.empty()) text += fmt::format("; {} ended without it", list_ranks(ended));
  if (!silent.empty()) text += fmt::format("; {} did not answer", list_ranks(silent));
  inquiry_.reset();
  fail_here(text, true);
}

void Engine::start_ending() {
  if (phase_ != Phase::running) return;
  const std::scoped_lock lock(mutex_);
  phase_ = Phase::ending;
  stopping_ = true;
  heard_of_failure_.restart();
}

void Engine::fail_here(const std::string& text, bool known) {
  if (failed_.contains(transport_.rank())) return;
  const Failed failed{known ? hash(text) : 0, failed_.empty()};
  failed_[transport_.rank()] = failed;
  Note note;
  note.text = failed.text;
  note.number = failed.first ? 1 : 0;
  control_->send_all(note);
  start_ending();
  const std::scoped_lock lock(mutex_);
  own_failure_ = text;
}

void Engine::conclude() {
  const bool all = static_cast<int>(failed_.size()) == transport_.size();
  if (!all && heard_of_failure_.seconds() < kFailuresMeet) return;
  const auto text = failed_.begin()->second.text;
  const auto alike = [&](const auto& failed) { return failed.second.text == text; };
  const auto first =
      std::find_if(failed_.begin(), failed_.end(), [](const auto& f) { return f.second.first; });
  {
    const std::scoped_lock lock(mutex_);
    verdict_.report = first != failed_.end() && first->first == transport_.rank();
    verdict_.same_everywhere =
        text != 0 && failed_.size() > 1 && std::all_of(failed_.begin(), failed_.end(), alike);
    phase_ = Phase::stopped;
  }
  changed_.notify_all();
}

void Engine::await_end() {
  std::unique_lock lock(mutex_);
  if (wake_.wait_for(lock, duration<double>(kForce), [&] { return body_ended_; })) return;
  if (!verdict_.report) end_by_force("");
  end_by_force(verdict_.same_everywhere ? own_failure_
                                        : fmt::format("rank {}: {}", transport_.rank(), own_failure_));
}

void Engine::pause(bool moved) {
  if (moved) {
    moved_since_.restart();
    return;
  }
  const double still = moved_since_.seconds();
  const bool awaited =
      std::any_of(open_.begin(), open_.end(), [](const auto& job) { return job->awaited.load(); });
  if (awaited && still < kSpin) return;
  std::unique_lock lock(mutex_);
  const auto kicked = [&] { return kick_; };
  if (traffic_->idle()) {
    wake_.wait_for(lock, kIdleSleep, kicked);
  } else {
    wake_.wait_for(lock, still < kNap ? kShortSleep : kLongSleep, kicked);
  }
  if (kick_) moved_since_.restart();
  kick_ = false;
}

}  // namespace shoal::messages
