// The start of a run: from scratch, from other parameters, or from where it stopped.
#pragma once

#include <filesystem>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>

#include "checkpoint/manifest.h"
#include "comm/communicator.h"
#include "config/config.h"
#include "core/error.h"
#include "data/mixture.h"

namespace shoal {

// Rank 0, which has the run's lock: settles init.from = "auto" to "resume" where the run's folder holds a
// checkpoint, and to the rest of its value ("scratch" where there is none) where it does not. Throws
// UserError when a run that begins anew would meet an earlier one.
std::string settle_start(const Config& config);

// Renames the measurements of an attempt that ended before its first checkpoint, if there are any.
void put_measurements_aside(const std::filesystem::path& run);

// The checkpoint, or another program's weights, that a run starts from, if any: what rank 0 finds.
// Throws UserError when there is none to resume from, it is another run's, or the weights are damaged or of
// another model.
// `counted`: counts_in_steps() of the config as it was given.
std::optional<std::filesystem::path> find_start(const Config& config, const Mixture& data, bool counted,
                                                Communicator& ranks);

// Whether batches of another size would be of other data, or other places in a schedule: epochs and lengths
// in tokens are counted in steps. `given`: before lengths in tokens became lengths in steps.
bool counts_in_steps(const Config& given);

// Refuses to resume with another model, data or optimizer, and where steps are `counted` with other batches,
// naming every key that differs; says which other keys changed.
void check_resume(const Config& saved, const Config& now, bool counted, const std::string& checkpoint);

// Sizes and checksums of the train and val split, as a checkpoint holds them.
nlohmann::json describe_contents(const Mixture& data);
// Whether losses of a checkpoint are of the validation data that `now` describes, in the same mixture.
// Contents that a checkpoint does not describe, as older ones do not, count as the same.
bool has_same_validation_data(const CheckpointInfo& saved, const Config& config, const nlohmann::json& now);
// Refuses to resume with other data than `saved` describes, unless init.other_data allows it. Splits that it
// does not describe, as older checkpoints do not, are not checked.
void check_contents(const nlohmann::json& saved, const Config& before, const Config& now, const Mixture& data,
                    const std::string& checkpoint);

// The same error for a checkpoint of a run that cannot be resumed from, with the newest whole one that is
// older, if any, and the command to go on from it.
UserError with_older_checkpoint(const UserError& error, const std::filesystem::path& checkpoint);

}  // namespace shoal
