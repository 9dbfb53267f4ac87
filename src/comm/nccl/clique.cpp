#include "comm/nccl/clique.h"

#include <exception>
#include <utility>

#include "core/error.h"

namespace shoal::nccl {
namespace {

class Begun final : public Request::Pending {
 public:
  Begun(std::shared_ptr<Watch> watch, std::shared_ptr<Job> job)
      : watch_(std::move(watch)), job_(std::move(job)) {}
  Begun(const Begun&) = delete;
  Begun& operator=(const Begun&) = delete;
  // The rank's stream waits, so whatever is done to the buffers by it comes later.
  ~Begun() override {
    if (!job_) return;
    try {
      std::uncaught_exceptions() > exceptions_ ? watch_->abandon() : wait();
    } catch (const std::exception&) {  // the next call says it again
    }
  }

  void wait() override {
    const auto job = std::exchange(job_, nullptr);
    watch_->check();
    job->awaited = true;
    check(cudaStreamWaitEvent(watch_->compute(), job->done.get(), 0));
    watch_->check();
  }

 private:
  std::shared_ptr<Watch> watch_;
  std::shared_ptr<Job> job_;
  int exceptions_ = std::uncaught_exceptions();
};

}  // namespace

// The host never stands in NCCL, where nothing could reach it.
Clique::Clique(std::shared_ptr<Watch> watch, const ncclUniqueId& id, int rank, int size,
               const Description& description)
    : watch_(std::move(watch)) {
  check(cudaSetDevice(watch_->device()));
  ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
  config.blocking = 0;
  watch_->begin(comm_, description,
                [&](ncclComm_t) { return ncclCommInitRankConfig(&comm_, size, id, rank, &config); });
}

Clique::~Clique() { watch_->leave(comm_, std::uncaught_exceptions() > exceptions_); }

void Clique::connect(const Description& description) { settle(description); }

void Clique::begin(const Description& description, const Step& step) {
  watch_->begin(comm_, description, step);
}

void Clique::settle(const Description& description) { watch_->settle(comm_, description); }

Request Clique::collective(Description description, const std::function<void(const Description&)>& steps) {
  auto job = std::make_shared<Job>();
  job->description = std::move(description);
  check(cudaEventRecord(job->ready.get(), watch_->compute()));
  check(cudaStreamWaitEvent(stream(), job->ready.get(), 0));
  steps(job->description);
  check(cudaEventRecord(job->done.get(), stream()));
  watch_->add(job);
  return Request(std::make_unique<Begun>(watch_, std::move(job)));
}

}  // namespace shoal::nccl
