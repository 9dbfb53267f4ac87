// Runs the pending operations piece by piece. Used by the engine's thread only.
#pragma once

#include <deque>
#include <list>
#include <map>
#include <memory>
#include <tuple>
#include <vector>

#include "comm/messages/pending_operation.h"
#include "comm/messages/piece_transfer.h"

namespace shoal::messages {

class PieceScheduler {
 public:
  explicit PieceScheduler(Transport& transport);

  // The number of groups that tags can distinguish.
  int most_groups() const { return most_groups_; }

  void add(std::shared_ptr<PendingOperation> operation);
  // Makes progress with all operations and returns whether there was any. Throws Error when MPI fails.
  bool advance();
  bool idle() const { return queues_.empty(); }
  // Number of completed operations.
  std::int64_t done() const { return done_; }

 private:
  struct Buffer {
    std::unique_ptr<std::byte[]> data;
    std::size_t bytes = 0;
  };
  struct ActivePiece {
    ActivePiece(std::shared_ptr<PendingOperation> operation_, Buffer scratch_, Transport& transport,
                PieceTags tags, Piece piece)
        : operation(std::move(operation_)),
          scratch(std::move(scratch_)),
          transfer(transport, operation->group->members, tags, std::move(piece)) {}
    std::shared_ptr<PendingOperation> operation;
    Buffer scratch;
    PieceTransfer transfer;
  };
  // Operations that every rank starts in the same order. A queue runs a limited number of pieces at a time,
  // which bounds the scratch memory. Queues do not wait for each other, but while another queue has an older
  // large collective, a large one runs a single piece at a time until the rank waits for it.
  using QueueKey = std::tuple<int, OperationKind, int>;  // group, kind, peer of messages
  struct Queue {
    std::deque<std::shared_ptr<PendingOperation>> operations;  // those that have pieces to start
    std::list<ActivePiece> active;
    std::int64_t oldest_large() const;
  };

  bool start_pieces(Queue& queue, std::int64_t oldest);
  bool advance(std::list<ActivePiece>& active);
  void finish(ActivePiece& active);
  PieceTags next_tags(const PendingOperation& operation);
  Buffer take_buffer(std::size_t bytes);

  Transport& transport_;
  int most_groups_;
  std::map<QueueKey, Queue> queues_;  // empty queues are erased
  std::map<int, int> next_tag_;       // by group
  std::vector<Buffer> free_;
  std::int64_t done_ = 0, next_order_ = 0;
};

}  // namespace shoal::messages
