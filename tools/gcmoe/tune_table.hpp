// A tuned table as text, and its file.
#pragma once

#include <memory>
#include <string>

#include "checkpoint/atomic_file.hpp"
#include "gcmoe/status.hpp"
#include "plan/tuned_table.hpp"

namespace gcmoe::cli {

// What plan::parse_tuned_table reads; checked by reading it.
// Errors: kInternal: a table that cannot be read back.
Status tuned_text(const plan::TunedTable& table, std::string* out);

// A file under its name only once the table is in it.
class TunedFile {
  public:
    // Errors: kBadInput: there is such a file and `force` is not given, or none can be made.
    Status open(const std::string& path, bool force);
    Status write(const plan::TunedTable& table);

  private:
    std::unique_ptr<checkpoint::AtomicFile> file_;
};

}  // namespace gcmoe::cli
