// Files of torch.save, PyTorch 1.6 and later: a zip archive of a pickle and of one entry per storage, the raw
// little-endian elements that tensors are views of. No code of the pickle is executed (core/pickle.h).
#pragma once

#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

#include "checkpoint/tensor_file.h"
#include "checkpoint/zip_file.h"
#include "core/file.h"
#include "core/pickle.h"

namespace shoal {

// Whether `bytes` begin as a file of torch.save does, of the old format too.
bool looks_like_torch(std::span<const std::byte> bytes);

class TorchFile : public TensorFile {
 public:
  // The tensors are those of a state dict: the saved value or, with `key`, the saved dictionary's value for
  // it. Throws UserError, naming the file, the fault and what to do, when the file is damaged, is of the old
  // format, was saved on a big-endian machine, when its pickle needs more of Python than tensors do, or when
  // a tensor is not contiguous.
  explicit TorchFile(const std::filesystem::path& path, std::string_view key = {});

  const std::filesystem::path& path() const override { return file_.path(); }
  const std::vector<StoredTensor>& tensors() const override { return tensors_; }
  const Pickle& pickle() const { return pickle_; }

 private:
  StoredTensor read_tensor(const PickleValue& name, const PickleValue& value) const;

  MappedFile file_;
  std::vector<ZipEntry> entries_;
  std::string root_;  // the folder of the archive's entries, "archive/"
  Pickle pickle_;
  std::vector<StoredTensor> tensors_;
};

}  // namespace shoal
