#include "data/file_digest.h"

#include <fmt/ranges.h>
#include <openssl/evp.h>

#include <array>
#include <memory>
#include <string_view>
#include <vector>

#include "core/error.h"
#include "data/byte_source.h"

namespace shoal {
namespace {

std::string digest_of_file(const EVP_MD* kind, std::string_view prefix, const std::filesystem::path& path) {
  FileSource source(path);
  const std::unique_ptr<EVP_MD_CTX, void (*)(EVP_MD_CTX*)> digest(EVP_MD_CTX_new(), EVP_MD_CTX_free);
  std::array<unsigned char, EVP_MAX_MD_SIZE> bytes;
  unsigned length = 0;
  bool good = digest && EVP_DigestInit_ex(digest.get(), kind, nullptr) == 1 &&
              EVP_DigestUpdate(digest.get(), prefix.data(), prefix.size()) == 1;
  std::vector<char> buffer(1 << 18);
  while (const auto count = source.read(buffer.data(), buffer.size())) {
    good = good && EVP_DigestUpdate(digest.get(), buffer.data(), count) == 1;
  }
  good = good && EVP_DigestFinal_ex(digest.get(), bytes.data(), &length) == 1;
  if (!good) fail("OpenSSL cannot compute a digest of {}", path.string());
  return fmt::format("{:02x}", fmt::join(bytes.begin(), bytes.begin() + length, ""));
}

}  // namespace

std::string sha256_of_file(const std::filesystem::path& path) {
  return digest_of_file(EVP_sha256(), "", path);
}

std::string git_digest_of_file(const std::filesystem::path& path) {
  std::error_code missing;
  const auto size = std::filesystem::file_size(path, missing);
  if (missing) fail_user("{}: cannot be read: {}", path.string(), missing.message());
  return digest_of_file(EVP_sha1(), fmt::format("blob {}", size) + '\0', path);
}

}  // namespace shoal
