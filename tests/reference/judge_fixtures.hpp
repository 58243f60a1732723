// Judging a small case, and where to plant an error in its outputs.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "fixtures.hpp"
#include "reference/judge.hpp"

namespace gcmoe::reference {

std::vector<RankOutputs> views(const SmallCase& small);
std::vector<RankJudgement> judge(const SmallCase& small, const std::vector<RankExpected>& expected,
                                 const Tolerance& tolerance = kCpuTolerance);
// Judges after the backend's outputs were changed; what is expected stays.
std::vector<RankJudgement> judge_after(SmallCase* small, const std::function<void()>& plant);

// The first live slot of rank 0.
Place first_live(const SmallCase& small);
// Where the captured codes and scales of a slot of rank 0 stand, and its combine row.
std::uint8_t* codes_of(SmallCase* small, const Place& place);
std::uint32_t* scales_of(SmallCase* small, const Place& place);
std::uint16_t* row_of(SmallCase* small, const Place& place);

// Rank 0 fails with this text, rank 1 does not.
void expect_failure(const std::vector<RankJudgement>& verdicts, const std::string& text);

}  // namespace gcmoe::reference
