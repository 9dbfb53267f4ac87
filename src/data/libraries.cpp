#include "data/libraries.h"

#include <archive.h>
#include <curl/curl.h>
#include <fmt/format.h>
#include <openssl/crypto.h>
#include <utf8proc.h>
#include <xxhash.h>
#include <zlib.h>

namespace shoal {

std::vector<Library> data_libraries() {
  const std::string archive = archive_version_string();  // "libarchive 3.6.2"
  const unsigned hash = XXH_versionNumber();
  return {{"libarchive", archive.substr(archive.find(' ') + 1), "text out of .tar, .zip, .bz2, .xz, .zst"},
          {"zlib", zlibVersion(), "text out of .gz"},
          {"libcurl", curl_version_info(CURLVERSION_NOW)->version, "downloads"},
          {"OpenSSL", OpenSSL_version(OPENSSL_VERSION_STRING), "SHA-256 of downloads"},
          {"utf8proc", utf8proc_version(), "Unicode: categories for GPT-2's tokenizer, widths on a terminal"},
          {"xxHash", fmt::format("{}.{}.{}", hash / 10000, hash / 100 % 100, hash % 100),
           "checksums of data and checkpoints"}};
}

}  // namespace shoal
