// What a collective does, as messages: a plan is a number of pieces, and a piece is messages, then a local
// sum where there is one, then more messages. Plans run nothing (the engine does) and know no MPI.
//
// Every rank sends each other rank its part directly and each part is summed by one rank, in the order of
// ranks: as many bytes as a ring takes, the same bits from call to call and as between threads, and bf16
// rounded once.
#pragma once

#include <functional>
#include <vector>

#include "comm/communicator.h"

namespace shoal::messages {

struct Message {
  enum class Way : std::uint8_t { send, receive };
  Way way;
  int peer;  // rank in the group
  std::byte* data;
  std::int64_t bytes;  // about 1 MiB at most
};

struct Piece {
  std::vector<Message> first;
  std::function<void()> between;  // when all of the first are done
  std::vector<Message> second;
};

struct Plan {
  std::int64_t pieces = 0;
  std::size_t scratch = 0;  // bytes that each piece under way needs
  std::function<Piece(std::int64_t index, std::byte* scratch)> piece;
};

struct Seat {  // in a group
  int rank;
  int size;  // two at least
};

Plan plan_all_reduce(Seat seat, const Tensor& x, ReduceOp op);
Plan plan_reduce_scatter(Seat seat, const Tensor& out, const Tensor& x, ReduceOp op);
Plan plan_all_gather(Seat seat, const Tensor& out, const Tensor& x);
Plan plan_all_to_all(Seat seat, const Tensor& out, const Tensor& x);
Plan plan_broadcast(Seat seat, const Tensor& x, int root);
Plan plan_message(Message::Way way, const Tensor& x, int peer);
Plan plan_barrier(Seat seat);

}  // namespace shoal::messages
