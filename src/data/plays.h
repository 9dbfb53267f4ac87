// The synthetic dataset: little plays in rhymed couplets, written by a grammar of our own.
#pragma once

#include <memory>

#include "data/grammar.h"

namespace shoal {

// Every play has two characters, entered at its head, who speak in turns, and a few speeches of one couplet
// each. A model has to learn spelling; number (a noun and its verb); which kind of noun does what; the rhyme,
// which repeats a sound one line later and never the same word; whom a speaker may address; the pronoun in a
// stage direction; and who speaks next. ASCII only, and every text ends with an empty line.
std::unique_ptr<const Grammar> make_play_grammar();

}  // namespace shoal
