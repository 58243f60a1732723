// How DeepSeek V4 and V4.1 checkpoints name the tensors of one layer's experts.
#pragma once

#include <array>
#include <string>

namespace gcmoe::checkpoint {

// The matrices of an expert by their names in the file. In DeepSeek's own files w1 is the gate, w3
// the up and w2 the down projection; GateUpOrder says what the reader takes w1 and w3 for.
inline constexpr std::array<const char*, 3> kMatrixNames = {"w1", "w3", "w2"};

struct DeepseekNames {
    std::string prefix;  // "layers.3.ffn."

    [[nodiscard]] std::string expert(int expert_idx, const std::string& matrix,
                                     const char* part) const {
        return prefix + "experts." + std::to_string(expert_idx) + "." + matrix + "." + part;
    }
    [[nodiscard]] std::string shared(const std::string& matrix, const char* part) const {
        return prefix + "shared_experts." + matrix + "." + part;
    }
};

}  // namespace gcmoe::checkpoint
