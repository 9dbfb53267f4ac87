// A piece of a plan on its way through MPI.
#pragma once

#include <vector>

#include "comm/messages/plan.h"
#include "comm/messages/transport.h"

namespace shoal::messages {

// Tags of a piece: of its first messages, and of its second.
struct Tags {
  int first, second;
};

class Transfer {
 public:
  // `members`: world ranks by rank in the group. Starts the first messages; throws Error when MPI fails.
  Transfer(Transport& transport, const std::vector<int>& members, Tags tags, Piece piece);
  Transfer(const Transfer&) = delete;
  Transfer& operator=(const Transfer&) = delete;

  // Goes on where messages have come, and says whether all is done. Throws Error when MPI fails.
  bool advance();

 private:
  enum class Stage : std::uint8_t { first, second, done };

  void start(const std::vector<Message>& messages, int tag);

  Transport& transport_;
  const std::vector<int>& members_;
  Tags tags_;
  Piece piece_;
  Stage stage_ = Stage::first;
  std::vector<Handle> handles_;  // of the stage
  std::size_t next_ = 0;         // those before it are done
};

}  // namespace shoal::messages
