// How much shared memory a role's CTA asks for.
#pragma once

#include <cstddef>

namespace gcmoe::cuda::device {

// One CTA per SM: more than half of an SM's 228 KiB of shared memory, whatever a role needs itself.
inline constexpr std::size_t kOneCtaPerSmBytes = 116 * 1024;

// The most a CTA can ask for on Hopper: 227 KiB.
inline constexpr std::size_t kMostSharedBytes = 227 * 1024;

// Dynamic shared memory of a role that needs `bytes`.
constexpr std::size_t one_cta_per_sm(std::size_t bytes) {
    return bytes > kOneCtaPerSmBytes ? bytes : kOneCtaPerSmBytes;
}

}  // namespace gcmoe::cuda::device
