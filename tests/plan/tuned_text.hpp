// A small tuned table as text, to be changed and damaged.
#pragma once

#include <string>

#include "gcmoe/shape.hpp"

namespace gcmoe::test {

inline constexpr const char* kTunedHead =
    R"({"kind":"gcmoe-tuned","version":1,"gpu":"NVIDIA H200","sms":132,"derived_from":null,)"
    R"("driver":"580.1","commit":"abc","date":"2026-12-01T00:00:00Z","warm":10,"timed":30,)"
    R"("flush_mib":512,"seeds":[0,1,2],"threshold_percent":1.0})"
    "\n";
inline constexpr const char* kTunedEntry =
    R"({"kind":"entry","model":"v4.1-flash","hidden":5120,"inter":2304,"experts":48,"topk":6,)"
    R"("shared_inter":0,"bias":false,"activation_scale":"fp32-k128","from":17,"to":32,)"
    R"("tokens":32,"options":{"dispatch_units":6,"compute_units":126,"row_block":24,)"
    R"("ring_blocks":32,"lead_blocks":10,"combine":"compute"},"launch":"eager",)"
    R"("median_us":250.5,"default_us":260.0,"candidates":{"generated":300,"invalid":10,)"
    R"("duplicate":5,"dominated":100,"budget":1,"measured":184,"finalists":6}})"
    "\n";

// The text with `from`, which must occur, replaced by `to` where it first occurs; the empty text
// for one that does not.
inline std::string replaced(std::string text, const std::string& from, const std::string& to) {
    const std::size_t at = text.find(from);
    if (at == std::string::npos) return {};
    return text.replace(at, from.size(), to);
}

// The layer of kTunedEntry.
inline Shape tuned_shape() {
    Shape shape;
    shape.hidden = 5120;
    shape.inter = 2304;
    shape.num_experts = 48;
    shape.topk = 6;
    return shape;
}

}  // namespace gcmoe::test
