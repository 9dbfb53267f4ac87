// A collective as a plan of messages. A plan is a list of pieces; a piece is messages, then a local reduction
// where one is needed, then more messages. Plans are values: the engine executes them.
//
// A reduction sends every part directly to one rank, which reduces it in the order of ranks. This moves as
// many bytes as a ring, gives the same bits on every call and the same bits as ranks in threads, and rounds
// bf16 once.
#pragma once

#include <functional>
#include <vector>

#include "comm/communicator.h"

namespace shoal::messages {

struct Message {
  enum class Direction : std::uint8_t { send, receive };
  Direction direction;
  int peer;  // rank in the group
  std::byte* data;
  std::int64_t bytes;  // about 1 MiB at most
};

struct Piece {
  std::vector<Message> first;
  std::function<void()> between;  // called when all messages of `first` are done
  std::vector<Message> second;
};

struct Plan {
  std::int64_t pieces = 0;
  std::size_t scratch = 0;  // bytes that each running piece needs
  std::function<Piece(std::int64_t index, std::byte* scratch)> piece;
};

struct RankAndSize {  // of a group
  int rank;
  int size;  // at least 2
};

Plan plan_all_reduce(RankAndSize group, const Tensor& x, ReduceOp op);
Plan plan_reduce_scatter(RankAndSize group, const Tensor& out, const Tensor& x, ReduceOp op);
Plan plan_all_gather(RankAndSize group, const Tensor& out, const Tensor& x);
Plan plan_all_to_all(RankAndSize group, const Tensor& out, const Tensor& x);
Plan plan_broadcast(RankAndSize group, const Tensor& x, int root);
Plan plan_message(Message::Direction direction, const Tensor& x, int peer);
Plan plan_barrier(RankAndSize group);

}  // namespace shoal::messages
