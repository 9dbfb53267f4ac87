#include "comm/messages/piece_scheduler.h"

#include <algorithm>
#include <limits>

namespace shoal::messages {
namespace {

constexpr std::size_t kWindow = 4;  // running pieces per queue
// Whether the operation is large enough to occupy a slow network.
bool is_large(const PendingOperation& operation) {
  return operation.kind == OperationKind::collective && operation.bytes > 64 << 10;
}

// A tag encodes group, piece and stage. Pieces that run at the same time need different tags. 64 are enough:
// ranks are at most one window apart, and messages with the same tag stay in order.
constexpr int kPieceTags = 64, kStages = 3, kTagsPerGroup = kPieceTags * kStages;

}  // namespace

PieceScheduler::PieceScheduler(Transport& transport)
    : transport_(transport),
      most_groups_(
          static_cast<int>((std::min<std::int64_t>(transport.largest_tag(), 1 << 30) + 1) / kTagsPerGroup)) {}

// All messages between two ranks in a group have the same tag, so they stay in order.
PieceTags PieceScheduler::next_tags(const PendingOperation& operation) {
  const int first = operation.group->id * kTagsPerGroup;
  if (operation.kind != OperationKind::collective) return {first + 2 * kPieceTags, first + 2 * kPieceTags};
  const int piece = next_tag_[operation.group->id]++ % kPieceTags;
  return {first + piece, first + kPieceTags + piece};
}

void PieceScheduler::add(std::shared_ptr<PendingOperation> operation) {
  operation->order = next_order_++;
  queues_[{operation->group->id, operation->kind, operation->peer}].operations.push_back(
      std::move(operation));
}

// The order of the oldest large collective; the maximum where there is none.
std::int64_t PieceScheduler::Queue::oldest_large() const {
  for (const auto& piece : active) {
    if (is_large(*piece.operation)) return piece.operation->order;
  }
  for (const auto& operation : operations) {
    if (is_large(*operation)) return operation->order;
  }
  return std::numeric_limits<std::int64_t>::max();
}

bool PieceScheduler::advance() {
  bool moved = false;
  std::int64_t oldest = std::numeric_limits<std::int64_t>::max();
  for (const auto& [key, queue] : queues_) oldest = std::min(oldest, queue.oldest_large());
  for (auto queue = queues_.begin(); queue != queues_.end();) {
    moved |= start_pieces(queue->second, oldest);
    moved |= advance(queue->second.active);
    const bool empty = queue->second.operations.empty() && queue->second.active.empty();
    queue = empty ? queues_.erase(queue) : std::next(queue);
  }
  return moved;
}

// The oldest large collective is needed first, here or on a peer, so it gets most of the network. Every queue
// still makes progress, since ranks may start operations of different groups in different orders.
bool PieceScheduler::start_pieces(Queue& queue, std::int64_t oldest) {
  bool moved = false;
  while (!queue.operations.empty()) {
    const auto operation = queue.operations.front();
    const bool yields = is_large(*operation) && queue.oldest_large() > oldest && !operation->awaited;
    if (queue.active.size() >= (yields ? 1 : kWindow)) break;
    auto scratch = take_buffer(operation->plan.scratch);
    auto piece = operation->plan.piece(operation->started++, scratch.data.get());
    if (operation->started == operation->plan.pieces) queue.operations.pop_front();
    auto& active = queue.active.emplace_back(operation, std::move(scratch), transport_, next_tags(*operation),
                                             std::move(piece));
    active.transfer.start();  // in the list, which keeps its memory where this throws
    moved = true;
  }
  return moved;
}

bool PieceScheduler::advance(std::list<ActivePiece>& active) {
  bool moved = false;
  for (auto each = active.begin(); each != active.end();) {
    if (!each->transfer.advance()) {
      ++each;
      continue;
    }
    finish(*each);
    each = active.erase(each);
    moved = true;
  }
  return moved;
}

void PieceScheduler::finish(ActivePiece& active) {
  if (active.scratch.bytes > 0 && free_.size() < kWindow) free_.push_back(std::move(active.scratch));
  auto& operation = *active.operation;
  if (++operation.finished < operation.plan.pieces) return;
  operation.done.store(true, std::memory_order_release);
  ++done_;
}

PieceScheduler::Buffer PieceScheduler::take_buffer(std::size_t bytes) {
  if (bytes == 0) return {};
  const auto fits =
      std::find_if(free_.begin(), free_.end(), [&](const Buffer& s) { return s.bytes >= bytes; });
  if (fits == free_.end()) {
    if (free_.size() == kWindow) free_.pop_back();  // too small
    return {std::make_unique_for_overwrite<std::byte[]>(bytes), bytes};
  }
  auto scratch = std::move(*fits);
  free_.erase(fits);
  return scratch;
}

}  // namespace shoal::messages
