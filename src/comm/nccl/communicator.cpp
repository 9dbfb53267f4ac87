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
#include "comm/nccl/clique.h"
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
  }
  return ncclNumTypes;
}

ncclRedOp_t op_of(ReduceOp op) {
  return op == ReduceOp::sum ? ncclSum : op == ReduceOp::max ? ncclMax : ncclMin;
}

std::size_t as_size(std::int64_t count) { return static_cast<std::size_t>(count); }

// Messages that NCCL does at once: message(send or receive, its arguments) for each.
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

// The bytes of an id, as a tensor in the host's memory.
Tensor tensor_of(ncclUniqueId& id) {
  return {&id, DType::i32, {static_cast<std::int64_t>(sizeof id / sizeof(std::int32_t))}};
}

// How a sum of bfloat16 is cut: a part for each rank, of which the last ones may be short or empty.
struct Parts {
  std::int64_t count, part;

  std::int64_t first(int rank) const { return std::min(count, rank * part); }
  std::int64_t size(int rank) const { return first(rank + 1) - first(rank); }
};

// In whole pieces of 16 bytes.
Parts even_parts(std::int64_t count, int ranks) {
  constexpr std::int64_t kPiece = 8;
  const std::int64_t part = (count + ranks - 1) / ranks;
  return {count, (part + kPiece - 1) / kPiece * kPiece};
}

class NcclCommunicator final : public Communicator {
 public:
  // `members`: their ranks in the run.
  NcclCommunicator(std::shared_ptr<Watch> watch, std::unique_ptr<Communicator> inner,
                   std::vector<int> members)
      : inner_(std::move(inner)), watch_(std::move(watch)), members_(std::move(members)) {
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
    return collective(description, x, [&](Clique& clique, const Description& now) {
      if (x.dtype == DType::bf16 && op == ReduceOp::sum) return add_bfloat16(clique, now, x);
      clique.step(now, [&](ncclComm_t comm) {
        return ncclAllReduce(x.data, x.data, as_size(x.count()), type_of(x.dtype), op_of(op), comm,
                             clique.stream());
      });
    });
  }

  Request reduce_scatter(const Tensor& out, const Tensor& x, ReduceOp op) override {
    check_reducible(x.dtype);
    check_parts("reduce_scatter", x, out, size());
    if (!takes(x)) return inner().reduce_scatter(out, x, op);
    return collective(describe("reduce_scatter", x, op), x, [&](Clique& clique, const Description& now) {
      if (x.dtype == DType::bf16 && op == ReduceOp::sum) {
        return add_my_part(clique, now, x, out.as<bfloat16>(), {x.count(), out.count()});
      }
      clique.step(now, [&](ncclComm_t comm) {
        return ncclReduceScatter(x.data, out.data, as_size(out.count()), type_of(x.dtype), op_of(op), comm,
                                 clique.stream());
      });
    });
  }

  Request all_gather(const Tensor& out, const Tensor& x) override {
    check_parts("all_gather", out, x, size());
    if (!takes(x)) return inner().all_gather(out, x);
    return collective(describe("all_gather", x), x, [&](Clique& clique, const Description& now) {
      clique.step(now, [&](ncclComm_t comm) {
        return ncclAllGather(x.data, out.data, x.bytes(), ncclInt8, comm, clique.stream());
      });
    });
  }

  Request all_to_all(const Tensor& out, const Tensor& x) override {
    check_all_to_all(out, x, size());
    if (!takes(x)) return inner().all_to_all(out, x);
    return collective(describe("all_to_all", x), x, [&](Clique& clique, const Description& now) {
      const std::size_t part = x.bytes() / static_cast<std::size_t>(size());
      clique.step(now, [&](ncclComm_t comm) {
        return together([&](auto&& message) {
          for (int r = 0; r < size(); ++r) {
            const auto at = static_cast<std::size_t>(r) * part;
            message(ncclSend(x.as<std::byte>() + at, part, ncclInt8, r, comm, clique.stream()));
            message(ncclRecv(out.as<std::byte>() + at, part, ncclInt8, r, comm, clique.stream()));
          }
        });
      });
    });
  }

