// Models of the Hugging Face hub, kept in the hub's own cache, where huggingface_hub and transformers find
// them too:
//
//   models--ORG--NAME/blobs/ETAG                  the files' contents
//                     snapshots/COMMIT/FILE       links to them
//                     refs/main                   the commit
#pragma once

#include <filesystem>
#include <optional>
#include <string>
#include <string_view>

namespace shoal {

struct HubOptions {
  std::filesystem::path cache;
  std::string endpoint;
  std::string token = {};  // sent to the endpoint alone; may be empty
  bool offline = false;    // the cache alone
  // From HF_HUB_CACHE, HF_HOME (else ~/.cache/huggingface), HF_ENDPOINT, HF_TOKEN and HF_HUB_OFFLINE, and the
  // token that `hf auth login` has stored. A ~ at the beginning of a path is the user's home.
  static HubOptions from_environment();
};

// Whether the text may name a model of the hub: "gpt2", "openai-community/gpt2".
bool is_hub_name(std::string_view text);

// The folder of a model that the cache has whole.
std::optional<std::filesystem::path> cached_hub_folder(std::string_view name, const HubOptions& options);

// The folder with the model's config, tokenizer and weights: the cache's, or else they are downloaded first,
// with progress; a download that breaks is resumed by the next call. Every file is verified by the checksum
// that the hub gives, and the folder is complete or absent. Other processes that want the same model wait.
// Throws UserError when there is no such model, it has no weights that Shoal reads, it may not be read with
// this token, or the hub cannot be reached.
std::filesystem::path hub_folder(std::string_view name, const HubOptions& options);

// Fetches the tokenizer of a snapshot in the cache, which programs that want the weights alone leave without
// it. Does nothing for other folders, where the hub has none, and offline; warns where it cannot be had.
void complete_hub_tokenizer(const std::filesystem::path& folder, const HubOptions& options);

}  // namespace shoal
