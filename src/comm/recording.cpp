#include "comm/recording.h"

#include <algorithm>
#include <numeric>

#include "comm/arguments.h"

namespace shoal {

class RecordingCommunicator final : public Communicator {
 public:
  RecordingCommunicator(std::shared_ptr<Recording::Log> log, std::vector<int> members, int rank)
      : log_(std::move(log)), members_(std::move(members)), rank_(rank) {}

  std::string_view name() const override { return "recording"; }
  int rank() const override { return rank_; }
  int size() const override { return static_cast<int>(members_.size()); }

  Request all_reduce(const Tensor& x, ReduceOp) override {
    check_reducible(x.dtype);
    return to_next("all_reduce", x, 2 * but_own_part(x));
  }
  Request reduce_scatter(const Tensor& out, const Tensor& x, ReduceOp) override {
    check_reducible(x.dtype);
    check_parts("reduce_scatter", x, out, size());
    return to_next("reduce_scatter", x, but_own_part(x));
  }
  Request all_gather(const Tensor& out, const Tensor& x) override {
    check_parts("all_gather", out, x, size());
    return to_next("all_gather", x, but_own_part(out));
  }
  Request all_to_all(const Tensor& out, const Tensor& x) override {
    check_all_to_all(out, x, size());
    const auto part = bytes_of(x) / size();
    for (int to = 0; to < size(); ++to) add_link(to, to == rank_ ? 0 : part);
    return record("all_to_all", x, part * (size() - 1));
  }
  Request broadcast(const Tensor& x, int root) override {
    check_root(root, size());
    const bool last = (rank_ + 1) % size() == root;
    return to_next("broadcast", x, last ? 0 : bytes_of(x));
  }
  Request send(const Tensor& x, int to) override {
    check_peer("send to", to, rank_, size());
    add_link(to, bytes_of(x));
    return record("send", x, bytes_of(x));
  }
  Request receive(const Tensor& x, int from) override {
    check_peer("receive from", from, rank_, size());
    return record("receive", x, 0);
  }
  void barrier() override { record("barrier", {nullptr, DType::f32, {0}}, 0); }

  std::unique_ptr<Communicator> split(const SplitKeys& keys) override {
    auto members = members_of(keys, size(), rank_);
    const auto me = std::find(members.begin(), members.end(), rank_) - members.begin();
    for (int& member : members) member = members_[static_cast<std::size_t>(member)];
    return std::make_unique<RecordingCommunicator>(log_, std::move(members), static_cast<int>(me));
  }

 private:
  static std::int64_t bytes_of(const Tensor& x) { return static_cast<std::int64_t>(x.bytes()); }
  std::int64_t but_own_part(const Tensor& whole) const { return bytes_of(whole) * (size() - 1) / size(); }

  void add_link(int to, std::int64_t bytes) {
    if (bytes > 0) log_->links[members_[static_cast<std::size_t>(to)]] += bytes;
  }
  Request record(std::string_view collective, const Tensor& x, std::int64_t bytes) {
    log_->entries.push_back({std::string(collective), x.dtype, x.count(), size(), purpose(), bytes});
    return {};
  }
  Request to_next(std::string_view collective, const Tensor& x, std::int64_t bytes) {
    add_link((rank_ + 1) % size(), bytes);
    return record(collective, x, bytes);
  }

  std::shared_ptr<Recording::Log> log_;
  std::vector<int> members_;  // their ranks in the run
  int rank_;
};

namespace {

// "gradients" for the purpose "step 12, gradients of block.3".
std::string subject_of(const std::string& purpose) {
  const auto comma = purpose.find(", ");
  const auto first = purpose.starts_with("step ") && comma != std::string::npos ? comma + 2 : 0;
  const auto of = purpose.rfind(" of ");
  return purpose.substr(first, of == std::string::npos || of < first ? of : of - first);
}

}  // namespace

Recording::Recording(int ranks, int rank) {
  std::vector<int> members(static_cast<std::size_t>(ranks));
  std::iota(members.begin(), members.end(), 0);
  ranks_ = std::make_unique<RecordingCommunicator>(log_, std::move(members), rank);
}

std::vector<Recording::Total> Recording::totals() const {
  std::vector<Total> totals;
  for (const auto& entry : entries()) {
    const auto subject = subject_of(entry.purpose);
    auto total = std::find_if(totals.begin(), totals.end(), [&](const Total& t) {
      return t.collective == entry.collective && t.subject == subject;
    });
    if (total == totals.end()) total = totals.insert(total, {entry.collective, subject});
    ++total->calls;
    total->bytes += entry.bytes;
  }
  return totals;
}

std::int64_t Recording::bytes() const {
  std::int64_t bytes = 0;
  for (const auto& [to, sent] : links()) bytes += sent;
  return bytes;
}

void Recording::clear() { *log_ = {}; }

}  // namespace shoal
