#include "comm/nccl/nccl_group.h"

#include <exception>
#include <utility>

#include "core/error.h"

namespace shoal::nccl {
namespace {

class NcclRequest final : public Request::Pending {
 public:
  NcclRequest(std::shared_ptr<FailureDetector> detector, std::shared_ptr<NcclOperation> operation)
      : detector_(std::move(detector)), operation_(std::move(operation)) {}
  NcclRequest(const NcclRequest&) = delete;
  NcclRequest& operator=(const NcclRequest&) = delete;
  // Makes the rank's stream wait, so that its later work may use the buffers.
  ~NcclRequest() override {
    if (!operation_) return;
    try {
      std::uncaught_exceptions() > exceptions_ ? detector_->abandon() : wait();
    } catch (const std::exception&) {  // the next call throws it again
    }
  }

  void wait() override {
    const auto operation = std::exchange(operation_, nullptr);
    detector_->check();
    operation->awaited = true;
    check(cudaStreamWaitEvent(detector_->compute(), operation->done.get(), 0));
    detector_->check();
  }

 private:
  std::shared_ptr<FailureDetector> detector_;
  std::shared_ptr<NcclOperation> operation_;
  int exceptions_ = std::uncaught_exceptions();
};

}  // namespace

// Non-blocking: the host must not wait inside NCCL, where a failure could not wake it.
NcclGroup::NcclGroup(std::shared_ptr<FailureDetector> detector, const ncclUniqueId& id, int rank, int size,
                     const Description& description)
    : detector_(std::move(detector)) {
  check(cudaSetDevice(detector_->device()));
  ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
  config.blocking = 0;
  detector_->start_call(comm_, description,
                        [&](ncclComm_t) { return ncclCommInitRankConfig(&comm_, size, id, rank, &config); });
}

NcclGroup::~NcclGroup() { detector_->destroy(comm_, std::uncaught_exceptions() > exceptions_); }

void NcclGroup::connect(const Description& description) { finish_call(description); }

void NcclGroup::start_call(const Description& description, const Call& function) {
  detector_->start_call(comm_, description, function);
}

void NcclGroup::finish_call(const Description& description) { detector_->finish_call(comm_, description); }

Request NcclGroup::collective(Description description, const std::function<void(const Description&)>& calls) {
  auto operation = std::make_shared<NcclOperation>();
  operation->description = std::move(description);
  check(cudaEventRecord(operation->ready.get(), detector_->compute()));
  check(cudaStreamWaitEvent(stream(), operation->ready.get(), 0));
  calls(operation->description);
  check(cudaEventRecord(operation->done.get(), stream()));
  detector_->add(operation);
  return Request(std::make_unique<NcclRequest>(detector_, std::move(operation)));
}

}  // namespace shoal::nccl
