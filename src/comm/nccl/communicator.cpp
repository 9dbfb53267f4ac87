#include "comm/nccl/communicator.h"

#include <algorithm>
#include <cstring>
#include <exception>
#include <numeric>
#include <optional>
#include <utility>
#include <vector>

#include "comm/arguments.h"
#include "comm/nccl/add_parts.h"
#include "comm/nccl/nccl_group.h"
#include "core/error.h"

namespace shoal::nccl {
namespace {

ncclDataType_t type_of(DType dtype) {
  switch (dtype) {
    case DType::f32:
      return ncclFloat32;
    case DType::f64:
      return ncclFloat64;
    case DType::bf16:
      return ncclBfloat16;
    case DType::f16:
      return ncclFloat16;
    case DType::i32:
      return ncclInt32;
    case DType::i8:
      return ncclInt8;
  }
  return ncclNumTypes;
}

ncclRedOp_t op_of(ReduceOp op) {
  return op == ReduceOp::sum ? ncclSum : op == ReduceOp::max ? ncclMax : ncclMin;
}

std::size_t as_size(std::int64_t count) { return static_cast<std::size_t>(count); }

// Runs messages as one NCCL group. `messages` calls its argument with the result of each ncclSend and
// ncclRecv.
template <typename Messages>
ncclResult_t together(const Messages& messages) {
  ncclGroupStart();
  ncclResult_t worst = ncclSuccess;
  messages([&](ncclResult_t result) {
    if (result != ncclSuccess && result != ncclInProgress) worst = result;
  });
  const auto result = ncclGroupEnd();
  return worst == ncclSuccess ? result : worst;
}

// The bytes of an id as a tensor in host memory.
Tensor tensor_of(ncclUniqueId& id) {
  return {&id, DType::i32, {static_cast<std::int64_t>(sizeof id / sizeof(std::int32_t))}};
}

// A tensor cut into one part per rank. The last parts may be short or empty.
struct Parts {
  std::int64_t count, part;

  std::int64_t first(int rank) const { return std::min(count, rank * part); }
  std::int64_t size(int rank) const { return first(rank + 1) - first(rank); }
};

// Equal parts of bfloat16, in multiples of 16 bytes.
Parts even_parts(std::int64_t count, int ranks) {
  constexpr std::int64_t kPiece = 8;
  const std::int64_t part = (count + ranks - 1) / ranks;
  return {count, (part + kPiece - 1) / kPiece * kPiece};
}

class NcclCommunicator final : public Communicator {
 public:
  // `members`: ranks in the run.
  NcclCommunicator(std::shared_ptr<FailureDetector> detector, std::unique_ptr<Communicator> inner,
                   std::vector<int> members)
      : inner_(std::move(inner)), detector_(std::move(detector)), members_(std::move(members)) {
    auto others = members_;
    others.erase(others.begin() + rank());
    others_ = std::make_shared<const std::vector<int>>(std::move(others));
  }

  std::string_view name() const override { return "nccl"; }
  int rank() const override { return inner_->rank(); }
  int size() const override { return inner_->size(); }

  Request all_reduce(const Tensor& x, ReduceOp op) override {
    check_reducible(x.dtype);
    if (!takes(x)) return inner().all_reduce(x, op);
    const auto description = describe("all_reduce", x, op);
    return collective(description, x, [&](NcclGroup& group, const Description& now) {
      if (x.dtype == DType::bf16 && op == ReduceOp::sum) return add_bfloat16(group, now, x);
      group.call(now, [&](ncclComm_t comm) {
        return ncclAllReduce(x.data, x.data, as_size(x.count()), type_of(x.dtype), op_of(op), comm,
                             group.stream());
      });
    });
  }

  Request reduce_scatter(const Tensor& out, const Tensor& x, ReduceOp op) override {
    check_reducible(x.dtype);
    check_parts("reduce_scatter", x, out, size());
    if (!takes(x)) return inner().reduce_scatter(out, x, op);
    return collective(describe("reduce_scatter", x, op), x, [&](NcclGroup& group, const Description& now) {
      if (x.dtype == DType::bf16 && op == ReduceOp::sum) {
        return add_my_part(group, now, x, out.as<bfloat16>(), {x.count(), out.count()});
      }
      group.call(now, [&](ncclComm_t comm) {
        return ncclReduceScatter(x.data, out.data, as_size(out.count()), type_of(x.dtype), op_of(op), comm,
                                 group.stream());
      });
    });
  }

  Request all_gather(const Tensor& out, const Tensor& x) override {
    check_parts("all_gather", out, x, size());
    if (!takes(x)) return inner().all_gather(out, x);
    return collective(describe("all_gather", x), x, [&](NcclGroup& group, const Description& now) {
      group.call(now, [&](ncclComm_t comm) {
        return ncclAllGather(x.data, out.data, x.bytes(), ncclInt8, comm, group.stream());
      });
    });
  }

