// Tuned tables: plan options that were measured as the best ones for a layer, by number of tokens.
// The format, and who writes it: docs/tune.md.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "gcmoe/operator.hpp"
#include "gcmoe/shape.hpp"
#include "gcmoe/status.hpp"
#include "layout/local_memory.hpp"

namespace gcmoe::plan {

inline constexpr int kTunedVersion = 1;
inline constexpr const char* kTunedKind = "gcmoe-tuned";

// More than any table of ours needs; a larger file is another thing.
inline constexpr std::size_t kMaxTunedBytes = std::size_t{4} << 20;
inline constexpr std::size_t kMaxTunedEntries = 4096;

// The word of PlanOptions::tuned that stands for rules alone.
inline constexpr const char* kNoTable = "none";

// A layer of one rank that has a GPU for itself. Equal in everything, or another layer.
struct TunedLayer {
    int hidden = 0;
    int inter = 0;
    int experts = 0;  // of the rank
    int topk = 0;
    int shared_inter = 0;
    bool bias = false;
    ActivationScale activation_scale = ActivationScale::kFp32K128;
    bool operator==(const TunedLayer&) const = default;
};
[[nodiscard]] TunedLayer tuned_layer(const Shape& shape);
// The rest of the shape keeps its defaults.
[[nodiscard]] Shape shape_of(const TunedLayer& layer);

// What became of the candidates of an entry.
struct TunedCounts {
    int generated = 0;
    int invalid = 0;    // the plan refuses them
    int duplicate = 0;  // the same plan as an earlier one
    int dominated = 0;  // cannot be better than an earlier one
    int budget = 0;     // no time was left for them
    int measured = 0;
    int finalists = 0;
};

// One layer, one band of OperatorOptions::max_tokens.
struct TunedEntry {
    std::string model;  // for people
    TunedLayer layer;
    int from = 0;
    int to = 0;
    int tokens = 0;  // that were measured, in from..to
    // Only partition, row_block, ring_blocks, lead_blocks and combine; what is 0 or auto is the
    // rules'. All of them: no candidate was better by more than the table's threshold.
    PlanOptions options;
    LaunchMode launch = LaunchMode::kGraph;  // recommended: it is the operator's, not the plan's
    double median_us = 0;                    // 0: derived
    double default_us = 0;                   // of the rules' plan, in the same turns
    TunedCounts counts;
    int line = 0;

    [[nodiscard]] bool keeps_rules() const;
    // By how much of the rules' time it is faster. 0: derived.
    [[nodiscard]] double gain_percent() const;
};

struct TunedTable {
    std::string where;  // "tuned table 'h200.jsonl'"
    std::string gpu;    // name of the device
    int sms = 0;        // that it is for
    std::string driver;
    std::string commit;
    std::string date;
    std::string derived_from;  // the GPU that was measured instead; empty = gpu itself
    int warm = 0;              // the protocol of the medians
    int timed = 0;
    int flush_mib = 0;
    std::vector<int> seeds;
    double threshold_percent = 0;
    std::vector<TunedEntry> entries;

    [[nodiscard]] bool is_derived() const { return !derived_from.empty(); }
};

// JSON lines: a head, then an entry a line. Every value is checked, and every entry makes a plan on
// a GPU of that many SMs at both ends of its band; bands of a layer do not overlap.
// Errors: kBadConfig naming table, line, field, value and limit.
Status parse_tuned_table(std::string_view text, const std::string& where, TunedTable* out);
// Errors: the same; a file that cannot be read.
Status read_tuned_table(const std::string& path, TunedTable* out);

// Those that the library carries, from src/plan/tuned.
[[nodiscard]] const std::vector<TunedTable>& shipped_tables();

// Null: the table has nothing for this layer, capacity and GPU.
[[nodiscard]] const TunedEntry* find_entry(const TunedTable& table, const Shape& shape,
                                           int max_tokens, int sms);

// The table for a GPU of the same kernels with another number of SMs: SMs in proportion, the lead
// with them; everything else as measured. No times: nothing was measured there.
// Errors: kBadConfig naming the entry that makes no plan there.
Status derive_table(const TunedTable& from, const std::string& gpu, int sms, TunedTable* out);

// Words of the format, of reports and of options.
[[nodiscard]] const char* combine_word(CombineUnits units);
[[nodiscard]] const char* combine_word(layout::CombineOn units);
[[nodiscard]] const char* placement_word(SmPlacement placement);
[[nodiscard]] const char* launch_word(LaunchMode mode);
[[nodiscard]] const char* scale_word(ActivationScale scale);

}  // namespace gcmoe::plan
