// The cuts of the units' flat buffers over the data ranks. A unit's buffer, padded to whole blocks, is cut
// into one piece per rank; a shard is as many neighbouring pieces as it has replicas. With ZeRO 0 there is
// one shard, the whole buffer; with full sharding a shard is a piece.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "comm/communicator.h"
#include "model/unit.h"

namespace shoal {

class ShardPlan {
 public:
  // Pieces end on multiples of this many elements. Sums of such blocks are the same however many pieces there
  // are, which is what makes the gradient's norm independent of the layout.
  static constexpr std::int64_t kBlock = 1024;

  // `rank` of `ranks` data ranks; neighbouring ranks hold different shards. Units that this rank's part of
  // the model does not have are empty. Throws UserError when `replicate` does not divide `ranks`.
  ShardPlan(std::vector<UnitSpec> units, int zero, int replicate, int rank, int ranks);

  // The same of the units that are trained; the others are empty.
  ShardPlan trained() const;
  // The plan of the gradients where the head's use of the embedding's matrix has a sum of its own: a further
  // unit at the end, of the embedding's shape.
  ShardPlan with_tied_use() const;

  const std::vector<UnitSpec>& units() const { return *units_; }
  int blocks() const { return blocks_; }
  int head() const { return blocks_ + 1; }
  int unit_count() const { return static_cast<int>(units_->size()); }
  const UnitSpec& unit(int u) const { return (*units_)[static_cast<std::size_t>(u)]; }

  int ranks() const { return ranks_; }
  int replicas() const { return replicas_; }  // of every shard
  int shards() const { return ranks_ / replicas_; }
  int shard() const { return rank_ % shards(); }  // this rank's
  int replica() const { return rank_ / shards(); }
  int piece() const { return piece_of(rank_); }

  // The groups that a rank talks to: all ranks in the order of their pieces, those that hold different shards
  // of one replica, and those that hold the same shard.
  Communicator::SplitKey in_pieces(int rank) const { return {0, piece_of(rank)}; }
  Communicator::SplitKey in_shards(int rank) const { return {rank / shards(), rank % shards()}; }
  Communicator::SplitKey in_replicas(int rank) const { return {rank % shards(), rank / shards()}; }

  // Elements of a unit's padded buffer, of a shard or a piece of it, and of all units.
  std::int64_t padded(int unit) const { return padded_[static_cast<std::size_t>(unit)]; }
  std::int64_t shard_size(int unit) const { return padded(unit) / shards(); }
  std::int64_t piece_size(int unit) const { return padded(unit) / ranks_; }
  std::int64_t total() const { return firsts_.back(); }
  // The begin of a unit when the padded buffers of all units are laid end to end.
  std::int64_t first(int unit) const { return firsts_[static_cast<std::size_t>(unit)]; }

  // This rank's part of a unit's padded buffer.
  ElementRange my_shard(int unit) const;
  ElementRange my_piece(int unit) const;

  // Calls f(unit) for each that this rank has.
  template <typename F>
  void for_units(F&& f) const {
    for (int u = 0; u < unit_count(); ++u) {
      if (padded(u) > 0) f(u);
    }
  }
  // Calls f(parameter, box of it, first element of the box, elements of the unit) for each whose elements are
  // in `range` of the unit, padding not counted.
  template <typename F>
  void for_boxes(int unit, const ElementRange& range, F&& f) const {
    for (const auto& parameter : this->unit(unit).parameters) {
      std::int64_t begin = parameter.offset;
      for (const auto& box : parameter.boxes()) {
        const auto here = range & ElementRange{begin, begin + box.shape.count()};
        if (here.count() > 0) f(parameter, box, here.begin - begin, here);
        begin += box.shape.count();
      }
    }
  }

 private:
  int piece_of(int rank) const { return rank % shards() * replicas_ + rank / shards(); }

  std::shared_ptr<const std::vector<UnitSpec>> units_;  // shared with trained()
  int blocks_;
  int rank_, ranks_, replicas_;
  std::vector<std::int64_t> padded_, firsts_;
};

// Elements [first, first + count) of a flat buffer; empty when the buffer is.
Tensor part_of(const Tensor& flat, std::int64_t first, std::int64_t count);

}  // namespace shoal
