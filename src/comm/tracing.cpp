#include "comm/tracing.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <map>
#include <numeric>

#include "core/trace.h"

namespace shoal {
namespace {

using trace::Event;
using trace::Lane;
using trace::Recorder;

// Records an event in its destructor, also when an exception passes.
class Ending {
 public:
  Ending(Recorder& recorder, Event event) : recorder_(recorder), event_(std::move(event)) {}
  ~Ending() {
    event_.end = trace::now();
    recorder_.add(std::move(event_));
  }
  Ending(const Ending&) = delete;
  Ending& operator=(const Ending&) = delete;
  // An event for a wait that begins now.
  Event wait() const { return {Lane::waits, "wait", event_.name, trace::now(), 0, event_.arguments}; }
  Recorder& recorder() const { return recorder_; }

 private:
  Recorder& recorder_;
  Event event_;
};

class TracedRequest final : public Request::Pending {
 public:
  TracedRequest(Recorder& recorder, Event event, Request inner)
      : transfer_(recorder, std::move(event)), inner_(std::move(inner)) {}
  TracedRequest(const TracedRequest&) = delete;
  TracedRequest& operator=(const TracedRequest&) = delete;
  ~TracedRequest() override {
    if (inner_.empty()) return;
    const Ending waiting(transfer_.recorder(), transfer_.wait());
    const Request dropped = std::move(inner_);
  }
  void wait() override {
    const Ending waiting(transfer_.recorder(), transfer_.wait());
    inner_.wait();
  }

 private:
  Ending transfer_;
  Request inner_;
};

class TracingCommunicator final : public Communicator {
 public:
  // `members`: ranks in the first group.
  TracingCommunicator(Communicator& inner, std::string path, std::vector<int> members)
      : inner_(inner), path_(std::move(path)), members_(std::move(members)) {}
  TracingCommunicator(std::unique_ptr<Communicator> inner, std::string path, std::vector<int> members)
      : TracingCommunicator(*inner, std::move(path), std::move(members)) {
    owned_ = std::move(inner);
  }

  std::string_view name() const override { return inner_.name(); }
  int rank() const override { return inner_.rank(); }
  int size() const override { return inner_.size(); }

  Request all_reduce(const Tensor& x, ReduceOp op) override {
    return collective("all_reduce", x.bytes(), [&] { return inner_.all_reduce(x, op); });
  }
  Request reduce_scatter(const Tensor& out, const Tensor& x, ReduceOp op) override {
    return collective("reduce_scatter", x.bytes(), [&] { return inner_.reduce_scatter(out, x, op); });
  }
  Request all_gather(const Tensor& out, const Tensor& x) override {
    return collective("all_gather", out.bytes(), [&] { return inner_.all_gather(out, x); });
  }
  Request all_to_all(const Tensor& out, const Tensor& x) override {
    return collective("all_to_all", x.bytes(), [&] { return inner_.all_to_all(out, x); });
  }
  Request broadcast(const Tensor& x, int root) override {
    return collective("broadcast", x.bytes(), [&] { return inner_.broadcast(x, root); });
  }
  Request send(const Tensor& x, int to) override {
    return message("send", x.bytes(), rank(), to, [&] { return inner_.send(x, to); });
  }
  Request receive(const Tensor& x, int from) override {
    return message("receive", x.bytes(), from, rank(), [&] { return inner_.receive(x, from); });
  }
  void barrier() override {
    inner_.set_purpose(purpose_);
    const auto number = collectives_++;
    auto* recorder = recorder_of_group();
    if (!recorder) return inner_.barrier();
    const Ending transfer(*recorder, event("barrier", 0, fmt::format("{}#{}", path_, number), members_));
    const Ending waiting(*recorder, transfer.wait());
    inner_.barrier();
  }

  void expect_messages(int to, int from) override { inner_.expect_messages(to, from); }
  void abandon() noexcept override { inner_.abandon(); }
  bool stopped() const override { return inner_.stopped(); }
  double deadline_seconds() const override { return inner_.deadline_seconds(); }

  std::unique_ptr<Communicator> split(const SplitKeys& keys) override {
    auto part = inner_.split(keys);
    auto members = members_of(keys, size(), rank());
    for (int& member : members) member = in_first_group(member);
    return std::make_unique<TracingCommunicator>(std::move(part), fmt::format("{}.{}", path_, splits_++),
                                                 std::move(members));
  }

 private:
  int in_first_group(int rank) const { return members_[static_cast<std::size_t>(rank)]; }
  Recorder* recorder_of_group() const { return members_.size() > 1 ? trace::recorder() : nullptr; }

  Event event(std::string_view what, std::size_t bytes, std::string call,
              const std::vector<int>& ranks) const {
    Event event{Lane::transfers, "collective", std::string(what), trace::now(), 0, {}};
    event.arguments = {{"call", std::move(call)},
                       {"ranks", fmt::format("{}", fmt::join(ranks, ","))},
                       {"bytes", std::to_string(bytes)}};
    if (!purpose_.empty()) event.arguments.emplace_back("purpose", purpose_);
    return event;
  }

  template <typename Call>
  Request collective(std::string_view what, std::size_t bytes, const Call& call) {
    inner_.set_purpose(purpose_);
    const auto number = collectives_++;
    auto* recorder = recorder_of_group();
    if (!recorder) return call();
    return traced(*recorder, event(what, bytes, fmt::format("{}#{}", path_, number), members_), call);
  }

  template <typename Call>
  Request message(std::string_view what, std::size_t bytes, int from, int to, const Call& call) {
    inner_.set_purpose(purpose_);
    const auto number = messages_[{from, to}]++;
    auto* recorder = recorder_of_group();
    // The inner communicator refuses ranks out of range.
    if (!recorder || std::min(from, to) < 0 || std::max(from, to) >= size()) return call();
    return traced(
        *recorder,
        event(what, bytes, fmt::format("{}#m{}", path_, number), {in_first_group(from), in_first_group(to)}),
        call);
  }

  template <typename Call>
  static Request traced(Recorder& recorder, Event event, const Call& call) {
    Request request = call();
    if (!request.empty())
      return Request(std::make_unique<TracedRequest>(recorder, std::move(event), std::move(request)));
    event.end = trace::now();
    recorder.add(std::move(event));
    return {};
  }

  std::unique_ptr<Communicator> owned_;
  Communicator& inner_;
  std::string path_;
  std::vector<int> members_;
  // Counted even while nothing is traced, so that all members have the same numbers when tracing starts.
  std::int64_t collectives_ = 0, splits_ = 0;
  std::map<std::pair<int, int>, std::int64_t> messages_;  // from, to
};

}  // namespace

std::unique_ptr<Communicator> make_tracing_communicator(Communicator& inner) {
  std::vector<int> members(static_cast<std::size_t>(inner.size()));
  std::iota(members.begin(), members.end(), 0);
  return std::make_unique<TracingCommunicator>(inner, "all", std::move(members));
}

}  // namespace shoal
