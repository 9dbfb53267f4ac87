#include "comm/messages/plan.h"

#include <algorithm>
#include <cstring>

#include "comm/reduce.h"

namespace shoal::messages {
namespace {

using Way = Message::Way;

// A piece is as large as the caches like, so that its sum reads what has just arrived; its messages are not
// so small that their number costs more than their bytes.
constexpr std::int64_t kPiece = 1 << 20, kLeastMessage = 16 << 10;
// Up to here everybody sends everything to everybody: one way instead of two.
constexpr std::int64_t kSmall = 4 << 10;

std::int64_t pieces_of(std::int64_t count, std::int64_t step) { return (count + step - 1) / step; }
std::byte* bytes_of(const Tensor& x) { return x.as<std::byte>(); }

// Ranks start with different peers, so that they do not all send to the same one.
template <typename Do>
void for_each_peer(Seat seat, const Do& act) {
  for (int i = 1; i < seat.size; ++i) act((seat.rank + i) % seat.size);
}

void add(std::vector<Message>& messages, Way way, int peer, std::byte* data, std::int64_t bytes) {
  if (bytes > 0) messages.push_back({way, peer, data, bytes});
}

// Bytes per peer of a piece that goes to and comes from all of them.
std::int64_t exchange_step(Seat seat) { return std::max(kPiece / seat.size, kLeastMessage); }

// `bytes` go from from(peer) to every peer, and come from it to to(peer); also to and from oneself.
template <typename From, typename To>
Plan exchange(Seat seat, std::int64_t bytes, const From& from, const To& to) {
  const std::int64_t step = exchange_step(seat);
  return {pieces_of(bytes, step), 0, [=](std::int64_t index, std::byte*) {
            Piece piece;
            const std::int64_t first = index * step, n = std::min(step, bytes - first);
            for_each_peer(seat, [&](int peer) {
              add(piece.first, Way::receive, peer, to(peer) + first, n);
              add(piece.first, Way::send, peer, from(peer) + first, n);
            });
            const std::byte* source = from(seat.rank) + first;
            std::byte* target = to(seat.rank) + first;
            piece.between = [=] {
              if (target != source) std::memcpy(target, source, static_cast<std::size_t>(n));
            };
            return piece;
          }};
}

// [0, n) elements cut into one part per rank, at borders that vectors like.
struct Cut {
  std::int64_t n, step;
  Cut(std::int64_t elements, int size) : n(elements), step((pieces_of(elements, size) + 15) / 16 * 16) {}
  std::int64_t first(int rank) const { return std::min(n, rank * step); }
  std::int64_t count(int rank) const { return std::min(n, (rank + 1) * step) - first(rank); }
};

// Sums `count` elements into `out`: of every peer, which come into scratch, and the own ones at `mine`.
struct Sum {
  Seat seat;
  DType dtype;
  ReduceOp op;
  std::byte* out;
  std::byte* mine;
  std::byte* scratch;
  std::int64_t count;

