#include "parallel/mesh.h"

#include <fmt/format.h>

#include "core/error.h"

namespace shoal {

MeshPlace place_of(const MeshShape& shape, int rank) {
  return {.pipeline = rank / (shape.tensor * shape.data) % shape.pipeline,
          .data = rank / shape.tensor % shape.data,
          .tensor = rank % shape.tensor,
          .worker = rank / shape.ranks_of_worker()};
}

std::string to_string(const MeshPlace& place, const MeshShape& shape) {
  return fmt::format("{}pipeline {}, data {}, tensor {}",
                     shape.workers > 1 ? fmt::format("worker {}, ", place.worker) : "", place.pipeline,
                     place.data, place.tensor);
}

Mesh::Mesh(Communicator& world, const MeshShape& shape)
    : world_(world), shape_(shape), place_(place_of(shape, world.rank())) {
  if (shape.ranks() != world.size()) {
    fail("a mesh of {} x {} x {} x {} is not one of {} ranks", shape.workers, shape.pipeline, shape.data,
         shape.tensor, world.size());
  }
  worker_ = world.split([&](int rank) { return Communicator::SplitKey{place_of(shape, rank).worker, rank}; });
  peers_ = world.split([&](int rank) {
    return Communicator::SplitKey{rank % shape.ranks_of_worker(), rank};
  });
  // The colour of a group is what its members have in common.
  const auto split = [&](auto&& colour) {
    return worker_->split([&](int rank) {
      return Communicator::SplitKey{colour(place_of(shape, rank)), rank};
    });
  };
  const auto stages = [&](const MeshPlace& p) { return p.data * shape.tensor + p.tensor; };
  data_ = split([&](const MeshPlace& p) { return p.pipeline * shape.tensor + p.tensor; });
  tensor_ = split([&](const MeshPlace& p) { return p.pipeline * shape.data + p.data; });
  activations_ = split(stages);
  gradients_ = split(stages);
  if (shape.pipeline > 1) {  // as the stages are ordered there
    const int next = (place_.pipeline + 1) % shape.pipeline,
              previous = (place_.pipeline + shape.pipeline - 1) % shape.pipeline;
    activations_->expect_messages(next, previous);
    gradients_->expect_messages(previous, next);
  }
  model_ = split([&](const MeshPlace& p) { return p.data; });
  ends_ = split([&](const MeshPlace& p) {
    const bool between = p.pipeline > 0 && p.pipeline + 1 < shape.pipeline;
    return stages(p) + (between ? p.pipeline * shape.data * shape.tensor : 0);
  });
}

}  // namespace shoal
