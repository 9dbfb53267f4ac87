#include "ops/cuda/emulated/symbols.h"

#include <cxxabi.h>
#include <dlfcn.h>
#include <elf.h>

#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <iterator>
#include <map>
#include <memory>
#include <string_view>
#include <vector>

namespace shoal::emulated {
namespace {

struct Module {
  std::uintptr_t base = 0;
  std::map<std::uintptr_t, std::string> functions;  // by their offsets
  std::vector<StaticArray> arrays;
};

// Kernels have no external linkage, so the loader does not know them, but the file does.
Module read_module() {
  Module module;
  Dl_info info = {};
  if (dladdr(reinterpret_cast<const void*>(&mangled_name), &info) == 0) return module;
  module.base = reinterpret_cast<std::uintptr_t>(info.dli_fbase);
  std::ifstream file(info.dli_fname, std::ios::binary);
  const std::vector<char> bytes{std::istreambuf_iterator<char>(file), {}};
  const auto read = [&]<typename T>(std::size_t at) {
    T value{};
    if (at + sizeof value <= bytes.size()) std::memcpy(&value, bytes.data() + at, sizeof value);
    return value;
  };
  const auto header = read.operator()<Elf64_Ehdr>(0);
  const auto section = [&](std::size_t index) {
    return read.operator()<Elf64_Shdr>(header.e_shoff + index * sizeof(Elf64_Shdr));
  };
  for (std::size_t s = 0; s < header.e_shnum; ++s) {
    const auto symbols = section(s);
    if (symbols.sh_type != SHT_SYMTAB) continue;
    const auto names = section(symbols.sh_link);
    bool of_kernels = false;
    for (std::size_t at = 0; at < symbols.sh_size; at += sizeof(Elf64_Sym)) {
      const auto symbol = read.operator()<Elf64_Sym>(symbols.sh_offset + at);
      const std::string name = bytes.data() + names.sh_offset + symbol.st_name;
      switch (ELF64_ST_TYPE(symbol.st_info)) {
        case STT_FILE:  // of the local symbols that follow
          of_kernels = name.ends_with(".cu");
          break;
        case STT_FUNC:
          if (symbol.st_value != 0) module.functions[symbol.st_value] = name;
          break;
        case STT_OBJECT:  // _ZZ: a variable of a function
          if (ELF64_ST_BIND(symbol.st_info) == STB_LOCAL && name.starts_with("_ZZ") &&
              (of_kernels || name.find("_kernel") != std::string::npos) &&
              section(symbol.st_shndx).sh_type == SHT_NOBITS) {
            module.arrays.push_back(
                {reinterpret_cast<const std::byte*>(module.base + symbol.st_value), symbol.st_size});
          }
          break;
      }
    }
  }
  return module;
}

const Module& module() {
  static const Module read = read_module();
  return read;
}

}  // namespace

std::string mangled_name(const void* function) {
  const auto found = module().functions.find(code_offset(function));
  return found == module().functions.end() ? "" : found->second;
}

std::uintptr_t code_offset(const void* code) {
  return reinterpret_cast<std::uintptr_t>(code) - module().base;
}

std::vector<StaticArray> static_arrays() { return module().arrays; }

std::string readable_name(const void* function) {
  const std::string mangled = mangled_name(function);
  if (mangled.empty()) return "that is not known";
  int status = 0;
  const std::unique_ptr<char, void (*)(void*)> text(
      abi::__cxa_demangle(mangled.c_str(), nullptr, nullptr, &status), std::free);
  std::string name = text ? text.get() : mangled;
  for (const std::string_view space : {"(anonymous namespace)::", "shoal::cuda::", "shoal::", "void "}) {
    for (auto at = name.find(space); at != std::string::npos; at = name.find(space))
      name.erase(at, space.size());
  }
  int depth = 0;
  for (std::size_t i = 0; i < name.size(); ++i) {
    depth += name[i] == '<' ? 1 : name[i] == '>' ? -1 : 0;
    if (name[i] == '(' && depth == 0) return name.substr(0, i);
  }
  return name;
}

}  // namespace shoal::emulated
