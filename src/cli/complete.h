// The words that may stand at the end of a command line, for the completion of shells (completion.cpp).
#pragma once

#include <string>
#include <vector>

#include "cli/command_table.h"

namespace shoal::cli {

// The hidden first argument of the program for which main prints candidates.
inline constexpr const char* kCompleteWord = "__complete";

struct Candidate {
  std::string word, meaning;
};
struct Completion {
  std::vector<Candidate> candidates;
  bool files = false;  // names of files may stand there too
};

// `words` are those after the program's name; the last one, which may be empty, is completed. Candidates
// begin with it. One that ends in '=', '.' or ':' is the beginning of a word.
Completion complete(const CommandTable& program, const std::vector<std::string>& words);

// A candidate per line, "WORD<tab>MEANING", and ":files" for names of files.
std::string completion_lines(const Completion& completion);

}  // namespace shoal::cli
