#include "comm/messages/plan.h"

#include <algorithm>
#include <cstring>

#include "comm/reduce.h"

namespace shoal::messages {
namespace {

using Direction = Message::Direction;

// A piece fits in the cache, so that its reduction reads data that has just arrived. Its messages have a
// minimum size, below which their number would cost more than their bytes.
constexpr std::int64_t kPiece = 1 << 20, kLeastMessage = 16 << 10;
// Up to this size every rank sends its whole tensor to every other: one network delay instead of two.
constexpr std::int64_t kSmall = 4 << 10;

std::int64_t pieces_of(std::int64_t count, std::int64_t step) { return (count + step - 1) / step; }
std::byte* bytes_of(const Tensor& x) { return x.as<std::byte>(); }

// Calls act(peer) for every other rank, beginning with the next one, so that not all ranks send to the same
// peer first.
template <typename Do>
void for_each_peer(RankAndSize group, const Do& act) {
  for (int i = 1; i < group.size; ++i) act((group.rank + i) % group.size);
}

void add(std::vector<Message>& messages, Direction direction, int peer, std::byte* data, std::int64_t bytes) {
  if (bytes > 0) messages.push_back({direction, peer, data, bytes});
}

// Bytes per peer in a piece that is exchanged with all peers.
std::int64_t exchange_step(RankAndSize group) { return std::max(kPiece / group.size, kLeastMessage); }

// Sends `bytes` bytes at from(peer) to every peer, and receives as many from it into to(peer). Copies the
// rank's own part.
template <typename From, typename To>
Plan exchange(RankAndSize group, std::int64_t bytes, const From& from, const To& to) {
  const std::int64_t step = exchange_step(group);
  return {pieces_of(bytes, step), 0, [=](std::int64_t index, std::byte*) {
            Piece piece;
            const std::int64_t first = index * step, n = std::min(step, bytes - first);
            for_each_peer(group, [&](int peer) {
              add(piece.first, Direction::receive, peer, to(peer) + first, n);
              add(piece.first, Direction::send, peer, from(peer) + first, n);
            });
            const std::byte* source = from(group.rank) + first;
            std::byte* target = to(group.rank) + first;
            piece.between = [=] {
              if (target != source) std::memcpy(target, source, static_cast<std::size_t>(n));
            };
            return piece;
          }};
}

// [0, n) elements cut into one part per rank; parts begin at multiples of 16 elements, for vector code.
struct Cut {
  std::int64_t n, step;
  Cut(std::int64_t elements, int size) : n(elements), step((pieces_of(elements, size) + 15) / 16 * 16) {}
  std::int64_t first(int rank) const { return std::min(n, rank * step); }
  std::int64_t count(int rank) const { return std::min(n, (rank + 1) * step) - first(rank); }
};

// Reduces `count` elements of each rank into `out`: the peers' are received into `scratch`, this rank's are
// at `mine`.
struct Sum {
  RankAndSize group;
  DType dtype;
  ReduceOp op;
  std::byte* out;
  std::byte* mine;
  std::byte* scratch;
  std::int64_t count;

