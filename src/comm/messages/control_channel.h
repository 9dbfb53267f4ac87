// Control messages between ranks, separate from the data: failures, and how far a rank has come.
#pragma once

#include <list>
#include <optional>

#include "comm/messages/transport.h"

namespace shoal::messages {

struct ControlMessage {
  enum class Kind : std::int32_t {
    failed,            // the sender has failed, with `body_ended`, `first_failure` and `text_hash`
    progress_request,  // asks how many operations of `group` and `operation_kind` the receiver has started
    progress_reply,    // answers a request with `started` and `body_ended`
  };
  Kind kind = Kind::failed;
  std::int32_t from = 0;  // set by send()
  std::int32_t group = 0;
  std::int32_t operation_kind = 0;
  std::int64_t started = 0;
  std::int32_t body_ended = 0;     // boolean
  std::int32_t first_failure = 0;  // boolean: the sender knew of no other failure when it failed
  std::uint64_t text_hash = 0;     // hash of the failure's message; 0 where it must not be compared
};

// Messages are lost where MPI fails, so no caller may wait for one without a time limit.
class ControlChannel {
 public:
  explicit ControlChannel(Transport& transport) : transport_(transport) { listen(); }
  ControlChannel(const ControlChannel&) = delete;
  ControlChannel& operator=(const ControlChannel&) = delete;

  void send(int to, ControlMessage message);
  void send_all(ControlMessage message);  // to every other rank
  std::optional<ControlMessage> receive();
  bool all_sent();
  void close();  // must be called before MPI_Finalize

 private:
  struct Outgoing {
    ControlMessage message;
    Handle handle;
  };
  void listen();

  Transport& transport_;
  bool listening_ = false;
  ControlMessage incoming_;
  Handle incoming_handle_;
  std::list<Outgoing> outgoing_;
};

}  // namespace shoal::messages