  Request all_to_all(const Tensor& out, const Tensor& x) override {
    check_all_to_all(out, x, size());
    if (!takes(x)) return inner().all_to_all(out, x);
    return collective(describe("all_to_all", x), x, [&](NcclGroup& group, const Description& now) {
      const std::size_t part = x.bytes() / static_cast<std::size_t>(size());
      group.call(now, [&](ncclComm_t comm) {
        return together([&](auto&& message) {
          for (int r = 0; r < size(); ++r) {
            const auto at = static_cast<std::size_t>(r) * part;
            message(ncclSend(x.as<std::byte>() + at, part, ncclInt8, r, comm, group.stream()));
            message(ncclRecv(out.as<std::byte>() + at, part, ncclInt8, r, comm, group.stream()));
          }
        });
      });
    });
  }

  Request broadcast(const Tensor& x, int root) override {
    check_root(root, size());
    if (!takes(x)) return inner().broadcast(x, root);
    return collective(describe("broadcast", x), x, [&](NcclGroup& group, const Description& now) {
      group.call(now, [&](ncclComm_t comm) {
        return ncclBroadcast(x.data, x.data, x.bytes(), ncclInt8, root, comm, group.stream());
      });
    });
  }

  Request send(const Tensor& x, int to) override {
    check_peer("send to", to, rank(), size());
    if (!next_ || next_->peer != to || !takes(x)) return inner().send(x, to);
    return message("send", x, *next_, [&](ncclComm_t comm) {
      return ncclSend(x.data, x.bytes(), ncclInt8, kReceiver, comm, next_->group->stream());
    });
  }
  Request receive(const Tensor& x, int from) override {
    check_peer("receive from", from, rank(), size());
    if (!previous_ || previous_->peer != from || !takes(x)) return inner().receive(x, from);
    return message("receive", x, *previous_, [&](ncclComm_t comm) {
      return ncclRecv(x.data, x.bytes(), ncclInt8, kSender, comm, previous_->group->stream());
    });
  }

  void barrier() override {
    detector_->check();
    inner().barrier();
  }

  void expect_messages(int to, int from) override;
  void abandon() noexcept override {
    detector_->abandon();
    inner_->abandon();
  }
  bool stopped() const override { return inner_->stopped(); }
  double deadline_seconds() const override { return inner_->deadline_seconds(); }

  std::unique_ptr<Communicator> split(const SplitKeys& keys) override {
    detector_->check();
    auto members = members_of(keys, size(), rank());
    for (int& member : members) member = members_[static_cast<std::size_t>(member)];
    return std::make_unique<NcclCommunicator>(detector_, inner().split(keys), std::move(members));
  }

 private:
  // A one-way connection between two ranks: an NCCL communicator of two. Each direction has its own, since
  // one NCCL communicator runs its operations one after another.
  static constexpr int kSender = 0, kReceiver = 1;
  struct PeerConnection {
    int peer = 0;  // rank in this group
    std::unique_ptr<NcclGroup> group;
    std::shared_ptr<const std::vector<int>> ranks;  // the peer, as rank of the run
  };

  Communicator& inner() {
    inner_->set_purpose(purpose_);
    return *inner_;
  }

  // Whether NCCL transfers x.
  bool takes(const Tensor& x) {
    detector_->check();
    return size() > 1 && is_on_gpu(x.data);
  }

  Description describe(const char* what, const Tensor& x, std::optional<ReduceOp> op = {}) const {
    return {what, op, x.count(), x.dtype, purpose_, others_};
  }

  template <typename Calls>
  Request collective(Description description, const Tensor& x, const Calls& calls) {
    if (x.count() == 0) return {};
    if (!nccl_group_) connect(description);
    return nccl_group_->collective(std::move(description),
                                   [&](const Description& now) { calls(*nccl_group_, now); });
  }
  Request message(const char* what, const Tensor& x, PeerConnection& connection,
                  const NcclGroup::Call& function) {
    if (x.count() == 0) return {};
    auto description = describe(what, x);
    description.others = connection.ranks;
    return connection.group->collective(
        std::move(description), [&](const Description& now) { connection.group->call(now, function); });
  }

  void connect(const Description& description);
  PeerConnection connect_to(int peer, const ncclUniqueId& id, int side) const;
  void add_my_part(NcclGroup& group, const Description& now, const Tensor& x, bfloat16* out,
                   const Parts& parts);
  void add_bfloat16(NcclGroup& group, const Description& now, const Tensor& x);

