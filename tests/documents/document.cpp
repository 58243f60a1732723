#include "documents/document.hpp"

#include <gtest/gtest.h>

#include <cstdlib>
#include <fstream>

namespace gcmoe::test {
namespace {

std::string path_of(const std::string& page) {
    const char* root = std::getenv("GCMOE_SOURCE_DIR");
    return root == nullptr ? page : std::string(root) + "/docs/" + page;
}

// Lines before, in and after a part.
struct Split {
    std::vector<std::string> before, part, after;
};

Split split(const std::string& page, const std::string& part) {
    Split lines;
    std::ifstream file(path_of(page));
    EXPECT_TRUE(file.is_open()) << path_of(page);
    std::vector<std::string>* at = &lines.before;
    for (std::string line; std::getline(file, line);) {
        if (at == &lines.part && line == "<!-- " + part + ": end -->") at = &lines.after;
        at->push_back(line);
        if (at == &lines.before && line.rfind("<!-- " + part + ":", 0) == 0) at = &lines.part;
    }
    EXPECT_FALSE(lines.after.empty()) << page << " has no part '" << part << "'";
    return lines;
}

}  // namespace

std::vector<std::string> document_lines(const std::string& page, const std::string& part) {
    return split(page, part).part;
}

void rewrite_document(const std::string& page, const std::string& part,
                      const std::vector<std::string>& lines) {
    const Split old = split(page, part);
    std::ofstream file(path_of(page));
    for (const auto* some : {&old.before, &lines, &old.after}) {
        for (const std::string& line : *some) file << line << '\n';
    }
    EXPECT_TRUE(file.flush().good()) << path_of(page);
}

std::vector<std::string> table_cells(const std::string& line) {
    std::vector<std::string> cells;
    if (line.empty() || line.front() != '|') return cells;
    std::size_t begin = 1;
    for (std::size_t end = line.find('|', begin); end != std::string::npos;
         end = line.find('|', begin)) {
        const std::size_t first = line.find_first_not_of(' ', begin);
        const std::size_t last = line.find_last_not_of(' ', end - 1);
        cells.push_back(first < end ? line.substr(first, last - first + 1) : "");
        begin = end + 1;
    }
    return cells;
}

}  // namespace gcmoe::test
