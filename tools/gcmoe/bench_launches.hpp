// The operators of one variant of a point, with their inputs written: what a bench launches.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "bench_point.hpp"
#include "cuda/measure/closed_launch.hpp"
#include "gcmoe/operator.hpp"

namespace gcmoe::cli {

// A model's weights on the GPU, with and without the shared expert, in every form; made when first
// asked for.
class BenchWeights {
  public:
    explicit BenchWeights(checkpoint::ModelEntry model) : model_(std::move(model)) {}
    [[nodiscard]] const checkpoint::ModelEntry& model() const { return model_; }
    Status find(bool with_shared, DecodeForm decode, std::shared_ptr<const PackedWeights>* out);

  private:
    checkpoint::ModelEntry model_;
    std::map<std::pair<bool, DecodeForm>, std::shared_ptr<const PackedWeights>> packed_;
};

// Where the launches of a point run: one group, so that equal partitions exist once.
struct BenchSite {
    const BenchPlan* plan = nullptr;
    BenchWeights* weights = nullptr;
    std::shared_ptr<Group> group;
    void* stream = nullptr;
};

// What is launched at once: a layer, its inputs, its output.
struct LaunchKey {
    bool with_shared = false;
    bool masked = false;
    int seed = 0;
    int tokens = 0;
    DecodeForm decode = DecodeForm::kRowFactors;
    [[nodiscard]] auto tie() const { return std::tie(with_shared, masked, seed, tokens, decode); }
    bool operator<(const LaunchKey& other) const { return tie() < other.tie(); }
};

// An operator of the key's layer, ready to be launched on a stream.
class BenchLaunch {
  public:
    Status create(const BenchSite& site, const LaunchKey& key, const OperatorOptions& options);
    // From here on launches are replays of a graph with the closing work behind the roles.
    Status close(const BenchSite& site, Closing closing);
    Status launch() { return closed_ != nullptr ? closed_->launch() : op_->launch(args_); }
    // By one of the operator's plans; not with closing work.
    Status launch(const std::string& plan) {
        args_.plan = plan;
        return op_->launch(args_);
    }
    Status synchronize();
    // y of the last launch. Shapes: (tokens, hidden).
    Status read(std::vector<std::uint16_t>* rows);
    [[nodiscard]] const LaunchKey& key() const { return key_; }
    [[nodiscard]] Operator& op() const { return *op_; }

  private:
    LaunchKey key_;
    std::shared_ptr<void> y_;
    std::size_t num_elements_ = 0;
    LaunchArgs args_;
    std::unique_ptr<Operator> op_;
    std::unique_ptr<cuda::measure::ClosedLaunch> closed_;  // goes before the operator
};

// What one routing of a variant launches, in order.
[[nodiscard]] std::vector<LaunchKey> launch_keys(SharedForm shared, bool masked, int seed,
                                                 int tokens);

// What the plan's reference makes of the same keys; each runs once.
class ReferenceOutputs {
  public:
    explicit ReferenceOutputs(BenchSite site) : site_(std::move(site)) {}
    // Launches, and compares y with that of the reference. Errors: kInternal naming token and
    // column of the first difference.
    Status compare(const std::string& variant, BenchLaunch* launch);

  private:
    Status find(const LaunchKey& key, const std::vector<std::uint16_t>** out);

    BenchSite site_;
    std::map<LaunchKey, std::vector<std::uint16_t>> rows_;
};

// A variant: for every seed one launch, or two where the shared expert runs apart.
class VariantLaunches {
  public:
    // keys: those of launch_keys, one list a seed; their form of decode is the variant's.
    Status create(const BenchSite& site, const BenchVariant& variant,
                  const std::vector<std::vector<LaunchKey>>& keys);
    [[nodiscard]] const BenchVariant& variant() const { return variant_; }
    [[nodiscard]] std::size_t num_seeds() const { return seeds_.size(); }
    Status launch(std::size_t seed_idx);
    Status synchronize();
    Status compare(ReferenceOutputs* reference);

    // After synchronize().
    [[nodiscard]] int touched(std::size_t seed_idx) const;
    [[nodiscard]] LaunchTimes times(std::size_t seed_idx) const;
    // Nothing if the variant does not record.
    Status trace(std::size_t seed_idx, trace::Trace* out) const;
    [[nodiscard]] GrantedPlan granted() const;

  private:
    BenchVariant variant_;
    std::vector<std::vector<std::unique_ptr<BenchLaunch>>> seeds_;
};

}  // namespace gcmoe::cli
