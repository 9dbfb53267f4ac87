#include "comm/messages/communicator.h"

#include <exception>

#include "comm/arguments.h"
#include "core/error.h"

namespace shoal::messages {
namespace {

class Begun final : public Request::Pending {
 public:
  Begun(Engine& engine, std::shared_ptr<Job> job) : engine_(engine), job_(std::move(job)) {}
  Begun(const Begun&) = delete;
  Begun& operator=(const Begun&) = delete;
  ~Begun() override { engine_.settle(*job_, std::uncaught_exceptions() > exceptions_); }
  void wait() override { engine_.wait(*job_); }

 private:
  Engine& engine_;
  std::shared_ptr<Job> job_;
  int exceptions_ = std::uncaught_exceptions();
};

std::string reduction(const char* name, ReduceOp op) { return fmt::format("{} ({})", name, name_of(op)); }

class MpiCommunicator final : public Communicator {
 public:
  MpiCommunicator(Engine& engine, std::shared_ptr<Group> group) : engine_(engine), group_(std::move(group)) {}

  std::string_view name() const override { return "mpi"; }
  int rank() const override { return group_->rank; }
  int size() const override { return group_->seat().size; }

  Request all_reduce(const Tensor& x, ReduceOp op) override {
    check_reducible(x.dtype);
    return begin(reduction("all_reduce", op), x, plan_all_reduce(group_->seat(), x, op));
  }
  Request reduce_scatter(const Tensor& out, const Tensor& x, ReduceOp op) override {
    check_reducible(x.dtype);
    check_parts("reduce_scatter", x, out, size());
    return begin(reduction("reduce_scatter", op), x, plan_reduce_scatter(group_->seat(), out, x, op));
  }
  Request all_gather(const Tensor& out, const Tensor& x) override {
    check_parts("all_gather", out, x, size());
    return begin("all_gather", x, plan_all_gather(group_->seat(), out, x));
  }
  Request all_to_all(const Tensor& out, const Tensor& x) override {
    check_all_to_all(out, x, size());
    return begin("all_to_all", x, plan_all_to_all(group_->seat(), out, x));
  }
  Request broadcast(const Tensor& x, int root) override {
    check_root(root, size());
    return begin(fmt::format("broadcast from its member {}", root), x,
                 plan_broadcast(group_->seat(), x, root));
  }
  Request send(const Tensor& x, int to) override {
    check_peer("send to", to, rank(), size());
    return begin("send", x, plan_message(Message::Way::send, x, to), JobKind::send, to);
  }
  Request receive(const Tensor& x, int from) override {
    check_peer("receive from", from, rank(), size());
    return begin("receive", x, plan_message(Message::Way::receive, x, from), JobKind::receive, from);
  }
  void barrier() override { begin("barrier", {}, plan_barrier(group_->seat())).wait(); }

  bool stopped() const override { return engine_.stopping(); }
  double deadline_seconds() const override { return engine_.deadline_seconds(); }

  std::unique_ptr<Communicator> split(const Places& places) override {
    // No member uses an id from here on, whichever groups it has.
    int id = engine_.next_group_id();
    all_reduce({&id, DType::i32, {1}}, ReduceOp::max).wait();
    if (id >= engine_.most_groups()) {
      fail("more than {} groups of ranks: this MPI has no tags for them", engine_.most_groups());
    }
    auto members = members_of(places, size(), rank());
    for (auto& member : members) member = group_->members[static_cast<std::size_t>(member)];
    return make_communicator(engine_, engine_.add_group(id, std::move(members)));
  }

 private:
  Request begin(const std::string& what, const Tensor& x, Plan plan, JobKind kind = JobKind::collective,
                int peer = 0) {
    auto job = std::make_shared<Job>();
    job->group = group_;
    job->kind = kind;
    job->peer = peer;
    job->describe = x ? fmt::format("{} of {} {}", what, x.count(), name_of(x.dtype)) : what;
    if (!purpose().empty()) job->describe += fmt::format(" [{}]", purpose());
    job->plan = std::move(plan);
    job->bytes = static_cast<std::int64_t>(x.bytes());
    engine_.begin(job);
    if (job->done) return {};
    return Request(std::make_unique<Begun>(engine_, std::move(job)));
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
