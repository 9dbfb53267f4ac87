// The jobs under way, piece by piece. Used by the engine's thread alone.
#pragma once

#include <deque>
#include <list>
#include <map>
#include <memory>
#include <tuple>
#include <vector>

#include "comm/messages/job.h"
#include "comm/messages/transfer.h"

namespace shoal::messages {

class Traffic {
 public:
  explicit Traffic(Transport& transport);

  // How many groups a tag can tell apart.
  int most_groups() const { return most_groups_; }

  void add(std::shared_ptr<Job> job);
  // Goes on with everything; says whether anything did go on. Throws Error when MPI fails.
  bool advance();
  bool idle() const { return lanes_.empty(); }
  // Number of jobs that have been done so far.
  std::int64_t done() const { return done_; }

 private:
  struct Scratch {
    std::unique_ptr<std::byte[]> data;
    std::size_t bytes = 0;
  };
  struct Active {
    Active(std::shared_ptr<Job> job_, Scratch scratch_, Transport& transport, Tags tags, Piece piece)
        : job(std::move(job_)),
          scratch(std::move(scratch_)),
          transfer(transport, job->group->members, tags, std::move(piece)) {}
    std::shared_ptr<Job> job;
    Scratch scratch;
    Transfer transfer;
  };
  // Jobs that every rank begins in the same order: as many pieces at a time as bounds the scratch memory.
  // Lanes do not wait for each other, but where one has an older large collective, another has one piece of
  // its own under way until the rank waits for it.
  using LaneKey = std::tuple<int, JobKind, int>;  // group, kind, peer of messages
  struct Lane {
    std::deque<std::shared_ptr<Job>> jobs;  // with pieces to start
    std::list<Active> active;
    std::int64_t oldest_large() const;
  };

  bool start_pieces(Lane& lane, std::int64_t oldest);
  bool advance(std::list<Active>& active);
  void finish(Active& active);
  Tags next_tags(const Job& job);
  Scratch take_scratch(std::size_t bytes);

  Transport& transport_;
  int most_groups_;
  std::map<LaneKey, Lane> lanes_;  // those at work
  std::map<int, int> next_tag_;    // by group
  std::vector<Scratch> free_;
  std::int64_t done_ = 0, next_order_ = 0;
};

}  // namespace shoal::messages
