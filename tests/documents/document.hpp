// Pages of docs/ that tests hold to the code.
#pragma once

#include <string>
#include <vector>

namespace gcmoe::test {

// The lines of a page of docs/ between `<!-- part: ... -->` and `<!-- part: end -->`. Fails the
// test if they are not there.
std::vector<std::string> document_lines(const std::string& page, const std::string& part);

// Puts lines in place of a part.
void rewrite_document(const std::string& page, const std::string& part,
                      const std::vector<std::string>& lines);

// The cells of a row of a table, without their spaces; none if the line is no row.
std::vector<std::string> table_cells(const std::string& line);

}  // namespace gcmoe::test
