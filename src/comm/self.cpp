// The group of one rank: reductions leave their input unchanged; the other collectives copy at most.
#include <algorithm>
#include <cstring>
#include <vector>

#include "comm/arguments.h"
#include "core/error.h"

namespace shoal {
namespace {

class SelfCommunicator final : public Communicator {
 public:
  std::string_view name() const override { return "self"; }
  int rank() const override { return 0; }
  int size() const override { return 1; }

  Request all_reduce(const Tensor& x, ReduceOp) override {
    check_reducible(x.dtype);
    return {};
  }
  Request reduce_scatter(const Tensor& out, const Tensor& x, ReduceOp) override {
    check_reducible(x.dtype);
    check_parts("reduce_scatter", x, out, 1);
    return copy(out, x);
  }
  Request all_gather(const Tensor& out, const Tensor& x) override {
    check_parts("all_gather", out, x, 1);
    return copy(out, x);
  }
  Request all_to_all(const Tensor& out, const Tensor& x) override {
    check_all_to_all(out, x, 1);
    return copy(out, x);
  }
  Request broadcast(const Tensor&, int root) override {
    check_root(root, 1);
    return {};
  }
  Request send(const Tensor&, int to) override { fail("send to rank {}: a group of one has no peer", to); }
  Request receive(const Tensor&, int from) override {
    fail("receive from rank {}: a group of one has no peer", from);
  }
  void barrier() override {}
  std::unique_ptr<Communicator> split(const SplitKeys&) override { return make_self_communicator(); }

 private:
  static Request copy(const Tensor& out, const Tensor& x) {
    if (out.data != x.data && x.count() > 0) std::memcpy(out.data, x.data, x.bytes());
    return {};
  }
};

}  // namespace

std::unique_ptr<Communicator> make_self_communicator() { return std::make_unique<SelfCommunicator>(); }

std::vector<int> members_of(const Communicator::SplitKeys& keys, int size, int rank) {
  const auto mine = keys(rank);
  std::vector<std::pair<int, int>> members;  // key, rank
  for (int other = 0; other < size; ++other) {
    if (const auto key = keys(other); key.colour == mine.colour) members.emplace_back(key.key, other);
  }
  std::sort(members.begin(), members.end());
  std::vector<int> ranks;
  for (const auto& [key, member] : members) ranks.push_back(member);
  return ranks;
}

}  // namespace shoal
