// How the stand-in for ptx::fma rounds.
//
// The CPU backend rounds a product before it adds it, role 2 on Hopper does not: its y differs in
// last bits. With kTwice, and where scales are powers of two, so that the order of sums does not
// show, every byte must be equal.
#pragma once

namespace gcmoe::host_stub {

enum class FmaRounding { kOnce, kTwice };

inline FmaRounding& fma_rounding() {
    static FmaRounding rounding = FmaRounding::kOnce;
    return rounding;
}

}  // namespace gcmoe::host_stub