  std::unique_ptr<Communicator> inner_;  // must outlive the detector
  std::shared_ptr<FailureDetector> detector_;
  std::vector<int> members_;
  std::shared_ptr<const std::vector<int>> others_;
  std::unique_ptr<NcclGroup> nccl_group_;          // null before the first collective
  std::optional<PeerConnection> next_, previous_;  // set by expect_messages()
};

ncclUniqueId make_id() {
  ncclUniqueId id{};
  if (const auto result = ncclGetUniqueId(&id); result != ncclSuccess) fail("{}", text_of(result, nullptr));
  return id;
}

void NcclCommunicator::connect(const Description& description) {
  ncclUniqueId id{};
  if (rank() == 0) id = make_id();
  inner().broadcast(tensor_of(id), 0).wait();
  auto group = std::make_unique<NcclGroup>(detector_, id, rank(), size(), description);
  group->connect(description);
  nccl_group_ = std::move(group);
}

NcclCommunicator::PeerConnection NcclCommunicator::connect_to(int peer, const ncclUniqueId& id,
                                                              int side) const {
  const auto ranks = std::make_shared<const std::vector<int>>(1, members_[static_cast<std::size_t>(peer)]);
  const Description description{"start of messages", {}, 0, DType::f32, purpose_, ranks};
  return {peer, std::make_unique<NcclGroup>(detector_, id, side, 2, description), ranks};
}

// Connects both directions at the same time, since all ranks of a ring do the same. The first message makes
// NCCL connect.
void NcclCommunicator::expect_messages(int to, int from) {
  if (size() == 1) return;
  check_peer("send to", to, rank(), size());
  check_peer("receive from", from, rank(), size());
  ncclUniqueId out = make_id(), in{};
  auto sent = inner().send(tensor_of(out), to), received = inner().receive(tensor_of(in), from);
  sent.wait();
  received.wait();
  PeerConnection next = connect_to(to, out, kSender), previous = connect_to(from, in, kReceiver);
  for (int round = 0; round < 2; ++round) {
    for (auto* connection : {&next, &previous}) {
      const Description description{"start of messages", {}, 0, DType::f32, purpose_, connection->ranks};
      connection->group->connect(description);
      if (round > 0) continue;
      void* memory = connection->group->scratch().take(sizeof(float));
      connection->group->start_call(description, [&](ncclComm_t comm) {
        return connection == &next
                   ? ncclSend(memory, 1, ncclFloat32, kReceiver, comm, connection->group->stream())
                   : ncclRecv(memory, 1, ncclFloat32, kSender, comm, connection->group->stream());
      });
    }
  }
  next_ = std::move(next);
  previous_ = std::move(previous);
}

// Receives the other ranks' values of this rank's part into scratch memory and adds them.
void NcclCommunicator::add_my_part(NcclGroup& group, const Description& now, const Tensor& x, bfloat16* out,
                                   const Parts& parts) {
  const int me = rank();
  const std::int64_t mine = parts.size(me);
  auto* others = static_cast<bfloat16*>(
      group.scratch().take(as_size(mine) * static_cast<std::size_t>(size() - 1) * sizeof(bfloat16)));
  group.call(now, [&](ncclComm_t comm) {
    return together([&](auto&& message) {
      auto* to = others;
      for (int r = 0; r < size(); ++r) {
        if (r == me) continue;
        if (const auto count = as_size(parts.size(r)); count > 0) {
          message(ncclSend(x.as<bfloat16>() + parts.first(r), count, ncclBfloat16, r, comm, group.stream()));
        }
        if (mine > 0) message(ncclRecv(to, as_size(mine), ncclBfloat16, r, comm, group.stream()));
        to += mine;
      }
    });
  });
  check(add_parts(out, {x.as<bfloat16>() + parts.first(me), others, me, size(), mine}, group.stream()));
}

void NcclCommunicator::add_bfloat16(NcclGroup& group, const Description& now, const Tensor& x) {
  const int me = rank();
  const Parts parts = even_parts(x.count(), size());
  auto* all = x.as<bfloat16>();
  add_my_part(group, now, x, all + parts.first(me), parts);
  group.call(now, [&](ncclComm_t comm) {
    return together([&](auto&& message) {
      for (int r = 0; r < size(); ++r) {
        if (r == me) continue;
        const auto mine = as_size(parts.size(me)), theirs = as_size(parts.size(r));
        if (mine > 0) message(ncclSend(all + parts.first(me), mine, ncclBfloat16, r, comm, group.stream()));
        if (theirs > 0)
          message(ncclRecv(all + parts.first(r), theirs, ncclBfloat16, r, comm, group.stream()));
      }
    });
  });
}

}  // namespace

std::unique_ptr<Communicator> make_communicator(std::unique_ptr<Communicator> inner, int number,
                                                void* stream) {
  check(cudaSetDevice(number));
  std::vector<int> members(static_cast<std::size_t>(inner->size()));
  std::iota(members.begin(), members.end(), 0);
  auto detector = std::make_shared<FailureDetector>(*inner, number, static_cast<cudaStream_t>(stream));
  return std::make_unique<NcclCommunicator>(std::move(detector), std::move(inner), std::move(members));
}

}  // namespace shoal::nccl
