// Notes between ranks beside the data: who has failed, who has come how far.
#pragma once

#include <list>
#include <optional>

#include "comm/messages/transport.h"

namespace shoal::messages {

struct Note {
  enum class Kind : std::int32_t {
    failed,  // the sender has; text: a hash of its message, 0 when unknown; number: 1 if it had not heard of
             // another
    ask,     // how many jobs of this group and kind has the receiver begun?
    answer,  // number: as many; text: 1 if its body has ended
  };
  Kind kind = Kind::failed;
  std::int32_t from = 0;
  std::int32_t group = 0;
  std::int32_t job_kind = 0;
  std::int64_t number = 0;
  std::uint64_t text = 0;
};

// Notes are lost where MPI fails: what waits for one must not wait forever.
class Control {
 public:
  explicit Control(Transport& transport) : transport_(transport) { listen(); }
  Control(const Control&) = delete;
  Control& operator=(const Control&) = delete;

  void send(int to, Note note);
  void send_all(Note note);  // to every other rank
  std::optional<Note> receive();
  bool all_sent();
  void close();  // before MPI ends

 private:
  struct Outgoing {
    Note note;
    Handle handle;
  };
  void listen();

  Transport& transport_;
  bool listening_ = false;
  Note incoming_;
  Handle incoming_handle_;
  std::list<Outgoing> outgoing_;
};

}  // namespace shoal::messages
