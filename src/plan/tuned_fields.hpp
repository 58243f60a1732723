// One JSON object of a tuned table, read field by field.
#pragma once

#include <set>
#include <string>
#include <vector>

#include "checkpoint/json_text.hpp"
#include "gcmoe/status.hpp"

namespace gcmoe::plan {

// Keeps the first error: later calls change nothing. Every field must be asked for once; what was
// not asked for does not belong there.
class TunedFields {
  public:
    // where: "tuned table 'x', line 3". Callers: object outlives this.
    TunedFields(const checkpoint::Json& object, std::string where);

    void text(const char* name, std::string* out);
    // A string or null, which leaves it empty.
    void text_or_null(const char* name, std::string* out);
    void integer(const char* name, int least, int most, int* out);
    // A field that may be missing: 0.
    void optional_integer(const char* name, int least, int most, int* out);
    void boolean(const char* name, bool* out);
    void number(const char* name, double least, double most, double* out);
    void null(const char* name, const char* why);
    void integers(const char* name, int least, int most, std::vector<int>* out);
    // The index of the string in words.
    void word(const char* name, const std::vector<std::string>& words, int* out);
    void optional_word(const char* name, const std::vector<std::string>& words, int* out);
    // Null: an error was met.
    const checkpoint::Json* object(const char* name);

    void fail(const std::string& what);
    [[nodiscard]] bool ok() const { return status_.ok(); }
    // The first error, or that of a field that nobody has asked for.
    Status end();

  private:
    const checkpoint::Json* find(const char* name, bool optional);
    void bad(const char* name, const checkpoint::Json& value, const std::string& rule);

    const checkpoint::Json& object_;
    std::string where_;
    std::set<std::string> known_;
    Status status_;
};

}  // namespace gcmoe::plan
