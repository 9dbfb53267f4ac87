#include "train/remedies.h"

#include <fmt/format.h>

#include <string>

#include "checkpoint/run_lock.h"
#include "core/error.h"
#include "core/text.h"
#include "data/errors.h"
#include "ops/errors.h"
#include "parallel/backend_ranks.h"

namespace shoal {
namespace {

namespace fs = std::filesystem;

// How to make a dataset of the text in `from`, a file or a folder, beside it.
std::string prepare_beside(const fs::path& from, const fs::path& name) {
  const auto out = shell_word(name.string() + "-tokens");
  return fmt::format(
      "if it is text, prepare it with `shoal prepare text {} --out {}` and train with data.dir={}",
      shell_word(from.string()), out, out);
}

std::string remedy(const DataError& error) {
  using Fault = DataError::Fault;
  auto folder = error.path.lexically_normal();
  if (!folder.has_filename()) folder = folder.parent_path();
  switch (error.fault) {
    case Fault::missing:
      return fmt::format(
          "make it with `shoal prepare text FILE ... --out {}` (or another dataset, see `shoal prepare "
          "--help`; the first lines of a config often have the command), or set data.dir",
          shell_word(error.path.string()));
    case Fault::file:
      return "data.dir names a folder; " + prepare_beside(folder, folder.parent_path() / folder.stem());
    case Fault::empty:
      return fmt::format("make a dataset in it with `shoal prepare text FILE ... --out {}`",
                         shell_word(folder.string()));
    case Fault::no_dataset:
      return prepare_beside(folder, folder);
    case Fault::vocabulary_file:
      return "to train on the ids alone, move the file away and set model.vocab_size";
    case Fault::large_id:
      return "the file belongs to another tokenizer, or model.vocab_size is too small";
  }
  return "";
}

}  // namespace

void rethrow_with_remedy() {
  try {
    throw;
  } catch (const DataError& error) {
    fail_user("{}; {}", error.what(), remedy(error));
  } catch (const RunInUse& error) {
    fail_user("{}; stop it, or choose another run.name or run.dir", error.what());
  } catch (const CudaUnavailable& error) {
    fail_user("train.backend = \"cuda\" cannot be used: {}; \"cpu\" reads and writes the same checkpoints",
              error.what());
  } catch (const NcclUnavailable& error) {
    fail_user(
        "parallel.gpu_exchange = \"nccl\" cannot be used: {}; \"auto\" then goes through the host's memory",
        error.what());
  } catch (const OutOfDeviceMemory& error) {
    fail("{}; a smaller train.micro_batch, train.recompute or parallel.offload needs less", error.what());
  } catch (const OutOfPinnedMemory& error) {
    fail_user(
        "{}; where that is for parallel.offload, shard it over more ranks (parallel.zero), or set "
        "parallel.offload = \"disk\", which pins little",
        error.what());
  }
}

}  // namespace shoal
