#include "comm/messages/traffic.h"

#include <algorithm>
#include <limits>

namespace shoal::messages {
namespace {

constexpr std::size_t kWindow = 4;  // pieces of a group under way
// Takes its time on a slow network.
bool is_large(const Job& job) { return job.kind == JobKind::collective && job.bytes > 64 << 10; }

// A tag is group, piece and stage. Pieces that are under way together need different tags; ranks are at most
// a window apart, and messages with the same tag keep their order.
constexpr int kPieceTags = 64, kStages = 3, kTagsPerGroup = kPieceTags * kStages;

}  // namespace

Traffic::Traffic(Transport& transport)
    : transport_(transport),
      most_groups_(
          static_cast<int>((std::min<std::int64_t>(transport.largest_tag(), 1 << 30) + 1) / kTagsPerGroup)) {}

// Messages between two ranks take one tag, and keep their order.
Tags Traffic::next_tags(const Job& job) {
  const int first = job.group->id * kTagsPerGroup;
  if (job.kind != JobKind::collective) return {first + 2 * kPieceTags, first + 2 * kPieceTags};
  const int piece = next_tag_[job.group->id]++ % kPieceTags;
  return {first + piece, first + kPieceTags + piece};
}

void Traffic::add(std::shared_ptr<Job> job) {
  job->order = next_order_++;
  lanes_[{job->group->id, job->kind, job->peer}].jobs.push_back(std::move(job));
}

// Of its large collectives; later than all where there is none.
std::int64_t Traffic::Lane::oldest_large() const {
  for (const auto& piece : active) {
    if (is_large(*piece.job)) return piece.job->order;
  }
  for (const auto& job : jobs) {
    if (is_large(*job)) return job->order;
  }
  return std::numeric_limits<std::int64_t>::max();
}

bool Traffic::advance() {
  bool moved = false;
  std::int64_t oldest = std::numeric_limits<std::int64_t>::max();
  for (const auto& [key, lane] : lanes_) oldest = std::min(oldest, lane.oldest_large());
  for (auto lane = lanes_.begin(); lane != lanes_.end();) {
    moved |= start_pieces(lane->second, oldest);
    moved |= advance(lane->second.active);
    const bool empty = lane->second.jobs.empty() && lane->second.active.empty();
    lane = empty ? lanes_.erase(lane) : std::next(lane);
  }
  return moved;
}

// What began first is needed first, here or by the peers, so it has the network nearly to itself; but no lane
// stands still, since ranks may begin jobs of different groups in different orders.
bool Traffic::start_pieces(Lane& lane, std::int64_t oldest) {
  bool moved = false;
  while (!lane.jobs.empty()) {
    const auto job = lane.jobs.front();
    const bool yields = is_large(*job) && lane.oldest_large() > oldest && !job->awaited;
    if (lane.active.size() >= (yields ? 1 : kWindow)) break;
    auto scratch = take_scratch(job->plan.scratch);
    auto piece = job->plan.piece(job->started++, scratch.data.get());
    if (job->started == job->plan.pieces) lane.jobs.pop_front();
    lane.active.emplace_back(job, std::move(scratch), transport_, next_tags(*job), std::move(piece));
    moved = true;
  }
  return moved;
}

bool Traffic::advance(std::list<Active>& active) {
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

void Traffic::finish(Active& active) {
  if (active.scratch.bytes > 0 && free_.size() < kWindow) free_.push_back(std::move(active.scratch));
  auto& job = *active.job;
  if (++job.finished < job.plan.pieces) return;
  job.done.store(true, std::memory_order_release);
  ++done_;
}

Traffic::Scratch Traffic::take_scratch(std::size_t bytes) {
  if (bytes == 0) return {};
  const auto fits =
      std::find_if(free_.begin(), free_.end(), [&](const Scratch& s) { return s.bytes >= bytes; });
  if (fits == free_.end()) {
    if (free_.size() == kWindow) free_.pop_back();  // too small
    return {std::make_unique_for_overwrite<std::byte[]>(bytes), bytes};
  }
  auto scratch = std::move(*fits);
  free_.erase(fits);
  return scratch;
}

}  // namespace shoal::messages
