// Cryptographic digests of files, in hexadecimal. They throw UserError when the file cannot be read.
#pragma once

#include <filesystem>
#include <string>

namespace shoal {

std::string sha256_of_file(const std::filesystem::path& path);
// Git's name of a file's contents: SHA-1 of "blob SIZE", a zero byte and the bytes.
std::string git_digest_of_file(const std::filesystem::path& path);

}  // namespace shoal