  std::int64_t bytes() const { return count * static_cast<std::int64_t>(size_of(dtype)); }
  // Where rank's elements are.
  std::byte* source(int rank) const {
    if (rank == seat.rank) return mine;
    return scratch + (rank < seat.rank ? rank : rank - 1) * bytes();
  }
  void receive(std::vector<Message>& messages) const {
    for_each_peer(seat, [&](int peer) { add(messages, Way::receive, peer, source(peer), bytes()); });
  }
  void operator()() const {
    std::vector<const std::byte*> sources;
    for (int rank = 0; rank < seat.size; ++rank) sources.push_back(source(rank));
    reduce(std::span(&out, 1), 0, sources, 0, count, dtype, op);
  }
};

Piece small_all_reduce(Seat seat, const Tensor& x, ReduceOp op, std::byte* scratch) {
  Piece piece;
  const Sum sum{seat, x.dtype, op, bytes_of(x), bytes_of(x), scratch, x.count()};
  sum.receive(piece.first);
  for_each_peer(seat, [&](int peer) { add(piece.first, Way::send, peer, bytes_of(x), sum.bytes()); });
  piece.between = sum;
  return piece;
}

// x: the elements of this piece. Part r goes to rank r, is summed there, and comes back.
Piece large_all_reduce(Seat seat, const Tensor& x, ReduceOp op, std::byte* scratch) {
  Piece piece;
  const Cut cut(x.count(), seat.size);
  const auto width = static_cast<std::int64_t>(size_of(x.dtype));
  const auto part = [&](int rank) { return bytes_of(x) + cut.first(rank) * width; };
  const Sum sum{seat, x.dtype, op, part(seat.rank), part(seat.rank), scratch, cut.count(seat.rank)};
  sum.receive(piece.first);
  for_each_peer(seat, [&](int peer) {
    const std::int64_t theirs = cut.count(peer) * width;
    add(piece.first, Way::send, peer, part(peer), theirs);
    add(piece.second, Way::receive, peer, part(peer), theirs);
    add(piece.second, Way::send, peer, part(seat.rank), sum.bytes());
  });
  piece.between = sum;
  return piece;
}

// Elements first to first + n of x.
Tensor range(const Tensor& x, std::int64_t first, std::int64_t n) {
  return {bytes_of(x) + first * static_cast<std::int64_t>(size_of(x.dtype)), x.dtype, {n}};
}

}  // namespace

Plan plan_all_reduce(Seat seat, const Tensor& x, ReduceOp op) {
  const std::int64_t n = x.count(), width = static_cast<std::int64_t>(size_of(x.dtype));
  if (n == 0) return {};
  if (n * width <= kSmall) {
    return {1, static_cast<std::size_t>((seat.size - 1) * n * width),
            [=](std::int64_t, std::byte* scratch) { return small_all_reduce(seat, x, op, scratch); }};
  }
  const std::int64_t step = std::min(n, exchange_step(seat) * seat.size / width);
  const std::int64_t part = Cut(step, seat.size).step;
  return {pieces_of(n, step), static_cast<std::size_t>((seat.size - 1) * part * width),
          [=](std::int64_t index, std::byte* scratch) {
            const std::int64_t first = index * step;
            return large_all_reduce(seat, range(x, first, std::min(step, n - first)), op, scratch);
          }};
}

Plan plan_reduce_scatter(Seat seat, const Tensor& out, const Tensor& x, ReduceOp op) {
  const std::int64_t n = out.count(), width = static_cast<std::int64_t>(size_of(x.dtype));
  if (n == 0) return {};
  const std::int64_t step = std::min(n, exchange_step(seat) / width);
  return {pieces_of(n, step), static_cast<std::size_t>((seat.size - 1) * step * width),
          [=](std::int64_t index, std::byte* scratch) {
            Piece piece;
            const std::int64_t first = index * step, count = std::min(step, n - first);
            const auto at = [&](const Tensor& t, std::int64_t i) { return bytes_of(t) + i * width; };
            const Sum sum{seat, x.dtype, op, at(out, first), at(x, seat.rank * n + first), scratch, count};
            sum.receive(piece.first);
            for_each_peer(seat, [&](int peer) {
              add(piece.first, Way::send, peer, at(x, peer * n + first), sum.bytes());
            });
            piece.between = sum;
            return piece;
          }};
}

Plan plan_all_gather(Seat seat, const Tensor& out, const Tensor& x) {
  const auto bytes = static_cast<std::int64_t>(x.bytes());
  return exchange(
      seat, bytes, [=](int) { return bytes_of(x); }, [=](int peer) { return bytes_of(out) + peer * bytes; });
}

Plan plan_all_to_all(Seat seat, const Tensor& out, const Tensor& x) {
  const auto bytes = static_cast<std::int64_t>(x.bytes()) / seat.size;
  return exchange(
      seat, bytes, [=](int peer) { return bytes_of(x) + peer * bytes; },
      [=](int peer) { return bytes_of(out) + peer * bytes; });
}

// Part r goes from the root to rank r, and from there to everybody: the root sends everything once, not once
// for each rank.
Plan plan_broadcast(Seat seat, const Tensor& x, int root) {
  const auto bytes = static_cast<std::int64_t>(x.bytes());
  if (bytes == 0) return {};
  if (seat.size == 2 || bytes <= kLeastMessage) {
    return {pieces_of(bytes, kPiece), 0, [=](std::int64_t index, std::byte*) {
              Piece piece;
              const std::int64_t first = index * kPiece, n = std::min(kPiece, bytes - first);
              if (seat.rank != root) add(piece.first, Way::receive, root, bytes_of(x) + first, n);
              for_each_peer(seat, [&](int peer) {
                if (seat.rank == root) add(piece.first, Way::send, peer, bytes_of(x) + first, n);
              });
              return piece;
            }};
  }
  const std::int64_t step = exchange_step(seat) * seat.size;
  return {pieces_of(bytes, step), 0, [=](std::int64_t index, std::byte*) {
            Piece piece;
            const std::int64_t first = index * step;
            const Cut cut(std::min(step, bytes - first), seat.size);
            const auto part = [&](std::vector<Message>& messages, Way way, int peer, int rank) {
              add(messages, way, peer, bytes_of(x) + first + cut.first(rank), cut.count(rank));
            };
            if (seat.rank != root) part(piece.first, Way::receive, root, seat.rank);
            for_each_peer(seat, [&](int peer) {
              if (seat.rank == root) part(piece.first, Way::send, peer, peer);
              if (seat.rank != root) part(piece.second, Way::receive, peer, peer);
              if (peer != root) part(piece.second, Way::send, peer, seat.rank);
            });
            return piece;
          }};
}

Plan plan_message(Message::Way way, const Tensor& x, int peer) {
  const auto bytes = static_cast<std::int64_t>(x.bytes());
  return {pieces_of(bytes, kPiece), 0, [=](std::int64_t index, std::byte*) {
            Piece piece;
            const std::int64_t first = index * kPiece;
            add(piece.first, way, peer, bytes_of(x) + first, std::min(kPiece, bytes - first));
            return piece;
          }};
}

Plan plan_barrier(Seat seat) {
  Piece piece;
  for_each_peer(seat, [&](int peer) {
    piece.first.push_back({Way::receive, peer, nullptr, 0});
    piece.first.push_back({Way::send, peer, nullptr, 0});
  });
  return {1, 0, [piece = std::move(piece)](std::int64_t, std::byte*) { return piece; }};
}

}  // namespace shoal::messages
