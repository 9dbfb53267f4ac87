#include "comm/messages/communicator.h"

#include <exception>

#include "comm/arguments.h"
#include "comm/failure.h"
#include "core/error.h"

namespace shoal::messages {
namespace {

class EngineRequest final : public Request::Pending {
 public:
  EngineRequest(Engine& engine, std::shared_ptr<PendingOperation> operation)
      : engine_(engine), operation_(std::move(operation)) {}
  EngineRequest(const EngineRequest&) = delete;
  EngineRequest& operator=(const EngineRequest&) = delete;
  ~EngineRequest() override { engine_.release(*operation_, std::uncaught_exceptions() > exceptions_); }
  void wait() override { engine_.wait(*operation_); }

 private:
  Engine& engine_;
  std::shared_ptr<PendingOperation> operation_;
  int exceptions_ = std::uncaught_exceptions();
};

std::string reduction(const char* name, ReduceOp op) { return fmt::format("{} ({})", name, name_of(op)); }

class MpiCommunicator final : public Communicator {
 public:
  MpiCommunicator(Engine& engine, std::shared_ptr<Group> group) : engine_(engine), group_(std::move(group)) {}

  std::string_view name() const override { return "mpi"; }
  int rank() const override { return group_->rank; }
  int size() const override { return group_->rank_and_size().size; }

  Request all_reduce(const Tensor& x, ReduceOp op) override {
    check_reducible(x.dtype);
    return begin(reduction("all_reduce", op), x, plan_all_reduce(group_->rank_and_size(), x, op));
  }
  Request reduce_scatter(const Tensor& out, const Tensor& x, ReduceOp op) override {
    check_reducible(x.dtype);
    check_parts("reduce_scatter", x, out, size());
    return begin(reduction("reduce_scatter", op), x,
                 plan_reduce_scatter(group_->rank_and_size(), out, x, op));
  }
  Request all_gather(const Tensor& out, const Tensor& x) override {
    check_parts("all_gather", out, x, size());
    return begin("all_gather", x, plan_all_gather(group_->rank_and_size(), out, x));
  }
  Request all_to_all(const Tensor& out, const Tensor& x) override {
    check_all_to_all(out, x, size());
    return begin("all_to_all", x, plan_all_to_all(group_->rank_and_size(), out, x));
  }
  Request broadcast(const Tensor& x, int root) override {
    check_root(root, size());
    return begin(fmt::format("broadcast from its member {}", root), x,
                 plan_broadcast(group_->rank_and_size(), x, root));
  }
  Request send(const Tensor& x, int to) override {
    check_peer("send to", to, rank(), size());
    return begin("send", x, plan_message(Message::Direction::send, x, to), OperationKind::send, to);
  }
  Request receive(const Tensor& x, int from) override {
    check_peer("receive from", from, rank(), size());
    return begin("receive", x, plan_message(Message::Direction::receive, x, from), OperationKind::receive,
                 from);
  }
  void barrier() override { begin("barrier", {}, plan_barrier(group_->rank_and_size())).wait(); }

  void abandon() noexcept override {
    if (auto text = handled_failure(); !text.empty()) engine_.announce(std::move(text));
  }
  bool stopped() const override { return engine_.stopping(); }
  double deadline_seconds() const override { return engine_.deadline_seconds(); }

  std::unique_ptr<Communicator> split(const SplitKeys& keys) override {
    // The maximum over all members is an id that none of them has used.
    int id = engine_.next_group_id();
    all_reduce({&id, DType::i32, {1}}, ReduceOp::max).wait();
    if (id >= engine_.most_groups()) {
      fail("more than {} groups of ranks: this MPI has no tags for them", engine_.most_groups());
    }
    auto members = members_of(keys, size(), rank());
    for (auto& member : members) member = group_->members[static_cast<std::size_t>(member)];
    return make_communicator(engine_, engine_.add_group(id, std::move(members)));
  }

 private:
  Request begin(const std::string& what, const Tensor& x, Plan plan,
                OperationKind kind = OperationKind::collective, int peer = 0) {
    auto operation = std::make_shared<PendingOperation>();
    operation->group = group_;
    operation->kind = kind;
    operation->peer = peer;
    operation->describe = x ? fmt::format("{} of {} {}", what, x.count(), name_of(x.dtype)) : what;
    if (!purpose().empty()) operation->describe += fmt::format(" [{}]", purpose());
    operation->plan = std::move(plan);
    operation->bytes = static_cast<std::int64_t>(x.bytes());
    engine_.begin(operation);
    if (operation->done) return {};
    return Request(std::make_unique<EngineRequest>(engine_, std::move(operation)));
  }

  Engine& engine_;
  std::shared_ptr<Group> group_;
};

}  // namespace

std::unique_ptr<Communicator> make_communicator(Engine& engine, std::shared_ptr<Group> group) {
  if (group->members.size() == 1) return make_self_communicator();
  return std::make_unique<MpiCommunicator>(engine, std::move(group));
}

}  // namespace shoal::messages
