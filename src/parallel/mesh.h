// The ranks of a run as a mesh: workers x pipeline x data x tensor. Neighbouring ranks are of one tensor
// group, which talks most, then come the data ranks, then the stages of the pipeline. A worker is all of
// these, with a model of its own; only decentralised training has more than one.
#pragma once

#include <memory>
#include <string>

#include "comm/communicator.h"

namespace shoal {

struct MeshShape {
  int pipeline = 1, data = 1, tensor = 1;
  int workers = 1;
  int ranks_of_worker() const { return pipeline * data * tensor; }
  int ranks() const { return workers * ranks_of_worker(); }
  bool operator==(const MeshShape&) const = default;
};

// A rank's coordinates.
struct MeshCoordinate {
  int pipeline = 0, data = 0, tensor = 0;
  int worker = 0;
  bool operator==(const MeshCoordinate&) const = default;
};
MeshCoordinate coordinate_of(const MeshShape& shape, int rank);
// "pipeline 1, data 0, tensor 3"; where there are workers, "worker 2, pipeline 1, ..."
std::string to_string(const MeshCoordinate& coordinate, const MeshShape& shape);

// One rank's groups. They have the members that differ in the named coordinate alone, in its order.
class Mesh {
 public:
  // Collective over `world`, which must outlive the mesh. Throws Error when the shape has another number of
  // ranks.
  Mesh(Communicator& world, const MeshShape& shape);
  // Data ranks alone.
  explicit Mesh(Communicator& world) : Mesh(world, {.data = world.size()}) {}

  const MeshShape& shape() const { return shape_; }
  const MeshCoordinate& coordinate() const { return coordinate_; }

  Communicator& world() { return world_; }
  Communicator& worker() { return *worker_; }  // all ranks of this one's worker
  Communicator& peers() { return *peers_; }    // the ranks at the same coordinates of every worker
  Communicator& data() { return *data_; }
  Communicator& tensor() { return *tensor_; }
  // The stages, twice: activations and gradients go their ways at the same time, each in its own order.
  Communicator& activations() { return *activations_; }
  Communicator& gradients() { return *gradients_; }
  // The ranks that hold one model together: all with the same worker and data coordinate.
  Communicator& model() { return *model_; }
  // The first and the last stage, which share the embedding's matrix; a stage between them is alone.
  Communicator& ends() { return *ends_; }

 private:
  Communicator& world_;
  MeshShape shape_;
  MeshCoordinate coordinate_;
  std::unique_ptr<Communicator> worker_, peers_, data_, tensor_, activations_, gradients_, model_, ends_;
};

}  // namespace shoal
