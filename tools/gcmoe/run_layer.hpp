// The run itself: inputs, packed weights, operators of all ranks, launches.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "cached_source.hpp"
#include "gcmoe/operator.hpp"
#include "layer_options.hpp"
#include "packed_layer.hpp"
#include "rank_result.hpp"
#include "run_inputs.hpp"
#include "run_options.hpp"

namespace gcmoe::cli {

// Everything of one run, filled step by step in the order of the functions below.
struct LayerRun {
    Layer layer;
    PackedFiles packed_files;  // of --packed, by rank
    std::unique_ptr<CachedSource> source;

    int capacity = 1;
    std::vector<RankInputs> inputs;  // (num_ranks), all with `capacity` rows
    std::int64_t num_tokens = 0;     // of all ranks
    std::int64_t num_slots = 0;      // live
    std::vector<int> touched;        // experts that a live slot names, ascending

    // Ranks of this process: all of them, or the one that it is. Where an array below says
    // (num_ranks), what belongs to other processes is empty, until their results are gathered.
    std::vector<int> own_ranks;
    std::vector<std::shared_ptr<const PackedWeights>> weights;  // (num_ranks)
    PackReport packed;                                          // sum over ranks
    std::uint64_t touched_bytes = 0;  // of the touched experts as MXFP4 with scales

    std::shared_ptr<Group> group;
    std::vector<std::unique_ptr<Operator>> ops;   // (num_ranks)
    std::vector<RankOutput> outputs;              // (num_ranks), of the first launch
    std::vector<Statistics> statistics;           // (num_ranks), after the last launch
    std::vector<reference::RankStages> gathered;  // (num_ranks), of other processes
    double launch_s = 0;                          // the last launch, all ranks
    std::string difference;  // first place where a later launch's bits differ; empty = none
};

// Opens the layer, and reads or generates the inputs.
Status prepare_inputs(const RunOptions& options, LayerRun* run);
// Packs the touched experts of every own rank, or loads the packed files.
Status pack_weights(const RunOptions& options, LayerRun* run);
// Creates the operators, fills their inputs, runs --launches launches.
// Errors: kStalled with the sentence of the first waiter that was not told by a peer.
Status launch_layer(const RunOptions& options, LayerRun* run);
// A rank's stages in its own memory, as the last launch left them; y is that of the first, whose
// bits later launches repeated.
reference::RankOutputs own_stages(const Shape& shape, const RankOutput& output, Operator* op);
// Ranks as processes: rank 0 gets everybody's results, the others have handed theirs over.
Status gather_ranks(const RunOptions& options, LayerRun* run);

}  // namespace gcmoe::cli
