// What all ranks of a workspace must agree on, field by field.
#pragma once

#include <string>
#include <utility>
#include <vector>

namespace gcmoe::group {

// As (field, value), in an order that all ranks share.
using Configuration = std::vector<std::pair<std::string, std::string>>;

// The first field in which ranks differ, with every value and who has it: "hidden = 256 on ranks 0,
// 2 but hidden = 384 on rank 1". Empty if all are equal. configurations: (num_ranks)
std::string difference(const std::vector<const Configuration*>& configurations);

// "rank 2", "ranks 0, 2 and 5".
std::string rank_list(const std::vector<int>& ranks);

}  // namespace gcmoe::group