  Request broadcast(const Tensor& x, int root) override {
    check_root(root, size());
    if (!takes(x)) return inner().broadcast(x, root);
    return collective(describe("broadcast", x), x, [&](Clique& clique, const Description& now) {
      clique.step(now, [&](ncclComm_t comm) {
        return ncclBroadcast(x.data, x.data, x.bytes(), ncclInt8, root, comm, clique.stream());
      });
    });
  }

  Request send(const Tensor& x, int to) override {
    check_peer("send to", to, rank(), size());
    if (!next_ || next_->peer != to || !takes(x)) return inner().send(x, to);
    return message("send", x, *next_, [&](ncclComm_t comm) {
      return ncclSend(x.data, x.bytes(), ncclInt8, kReceiver, comm, next_->clique->stream());
    });
  }
  Request receive(const Tensor& x, int from) override {
    check_peer("receive from", from, rank(), size());
    if (!previous_ || previous_->peer != from || !takes(x)) return inner().receive(x, from);
    return message("receive", x, *previous_, [&](ncclComm_t comm) {
      return ncclRecv(x.data, x.bytes(), ncclInt8, kSender, comm, previous_->clique->stream());
    });
  }

  void barrier() override {
    watch_->check();
    inner().barrier();
  }

  void expect_messages(int to, int from) override;
  void abandon() noexcept override { watch_->abandon(); }
  bool stopped() const override { return inner_->stopped(); }
  double deadline_seconds() const override { return inner_->deadline_seconds(); }

  std::unique_ptr<Communicator> split(const Places& places) override {
    watch_->check();
    auto members = members_of(places, size(), rank());
    for (int& member : members) member = members_[static_cast<std::size_t>(member)];
    return std::make_unique<NcclCommunicator>(watch_, inner().split(places), std::move(members));
  }

 private:
  // Messages go one way each, over communicators of two, since all that one communicator does is in one line.
  static constexpr int kSender = 0, kReceiver = 1;
  struct Way {
    int peer = 0;  // in this group
    std::unique_ptr<Clique> clique;
    std::shared_ptr<const std::vector<int>> ranks;  // of the run: the peer
  };

  Communicator& inner() {
    inner_->set_purpose(purpose_);
    return *inner_;
  }

  // Whether x is NCCL's.
  bool takes(const Tensor& x) {
    watch_->check();
    return size() > 1 && is_on_gpu(x.data);
  }

  Description describe(const char* what, const Tensor& x, std::optional<ReduceOp> op = {}) const {
    return {what, op, x.count(), x.dtype, purpose_, others_};
  }

  template <typename Steps>
  Request collective(Description description, const Tensor& x, const Steps& steps) {
    if (x.count() == 0) return {};
    if (!clique_) connect(description);
    return clique_->collective(std::move(description), [&](const Description& now) { steps(*clique_, now); });
  }
  Request message(const char* what, const Tensor& x, Way& way, const Clique::Step& step) {
    if (x.count() == 0) return {};
    auto description = describe(what, x);
    description.others = way.ranks;
    return way.clique->collective(std::move(description),
                                  [&](const Description& now) { way.clique->step(now, step); });
  }

  void connect(const Description& description);
  Way way_to(int peer, const ncclUniqueId& id, int side) const;
  void add_my_part(Clique& clique, const Description& now, const Tensor& x, bfloat16* out,
                   const Parts& parts);
  void add_bfloat16(Clique& clique, const Description& now, const Tensor& x);

  std::unique_ptr<Communicator> inner_;  // which the watch asks as long as it lives
  std::shared_ptr<Watch> watch_;
  std::vector<int> members_;
  std::shared_ptr<const std::vector<int>> others_;
  std::unique_ptr<Clique> clique_;      // once there was a collective
  std::optional<Way> next_, previous_;  // once messages are expected
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
  auto clique = std::make_unique<Clique>(watch_, id, rank(), size(), description);
  clique->connect(description);
  clique_ = std::move(clique);
}

