#include "comm/messages/engine.h"

#include <sys/prctl.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdio>

#include "comm/arguments.h"
#include "core/error.h"
#include "core/hash.h"
#include "core/interrupt.h"
#include "core/log.h"
#include "core/signal_mask.h"
#include "core/text.h"

namespace shoal::messages {
namespace {

using std::chrono::duration;
using std::chrono::microseconds;
using std::chrono::milliseconds;

// Times in seconds.
constexpr double kCollectFailures = 0.5;  // ranks collect failures before they stop
constexpr double kTellFailure = 1;        // and send their own, which a dead rank may never take
constexpr double kReported = 1.5;         // a rank whose body has ended has reported by then
constexpr double kForce = 3;              // a rank that has not noticed a failure by then is killed
constexpr double kReportedByForce = kTellFailure + kForce + 0.5;  // any rank has reported by then
constexpr double kReply = 2;       // a rank that does not answer within this time is taken for dead
constexpr double kExtraAtEnd = 1;  // the deadline of the last barrier is longer by this much
constexpr double kUnwind = 1;      // a rank that unwinds waits this long for its operations

// After the last progress the engine's thread polls for kSpin seconds if the rank waits, then sleeps
// kShortSleep at a time up to kNap seconds, then kLongSleep. It never yields: with more ranks than cores,
// threads that yield all the time can keep sleeping threads from running for seconds (Linux 6.18).
constexpr double kSpin = 50e-6, kNap = 1e-3;
constexpr microseconds kShortSleep{50}, kLongSleep{200};
constexpr milliseconds kIdleSleep{5};  // while only control messages can arrive

// Ends this process at once: one of its threads does not respond.
[[noreturn]] void end_by_force(const std::string& message) {
  if (!message.empty()) std::fputs(fmt::format("shoal: error: {}\n", message).c_str(), stderr);
  ::_exit(1);
}

std::uint64_t hash(const std::string& text) { return fnv1a(text) | 1; }  // 0 means no text

}  // namespace

Engine::Engine(Transport& transport, double deadline_seconds)
    : transport_(transport), deadline_seconds_(deadline_seconds) {
  {
    const BlockedSignals none;
    thread_ = std::thread([this] { run(); });
  }
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

void Engine::begin(const std::shared_ptr<PendingOperation>& operation) {
  {
    const std::scoped_lock lock(mutex_);
    throw_if_stopped();
    operation->number = operation->group->started(operation->kind, operation->peer)++;
    if (operation->plan.pieces == 0) {
      operation->done = true;
      return;
    }
    new_operations_.push_back(operation);
    wake_requested_ = true;
  }
  wake_.notify_one();
}

void Engine::start_waiting(PendingOperation& operation) {
  operation.waited.emplace();
  operation.awaited = true;
  wake_requested_ = true;
  wake_.notify_one();
}

void Engine::wait(PendingOperation& operation) {
  if (operation.done) return;
  std::unique_lock lock(mutex_);
  start_waiting(operation);
  changed_.wait(lock, [&] { return operation.done || phase_ == Phase::stopped; });
  if (!operation.done) throw_if_stopped();
}

void Engine::release(PendingOperation& operation, bool unwinding) noexcept {
  if (operation.done) return;
  std::unique_lock lock(mutex_);
  start_waiting(operation);
  const auto free = [&] { return operation.done || phase_ == Phase::stopped; };
  if (!unwinding) return changed_.wait(lock, free);
  if (changed_.wait_for(lock, duration<double>(kUnwind), free)) return;
  if (!failure_) failure_ = {fmt::format("gave up {}", operation.describe), false};
  wake_requested_ = true;
  wake_.notify_one();
  changed_.wait(lock, free);
}

// Returns false if a thread has not responded for kForce seconds.
bool Engine::await_stop(std::unique_lock<std::mutex>& lock) {
  wake_requested_ = true;
  wake_.notify_all();
  return changed_.wait_for(lock, duration<double>(kForce), [&] { return phase_ == Phase::stopped; });
}

void Engine::announce(std::string text) noexcept {
  const std::scoped_lock lock(mutex_);
  if (phase_ == Phase::stopped || failure_) return;
  failure_ = {std::move(text), true};
  wake_requested_ = true;
  wake_.notify_all();
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
  return fail("stopped because another rank failed, but no rank reported a failure");
}

void Engine::await_report() {
  clear_stop_message();  // the body may have set another one since start_ending()
  double left = 0;
  {
    const std::scoped_lock lock(mutex_);
    left = report_seconds_ - since_first_failure_.seconds();
  }
  std::this_thread::sleep_for(duration<double>(left));
}

void Engine::finish(double limit, int exit_code) {
  {
    const std::scoped_lock lock(mutex_);
    closing_ = true;
    wake_requested_ = true;
  }
  wake_.notify_all();
  {
    std::unique_lock lock(mutex_);
    if (!changed_.wait_for(lock, duration<double>(limit), [&] { return ended_; }))
      exit_without_mpi(limit, exit_code);
  }
  thread_.join();
}

// MPICH's MPI_Finalize can hang over TCP after all ranks have done their work.
void Engine::exit_without_mpi(double waited, int exit_code) {
  log::warn("MPI did not end within {}: leaving without it; nothing is lost", format_duration(waited));
  std::fflush(nullptr);
  ::_exit(exit_code);
}

void Engine::run() {
  prctl(PR_SET_TIMERSLACK, 1000UL);  // ns; the default of 50 us would lengthen short sleeps
  const bool started = transport_.start();
  if (started) {
    std::vector<int> everyone;
    for (int rank = 0; rank < transport_.size(); ++rank) everyone.push_back(rank);
    world_ = std::make_shared<Group>(Group{kWorldGroup, std::move(everyone), transport_.rank()});
    groups_[kWorldGroup] = world_;
    scheduler_ = std::make_unique<PieceScheduler>(transport_);
    control_ = std::make_unique<ControlChannel>(transport_);
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
  bool broken = false;  // a failed message must not be tested again
  while (true) {
    bool moved = false;
    try {
      take_new_operations();
      const auto done = scheduler_->done();
      if (!broken) moved = scheduler_->advance();
      if (scheduler_->done() != done) {
        std::erase_if(open_, [](const auto& operation) { return operation->done.load(); });
        { const std::scoped_lock lock(mutex_); }  // waits until the rank sleeps, if it has checked already
        changed_.notify_all();
      }
      while (const auto message = control_->receive()) handle(*message);
      check_deadlines();
    } catch (const std::exception& error) {
      broken = true;
      announce_failure(error.what(), true);
    }
    const bool sent = control_->all_sent();
    std::optional<LocalFailure> failure;
    bool closing = false;
    {
      const std::scoped_lock lock(mutex_);
      failure = failure_;
      closing = closing_;
    }
    if (failure) announce_failure(failure->text, failure->comparable);
    if (phase_ == Phase::ending && (sent || since_first_failure_.seconds() > kTellFailure)) decide_verdict();
    if (phase_ == Phase::stopped) return await_end_of_body();
    if (closing && sent) {
      control_->close();
      return transport_.finish();
    }
    pause(moved);
  }
}

void Engine::take_new_operations() {
  std::vector<std::shared_ptr<PendingOperation>> begun;
  {
    const std::scoped_lock lock(mutex_);
    begun.swap(new_operations_);
  }
  for (auto& operation : begun) {
    open_.push_back(operation);
    scheduler_->add(std::move(operation));
  }
}

void Engine::handle(const ControlMessage& message) {
  switch (message.kind) {
    case ControlMessage::Kind::failed:
      failed_[message.from] = {message.text_hash, message.first_failure == 1, message.body_ended == 1};
      return start_ending();
    case ControlMessage::Kind::progress_request:
      return reply(message);
    case ControlMessage::Kind::progress_reply:
      if (deadline_query_) deadline_query_->answers[message.from] = message;
      return;
  }
}

void Engine::reply(const ControlMessage& request) {
  ControlMessage answer = request;
  answer.kind = ControlMessage::Kind::progress_reply;
  {
    const std::scoped_lock lock(mutex_);
    answer.body_ended = groups_.contains(kEndGroup) ? 1 : 0;
    if (const auto found = groups_.find(request.group); found != groups_.end()) {
      auto& group = *found->second;
      const auto requester = std::find(group.members.begin(), group.members.end(), request.from);
      answer.started = group.started(static_cast<OperationKind>(request.operation_kind),
                                     static_cast<int>(requester - group.members.begin()));
    }
  }
  control_->send(request.from, answer);
}

// Asks the other ranks for their progress when an operation is past its deadline.
void Engine::check_deadlines() {
  if (deadline_query_) return finish_deadline_query();
  if (phase_ != Phase::running || deadlines_checked_.seconds() < 0.05) return;
  deadlines_checked_.restart();
  for (const auto& operation : open_) {
    {
      const std::scoped_lock lock(mutex_);
      // A rank at the last barrier waits longer, so that ranks in the body report first: their messages say
      // more.
      const double limit = deadline_seconds_ + (operation->group->id == kEndGroup ? kExtraAtEnd : 0);
      if (!operation->waited || operation->waited->seconds() < limit) continue;
    }
    deadline_query_ = {operation, {}, {}};
    const auto& group = *operation->group;
    ControlMessage request{.kind = ControlMessage::Kind::progress_request, .group = group.id};
    const auto send = [&](OperationKind kind, int member) {
      request.operation_kind = static_cast<std::int32_t>(kind);
      control_->send(group.members[static_cast<std::size_t>(member)], request);
    };
    if (operation->kind != OperationKind::collective) {
      return send(operation->kind == OperationKind::send ? OperationKind::receive : OperationKind::send,
                  operation->peer);
    }
    for (int member = 0; member < group.rank_and_size().size; ++member) {
      if (member != group.rank) send(OperationKind::collective, member);
    }
    return;
  }
}

void Engine::finish_deadline_query() {
  const auto& operation = *deadline_query_->operation;
  if (operation.done) {  // the missing ranks came late
    deadline_query_.reset();
    return;
  }
  std::vector<int> missing, ended, unresponsive;
  for (int member = 0; member < operation.group->rank_and_size().size; ++member) {
    if (member == operation.group->rank ||
        (operation.kind != OperationKind::collective && member != operation.peer))
      continue;
    const int rank = operation.group->members[static_cast<std::size_t>(member)];
    const auto answer = deadline_query_->answers.find(rank);
    const bool answered = answer != deadline_query_->answers.end();
    if (answered && answer->second.started > operation.number) continue;
    missing.push_back(rank);
    if (!answered) unresponsive.push_back(rank);
    if (answered && answer->second.body_ended == 1) ended.push_back(rank);
  }
  if (!unresponsive.empty() && deadline_query_->since.seconds() < kReply) return;
  auto text = fmt::format("{} waited {} seconds", operation.describe, deadline_seconds_);
  text += missing.empty() ? ", though all ranks came" : fmt::format(" for {}", list_ranks(missing));
  if (!ended.empty()) text += fmt::format("; {} ended without it", list_ranks(ended));
  if (!unresponsive.empty()) text += fmt::format("; {} did not answer", list_ranks(unresponsive));
  deadline_query_.reset();
  announce_failure(text, true);
}

void Engine::start_ending() {
  if (phase_ != Phase::running) return;
  clear_stop_message();  // mpirun may end this rank with SIGTERM once another one has reported
  const std::scoped_lock lock(mutex_);
  phase_ = Phase::ending;
  stopping_ = true;
  since_first_failure_.restart();
}

void Engine::announce_failure(const std::string& text, bool comparable) {
  if (failed_.contains(transport_.rank())) return;
  Failed failed{comparable ? hash(text) : 0, failed_.empty(), false};
  {
    const std::scoped_lock lock(mutex_);
    failed.body_ended = body_ended_;
  }
  failed_[transport_.rank()] = failed;
  ControlMessage message;
  message.text_hash = failed.text_hash;
  message.first_failure = failed.first ? 1 : 0;
  message.body_ended = failed.body_ended ? 1 : 0;
  control_->send_all(message);
  start_ending();
  const std::scoped_lock lock(mutex_);
  own_failure_ = text;
}

void Engine::decide_verdict() {
  const bool all = static_cast<int>(failed_.size()) == transport_.size();
  if (!all && since_first_failure_.seconds() < kCollectFailures) return;
  const auto text = failed_.begin()->second.text_hash;
  const auto alike = [&](const auto& failed) { return failed.second.text_hash == text; };
  const auto first =
      std::find_if(failed_.begin(), failed_.end(), [](const auto& f) { return f.second.first; });
  const bool unwinding = std::any_of(failed_.begin(), failed_.end(),
                                     [](const auto& f) { return f.second.first && !f.second.body_ended; });
  {
    const std::scoped_lock lock(mutex_);
    verdict_.report = first != failed_.end() && first->first == transport_.rank();
    verdict_.same_everywhere =
        text != 0 && failed_.size() > 1 && std::all_of(failed_.begin(), failed_.end(), alike);
    report_seconds_ = unwinding ? kReportedByForce : kReported;
    phase_ = Phase::stopped;
  }
  changed_.notify_all();
}

// A launcher may end all ranks once one has ended, so the rank that reports goes first.
void Engine::await_end_of_body() {
  std::unique_lock lock(mutex_);
  const double limit =
      verdict_.report ? kForce : std::max(kForce, report_seconds_ - since_first_failure_.seconds());
  if (wake_.wait_for(lock, duration<double>(limit), [&] { return body_ended_; })) return;
  if (!verdict_.report) end_by_force("");
  end_by_force(verdict_.same_everywhere ? own_failure_
                                        : fmt::format("rank {}: {}", transport_.rank(), own_failure_));
}

void Engine::pause(bool moved) {
  if (moved) {
    last_progress_.restart();
    return;
  }
  const double still = last_progress_.seconds();
  const bool awaited = std::any_of(open_.begin(), open_.end(),
                                   [](const auto& operation) { return operation->awaited.load(); });
  if (awaited && still < kSpin) return;
  std::unique_lock lock(mutex_);
  const auto requested = [&] { return wake_requested_; };
  if (scheduler_->idle()) {
    wake_.wait_for(lock, kIdleSleep, requested);
  } else {
    wake_.wait_for(lock, still < kNap ? kShortSleep : kLongSleep, requested);
  }
  if (wake_requested_) last_progress_.restart();
  wake_requested_ = false;
}

}  // namespace shoal::messages