  std::int64_t bytes() const { return count * static_cast<std::int64_t>(size_of(dtype)); }
  // The elements of `rank`.
  std::byte* source(int rank) const {
    if (rank == group.rank) return mine;
    return scratch + (rank < group.rank ? rank : rank - 1) * bytes();
  }
  void receive(std::vector<Message>& messages) const {
    for_each_peer(group, [&](int peer) { add(messages, Direction::receive, peer, source(peer), bytes()); });
  }
  void operator()() const {
    std::vector<const std::byte*> sources;
    for (int rank = 0; rank < group.size; ++rank) sources.push_back(source(rank));
    reduce(std::span(&out, 1), 0, sources, 0, count, dtype, op);
  }
};

Piece small_all_reduce(RankAndSize group, const Tensor& x, ReduceOp op, std::byte* scratch) {
  Piece piece;
  const Sum sum{group, x.dtype, op, bytes_of(x), bytes_of(x), scratch, x.count()};
  sum.receive(piece.first);
  for_each_peer(group, [&](int peer) { add(piece.first, Direction::send, peer, bytes_of(x), sum.bytes()); });
  piece.between = sum;
  return piece;
}

// x: the elements of this piece. Part r is sent to rank r, reduced there, and sent back.
Piece large_all_reduce(RankAndSize group, const Tensor& x, ReduceOp op, std::byte* scratch) {
  Piece piece;
  const Cut cut(x.count(), group.size);
  const auto width = static_cast<std::int64_t>(size_of(x.dtype));
  const auto part = [&](int rank) { return bytes_of(x) + cut.first(rank) * width; };
  const Sum sum{group, x.dtype, op, part(group.rank), part(group.rank), scratch, cut.count(group.rank)};
  sum.receive(piece.first);
  for_each_peer(group, [&](int peer) {
    const std::int64_t theirs = cut.count(peer) * width;
    add(piece.first, Direction::send, peer, part(peer), theirs);
    add(piece.second, Direction::receive, peer, part(peer), theirs);
    add(piece.second, Direction::send, peer, part(group.rank), sum.bytes());
  });
  piece.between = sum;
  return piece;
}

// Elements first to first + n of x.
Tensor range(const Tensor& x, std::int64_t first, std::int64_t n) {
  return {bytes_of(x) + first * static_cast<std::int64_t>(size_of(x.dtype)), x.dtype, {n}};
}

}  // namespace

Plan plan_all_reduce(RankAndSize group, const Tensor& x, ReduceOp op) {
  const std::int64_t n = x.count(), width = static_cast<std::int64_t>(size_of(x.dtype));
  if (n == 0) return {};
  if (n * width <= kSmall) {
    return {1, static_cast<std::size_t>((group.size - 1) * n * width),
            [=](std::int64_t, std::byte* scratch) { return small_all_reduce(group, x, op, scratch); }};
  }
  const std::int64_t step = std::min(n, exchange_step(group) * group.size / width);
  const std::int64_t part = Cut(step, group.size).step;
  return {pieces_of(n, step), static_cast<std::size_t>((group.size - 1) * part * width),
          [=](std::int64_t index, std::byte* scratch) {
            const std::int64_t first = index * step;
            return large_all_reduce(group, range(x, first, std::min(step, n - first)), op, scratch);
          }};
}

Plan plan_reduce_scatter(RankAndSize group, const Tensor& out, const Tensor& x, ReduceOp op) {
  const std::int64_t n = out.count(), width = static_cast<std::int64_t>(size_of(x.dtype));
  if (n == 0) return {};
  const std::int64_t step = std::min(n, exchange_step(group) / width);
  return {pieces_of(n, step), static_cast<std::size_t>((group.size - 1) * step * width),
          [=](std::int64_t index, std::byte* scratch) {
            Piece piece;
            const std::int64_t first = index * step, count = std::min(step, n - first);
            const auto at = [&](const Tensor& t, std::int64_t i) { return bytes_of(t) + i * width; };
            const Sum sum{group, x.dtype, op, at(out, first), at(x, group.rank * n + first), scratch, count};
            sum.receive(piece.first);
            for_each_peer(group, [&](int peer) {
              add(piece.first, Direction::send, peer, at(x, peer * n + first), sum.bytes());
            });
            piece.between = sum;
            return piece;
          }};
}

Plan plan_all_gather(RankAndSize group, const Tensor& out, const Tensor& x) {
  const auto bytes = static_cast<std::int64_t>(x.bytes());
  return exchange(
      group, bytes, [=](int) { return bytes_of(x); }, [=](int peer) { return bytes_of(out) + peer * bytes; });
}

Plan plan_all_to_all(RankAndSize group, const Tensor& out, const Tensor& x) {
  const auto bytes = static_cast<std::int64_t>(x.bytes()) / group.size;
  return exchange(
      group, bytes, [=](int peer) { return bytes_of(x) + peer * bytes; },
      [=](int peer) { return bytes_of(out) + peer * bytes; });
}

// Large tensors: part r is sent from the root to rank r, and from there to all others. So the root sends the
// tensor once, not once per rank.
Plan plan_broadcast(RankAndSize group, const Tensor& x, int root) {
  const auto bytes = static_cast<std::int64_t>(x.bytes());
  if (bytes == 0) return {};
  if (group.size == 2 || bytes <= kLeastMessage) {
    return {pieces_of(bytes, kPiece), 0, [=](std::int64_t index, std::byte*) {
              Piece piece;
              const std::int64_t first = index * kPiece, n = std::min(kPiece, bytes - first);
              if (group.rank != root) add(piece.first, Direction::receive, root, bytes_of(x) + first, n);
              for_each_peer(group, [&](int peer) {
                if (group.rank == root) add(piece.first, Direction::send, peer, bytes_of(x) + first, n);
              });
              return piece;
            }};
  }
  const std::int64_t step = exchange_step(group) * group.size;
  return {pieces_of(bytes, step), 0, [=](std::int64_t index, std::byte*) {
            Piece piece;
            const std::int64_t first = index * step;
            const Cut cut(std::min(step, bytes - first), group.size);
            const auto part = [&](std::vector<Message>& messages, Direction direction, int peer, int rank) {
              add(messages, direction, peer, bytes_of(x) + first + cut.first(rank), cut.count(rank));
            };
            if (group.rank != root) part(piece.first, Direction::receive, root, group.rank);
            for_each_peer(group, [&](int peer) {
              if (group.rank == root) part(piece.first, Direction::send, peer, peer);
              if (group.rank != root) part(piece.second, Direction::receive, peer, peer);
              if (peer != root) part(piece.second, Direction::send, peer, group.rank);
            });
            return piece;
          }};
}

Plan plan_message(Message::Direction direction, const Tensor& x, int peer) {
  const auto bytes = static_cast<std::int64_t>(x.bytes());
  return {pieces_of(bytes, kPiece), 0, [=](std::int64_t index, std::byte*) {
            Piece piece;
            const std::int64_t first = index * kPiece;
            add(piece.first, direction, peer, bytes_of(x) + first, std::min(kPiece, bytes - first));
            return piece;
          }};
}

Plan plan_barrier(RankAndSize group) {
  Piece piece;
  for_each_peer(group, [&](int peer) {
    piece.first.push_back({Direction::receive, peer, nullptr, 0});
    piece.first.push_back({Direction::send, peer, nullptr, 0});
  });
  return {1, 0, [piece = std::move(piece)](std::int64_t, std::byte*) { return piece; }};
}

}  // namespace shoal::messages
