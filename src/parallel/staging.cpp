#include "parallel/staging.h"

#include <cstddef>
#include <utility>
#include <vector>

#include "comm/arguments.h"

namespace shoal {
namespace {

// A collective on copies. `out`, where there is one, gets its copy's contents in the end.
class Staged final : public Request::Pending {
 public:
  Staged(Backend& backend, const Tensor& out) : backend_(backend), out_(out) {}
  Staged(const Staged&) = delete;
  Staged& operator=(const Staged&) = delete;
  ~Staged() override {
    try {
      wait();
    } catch (...) {  // who dropped the request does not ask
    }
  }

  Tensor copy_of(const Tensor& x) {
    const Tensor copy = room_for(x);
    if (x.count() > 0) backend_.copy_to_host(copy.data, x);
    return copy;
  }
  Tensor room_for(const Tensor& x) {
    auto& memory = copies_.emplace_back(x.bytes());
    return {memory.data(), x.dtype, x.shape};
  }
  // `result` is the copy that `out` gets.
  void begin(Request request, const Tensor& result) {
    request_ = std::move(request);
    result_ = result;
  }
  void wait() override {
    request_.wait();
    const Tensor out = std::exchange(out_, {}), result = std::exchange(result_, {});
    if (out && result && out.count() > 0) backend_.copy_from_host(out, result.data);
  }

 private:
  Backend& backend_;
  Tensor out_, result_;
  std::vector<std::vector<std::byte>> copies_;
  Request request_;  // the copies are its own until it ends, so it goes first
};

class StagingCommunicator final : public Communicator {
 public:
  StagingCommunicator(Backend& backend, Communicator& host) : backend_(backend), host_(host) {}
  StagingCommunicator(Backend& backend, std::unique_ptr<Communicator> host)
      : owned_(std::move(host)), backend_(backend), host_(*owned_) {}

  std::string_view name() const override { return host_.name(); }
  int rank() const override { return host_.rank(); }
  int size() const override { return host_.size(); }

  Request all_reduce(const Tensor& x, ReduceOp op) override {
    check_reducible(x.dtype);
    if (size() == 1) return {};
    return in_place(x, x, [&](const Tensor& copy) { return host().all_reduce(copy, op); });
  }
  Request reduce_scatter(const Tensor& out, const Tensor& x, ReduceOp op) override {
    check_reducible(x.dtype);
    return between(out, x, [&](const Tensor& o, const Tensor& i) { return host().reduce_scatter(o, i, op); });
  }
  Request all_gather(const Tensor& out, const Tensor& x) override {
    return between(out, x, [&](const Tensor& o, const Tensor& i) { return host().all_gather(o, i); });
  }
  Request all_to_all(const Tensor& out, const Tensor& x) override {
    return between(out, x, [&](const Tensor& o, const Tensor& i) { return host().all_to_all(o, i); });
  }
  Request broadcast(const Tensor& x, int root) override {
    check_root(root, size());
    if (size() == 1) return {};
    return in_place(x, root == rank() ? Tensor{} : x,
                    [&](const Tensor& copy) { return host().broadcast(copy, root); });
  }
  Request send(const Tensor& x, int to) override {
    return in_place(x, {}, [&](const Tensor& copy) { return host().send(copy, to); });
  }
  Request receive(const Tensor& x, int from) override {
    if (!backend_.is_device_memory(x.data)) return host().receive(x, from);
    auto staged = std::make_unique<Staged>(backend_, x);
    const Tensor room = staged->room_for(x);
    staged->begin(host().receive(room, from), room);
    return Request(std::move(staged));
  }
  void barrier() override { host().barrier(); }
  void expect_messages(int to, int from) override { host_.expect_messages(to, from); }
  void abandon() noexcept override { host_.abandon(); }
  bool stopped() const override { return host_.stopped(); }
  double deadline_seconds() const override { return host_.deadline_seconds(); }

  std::unique_ptr<Communicator> split(const SplitKeys& keys) override {
    return std::make_unique<StagingCommunicator>(backend_, host_.split(keys));
  }

 private:
  Communicator& host() {
    host_.set_purpose(purpose_);
    return host_;
  }

  // `out` is x, or empty where x does not change.
  template <typename Call>
  Request in_place(const Tensor& x, const Tensor& out, const Call& call) {
    if (!backend_.is_device_memory(x.data)) return call(x);
    auto staged = std::make_unique<Staged>(backend_, out);
    const Tensor copy = staged->copy_of(x);
    staged->begin(call(copy), copy);
    return Request(std::move(staged));
  }
  template <typename Call>
  Request between(const Tensor& out, const Tensor& x, const Call& call) {
    if (!backend_.is_device_memory(x.data)) return call(out, x);
    const bool alone = size() == 1 && x.count() == out.count() && x.dtype == out.dtype;
    if (alone && x.data == out.data) return {};
    if (alone && (x.dtype == DType::f32 || x.dtype == DType::bf16)) {
      backend_.convert(out, x);
      return {};
    }
    auto staged = std::make_unique<Staged>(backend_, out);
    const Tensor copy = staged->copy_of(x), result = staged->room_for(out);
    staged->begin(call(result, copy), result);
    return Request(std::move(staged));
  }

  std::unique_ptr<Communicator> owned_;
  Backend& backend_;
  Communicator& host_;
};

}  // namespace

std::unique_ptr<Communicator> make_staging_communicator(Backend& backend, Communicator& host) {
  return std::make_unique<StagingCommunicator>(backend, host);
}

}  // namespace shoal
