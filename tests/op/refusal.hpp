// A refusal must carry the right code and name what is wrong.
#pragma once

#include <gtest/gtest.h>

#include <functional>
#include <ostream>
#include <string>
#include <vector>

#include "gcmoe/status.hpp"

namespace gcmoe::test {

// The code, and every word somewhere in the sentence (field, value, limit).
inline void expect_refused(const Status& status, Code code, const std::vector<std::string>& words) {
    EXPECT_EQ(status.code(), code) << code_name(status.code()) << ": " << status.message();
    for (const std::string& word : words) {
        EXPECT_NE(status.message().find(word), std::string::npos)
            << "'" << word << "' is missing in: " << status.message();
    }
}

// One change that makes a good T unacceptable, and what the refusal must name. One test each.
template <class T>
struct Refusal {
    std::string name;
    std::function<void(T*)> change;
    std::vector<std::string> words;
};
template <class T>
void PrintTo(const Refusal<T>& refusal, std::ostream* out) {
    *out << refusal.name;
}
template <class T>
std::string refusal_name(const testing::TestParamInfo<Refusal<T>>& info) {
    return info.param.name;
}

}  // namespace gcmoe::test
