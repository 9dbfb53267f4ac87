// The transport over MPI. Compiled into one module per MPI implementation, which links no other code of
// Shoal.
#include <mpi.h>

#include <cstdlib>
#include <cstring>

#include "comm/messages/transport.h"

namespace shoal::mpi {
namespace {

using messages::Channel, messages::Handle, messages::State, messages::kAnyRank;

static_assert(sizeof(MPI_Request) <= sizeof(Handle));

class MpiTransport final : public messages::Transport {
 public:
  bool start() override {
#ifdef OPEN_MPI
    // Over TCP, Open MPI asks the receiver before it sends more than 64 KiB: one more round trip per message.
    // The engine posts its receives early, so eager sends are safe. A setting of the user is kept.
    setenv("OMPI_MCA_btl_tcp_eager_limit", "1052672", 0);  // a message of 1 MiB and its header
#endif
    int granted = 0;
    // FUNNELED suffices: the calling thread makes all MPI calls.
    if (!succeeded(MPI_Init_thread(nullptr, nullptr, MPI_THREAD_FUNNELED, &granted))) return false;
    if (granted < MPI_THREAD_FUNNELED) return failed("this MPI does not work in programs with threads");
    int length = 0;
    MPI_Get_library_version(version_, &length);
    for (auto& comm : comms_) {
      if (!succeeded(MPI_Comm_dup(MPI_COMM_WORLD, &comm))) return false;
      MPI_Comm_set_errhandler(comm, MPI_ERRORS_RETURN);
    }
    MPI_Comm_rank(comms_[0], &rank_);
    MPI_Comm_size(comms_[0], &size_);
    int* limit = nullptr;
    int found = 0;
    MPI_Comm_get_attr(comms_[0], MPI_TAG_UB, static_cast<void*>(&limit), &found);
    if (found) largest_tag_ = *limit;
    return true;
  }

  void finish() override { MPI_Finalize(); }
  const char* error() const override { return error_; }

  int rank() const override { return rank_; }
  int size() const override { return size_; }
  std::int64_t largest_tag() const override { return largest_tag_; }
  const char* version() const override { return version_; }

  bool send(Channel channel, const void* data, int bytes, int to, int tag, Handle& handle) override {
    MPI_Request request = MPI_REQUEST_NULL;
    const int code = MPI_Isend(data, bytes, MPI_BYTE, to, tag, comm(channel), &request);
    store(request, handle);
    return succeeded(code);
  }

  bool receive(Channel channel, void* data, int bytes, int from, int tag, Handle& handle) override {
    MPI_Request request = MPI_REQUEST_NULL;
    const int source = from == kAnyRank ? MPI_ANY_SOURCE : from;
    const int code = MPI_Irecv(data, bytes, MPI_BYTE, source, tag, comm(channel), &request);
    store(request, handle);
    return succeeded(code);
  }

  State test(Handle& handle) override {
    MPI_Request request = MPI_REQUEST_NULL;
    std::memcpy(&request, &handle.bits, sizeof request);
    int done = 0;
    const int code = MPI_Test(&request, &done, MPI_STATUS_IGNORE);
    store(request, handle);
    if (!succeeded(code)) return State::failed;
    return done ? State::done : State::pending;
  }

  void cancel(Handle& handle) override {
    MPI_Request request = MPI_REQUEST_NULL;
    std::memcpy(&request, &handle.bits, sizeof request);
    MPI_Cancel(&request);
    MPI_Wait(&request, MPI_STATUS_IGNORE);
  }

 private:
  MPI_Comm comm(Channel channel) const { return comms_[static_cast<int>(channel)]; }
  static void store(MPI_Request request, Handle& handle) {
    std::memcpy(&handle.bits, &request, sizeof request);
  }

  bool succeeded(int code) {
    if (code == MPI_SUCCESS) return true;
    int length = 0;
    MPI_Error_string(code, error_, &length);
    return false;
  }
  bool failed(const char* why) {
    std::strncpy(error_, why, sizeof error_ - 1);
    return false;
  }

  MPI_Comm comms_[2] = {MPI_COMM_NULL, MPI_COMM_NULL};
  int rank_ = 0, size_ = 1;
  std::int64_t largest_tag_ = 32767;
  char version_[MPI_MAX_LIBRARY_VERSION_STRING] = "";
  char error_[MPI_MAX_ERROR_STRING] = "";
};

}  // namespace
}  // namespace shoal::mpi

extern "C" __attribute__((visibility("default"))) shoal::messages::Transport* shoal_mpi_transport();
extern "C" shoal::messages::Transport* shoal_mpi_transport() {
  static shoal::mpi::MpiTransport transport;
  return &transport;
}