NcclCommunicator::Way NcclCommunicator::way_to(int peer, const ncclUniqueId& id, int side) const {
  const auto ranks = std::make_shared<const std::vector<int>>(1, members_[static_cast<std::size_t>(peer)]);
  const Description description{"start of messages", {}, 0, DType::f32, purpose_, ranks};
  return {peer, std::make_unique<Clique>(watch_, id, side, 2, description), ranks};
}

// Both ways at once, since all ranks of a ring do the same. A first message of each makes NCCL connect them.
void NcclCommunicator::expect_messages(int to, int from) {
  if (size() == 1) return;
  check_peer("send to", to, rank(), size());
  check_peer("receive from", from, rank(), size());
  ncclUniqueId out = make_id(), in{};
  auto sent = inner().send(tensor_of(out), to), received = inner().receive(tensor_of(in), from);
  sent.wait();
  received.wait();
  Way next = way_to(to, out, kSender), previous = way_to(from, in, kReceiver);
  for (int round = 0; round < 2; ++round) {
    for (auto* way : {&next, &previous}) {
      const Description description{"start of messages", {}, 0, DType::f32, purpose_, way->ranks};
      way->clique->connect(description);
      if (round > 0) continue;
      void* memory = way->clique->scratch().take(sizeof(float));
      way->clique->begin(description, [&](ncclComm_t comm) {
        return way == &next ? ncclSend(memory, 1, ncclFloat32, kReceiver, comm, way->clique->stream())
                            : ncclRecv(memory, 1, ncclFloat32, kSender, comm, way->clique->stream());
      });
    }
  }
  next_ = std::move(next);
  previous_ = std::move(previous);
}

// The others' parts of mine come into scratch, and are added to my own.
void NcclCommunicator::add_my_part(Clique& clique, const Description& now, const Tensor& x, bfloat16* out,
                                   const Parts& parts) {
  const int me = rank();
  const std::int64_t mine = parts.size(me);
  auto* others = static_cast<bfloat16*>(
      clique.scratch().take(as_size(mine) * static_cast<std::size_t>(size() - 1) * sizeof(bfloat16)));
  clique.step(now, [&](ncclComm_t comm) {
    return together([&](auto&& message) {
      auto* to = others;
      for (int r = 0; r < size(); ++r) {
        if (r == me) continue;
        if (const auto count = as_size(parts.size(r)); count > 0) {
          message(ncclSend(x.as<bfloat16>() + parts.first(r), count, ncclBfloat16, r, comm, clique.stream()));
        }
        if (mine > 0) message(ncclRecv(to, as_size(mine), ncclBfloat16, r, comm, clique.stream()));
        to += mine;
      }
    });
  });
  check(add_parts(out, {x.as<bfloat16>() + parts.first(me), others, me, size(), mine}, clique.stream()));
}

void NcclCommunicator::add_bfloat16(Clique& clique, const Description& now, const Tensor& x) {
  const int me = rank();
  const Parts parts = even_parts(x.count(), size());
  auto* all = x.as<bfloat16>();
  add_my_part(clique, now, x, all + parts.first(me), parts);
  clique.step(now, [&](ncclComm_t comm) {
    return together([&](auto&& message) {
      for (int r = 0; r < size(); ++r) {
        if (r == me) continue;
        const auto mine = as_size(parts.size(me)), theirs = as_size(parts.size(r));
        if (mine > 0) message(ncclSend(all + parts.first(me), mine, ncclBfloat16, r, comm, clique.stream()));
        if (theirs > 0)
          message(ncclRecv(all + parts.first(r), theirs, ncclBfloat16, r, comm, clique.stream()));
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
  auto watch = std::make_shared<Watch>(*inner, number, static_cast<cudaStream_t>(stream));
  return std::make_unique<NcclCommunicator>(std::move(watch), std::move(inner), std::move(members));
}

}  // namespace shoal::nccl
