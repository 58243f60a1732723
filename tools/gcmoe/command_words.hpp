// The words of a command line, judged before the parser takes them: it would take the next option
// for the value of one that has none, an empty value for none, and refuse numbers in its own words.
#pragma once

#include <string>
#include <vector>

#include "gcmoe/status.hpp"

namespace CLI {
class App;
}

namespace gcmoe::cli {

// Every option of the subcommand that wants a value has one: not empty, no option, and of a type
// INT, UINT or FLOAT a number that the type holds; FLOAT: finite. Options that do not exist are the
// parser's.
// Errors: kBadInput naming option, value and what would be right.
Status check_words(const CLI::App& command, const std::vector<std::string>& words);

}  // namespace gcmoe::cli
