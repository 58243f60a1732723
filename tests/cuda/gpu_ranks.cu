#include "cuda/gpu_ranks.hpp"

#include <cuda_runtime.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <cstddef>

#include "checkpoint/generated_layer.hpp"
#include "cuda/combine/role3_combine.hpp"
#include "cuda/dispatch/role1_dispatch.hpp"
#include "cuda/gemm/sm90_role2_gemm.hpp"
#include "layout/packed_weights.hpp"
#include "numerics/bits.hpp"
#include "numerics/hash.hpp"
#include "numerics/quantise.hpp"
#include "op/operator_state.hpp"

namespace gcmoe::test {
namespace {

void must(cudaError_t error, const char* what) {
    if (error != cudaSuccess) {
        throw std::runtime_error(std::string(what) + ": " + cudaGetErrorString(error));
    }
}

void must(const Status& status) {
    if (!status.ok()) throw std::runtime_error(status.message());
}

cudaStream_t as_stream(void* stream) { return static_cast<cudaStream_t>(stream); }

}  // namespace

bool has_hopper(std::string* reason) {
    int devices = 0;
    const cudaError_t error = cudaGetDeviceCount(&devices);
    if (error != cudaSuccess || devices == 0) {
        *reason = std::string("no GPU here: ") + cudaGetErrorString(error);
        cudaGetLastError();
        return false;
    }
    cudaDeviceProp properties;
    must(cudaGetDeviceProperties(&properties, 0), "properties");
    *reason = properties.name;
    return properties.major == 9 && properties.minor == 0;
}

template <class T>
T* GpuRanks::upload(const T* from, std::size_t count) {
    if (count == 0) return nullptr;
    void* to = nullptr;
    must(cudaMalloc(&to, count * sizeof(T)), "cudaMalloc");
    device_.push_back(to);
    must(cudaMemcpy(to, from, count * sizeof(T), cudaMemcpyHostToDevice), "upload");
    return static_cast<T*>(to);
}

GpuRanks::GpuRanks(const GpuCase& gpu_case) : case_(gpu_case) {
    const Shape& shape = case_.shape;
    const auto num_ranks = static_cast<std::size_t>(shape.num_ranks);
    must(cuda::dispatch::prepare_role1(), "role 1");
    must(cuda::gemm::prepare_role2(), "role 2");
    must(cuda::combine::prepare_role3(), "role 3");
    checkpoint::GeneratedLayer layer;
    layer.shape = shape;
    layer.weight_scales = case_.weight_scales;
    layer.biases = shape.has_bias;
    layer.shared_grid = case_.shared_grid;
    must(checkpoint::open_generated_layer(layer, &source_));
    must(Group::in_process(shape.num_ranks, {}, &group_));
    OperatorOptions options;
    options.max_tokens = case_.num_tokens;
    options.capture = case_.capture;
    options.poison = true;
    options.plans.resize(1);
    options.plans[0].row_block = case_.row_block;
    options.plans[0].ring_blocks = case_.ring_blocks;
    options.plans[0].second_columns = 256;  // four row tiles a task
    options.plans[0].lead_blocks = case_.lead_blocks;
    weights_.resize(num_ranks);
    ops_.resize(num_ranks);
    inputs_.resize(num_ranks);
    ranks_.resize(num_ranks);
    for (int rank = 0; rank < shape.num_ranks; ++rank) {
        const auto at = static_cast<std::size_t>(rank);
        must(PackedWeights::pack(*source_, shape, rank, {}, &weights_[at], nullptr));
        must(Operator::create(shape, weights_[at], group_, rank, options, &ops_[at]));
        make_inputs(rank);
        const OperatorState& state = ops_[at]->state();
        ranks_[at].heap = upload(state.backend->heap_base(), state.heap.bytes);
        ranks_[at].local = upload(state.backend->host_view().local, state.local.bytes);
    }
    for (int rank = 0; rank < shape.num_ranks; ++rank) upload_rank(rank);
}

GpuRanks::~GpuRanks() {
    for (void* stream : streams_) cudaStreamDestroy(as_stream(stream));
    for (void* pointer : device_) cudaFree(pointer);
}

void GpuRanks::make_inputs(int rank) {
    const Shape& shape = case_.shape;
    const InputViews views = ops_[static_cast<std::size_t>(rank)]->inputs();
    reference::RankInputs& inputs = inputs_[static_cast<std::size_t>(rank)];
    const auto hidden = static_cast<std::size_t>(shape.hidden);
    inputs.num_tokens = inputs.capacity = case_.num_tokens;
    for (int t = 0; t < case_.num_tokens; ++t) {
        const std::uint64_t key = numerics::hash_combine(17 + static_cast<std::uint64_t>(rank),
                                                         static_cast<std::uint64_t>(t));
        std::vector<float> values(hidden);
        for (std::size_t k = 0; k < hidden; ++k) {
            values[k] = numerics::hash_normal(numerics::hash_combine(key, k));
        }
        std::uint8_t* x = views.x + t * views.x_stride;
        std::uint32_t* words = views.x_scale + t * views.x_scale_stride;
        for (std::size_t c = 0; c < hidden / 128; ++c) {
            words[c] = 0;
            float scale = 0;
            if (shape.activation_scale == ActivationScale::kFp32K128) {
                numerics::quantise_e4m3_fp32(&values[c * 128], 128, x + c * 128, &scale);
                words[c] = numerics::float_to_bits(scale);
                continue;
            }
            for (std::size_t g = 0; g < 4; ++g) {
                std::uint8_t code = 0;
                const std::size_t first = c * 128 + g * 32;
                numerics::quantise_e4m3_ue8m0(&values[first], 32, x + first, &code);
                words[c] |= std::uint32_t{code} << (8 * g);
            }
        }
        inputs.x.insert(inputs.x.end(), x, x + hidden);
        inputs.x_scale.insert(inputs.x_scale.end(), words, words + hidden / 128);
        for (int k = 0; k < shape.topk; ++k) {
            const std::uint64_t word =
                numerics::hash_combine(key, 99999 + static_cast<std::uint64_t>(k));
            const bool unused = word % 11 == 0;
            const auto id = static_cast<std::int64_t>(
                word / 16 % static_cast<std::uint64_t>(shape.num_experts));
            const int slot = t * shape.topk + k;
            static_cast<std::int64_t*>(views.topk_idx)[slot] = unused ? -1 : id;
            views.topk_weight[slot] = numerics::hash_uniform(word) + 0.1F;
            inputs.topk_idx.push_back(unused ? -1 : id);
            inputs.topk_weight.push_back(views.topk_weight[slot]);
        }
    }
}

void GpuRanks::upload_rank(int rank) {
    const auto at = static_cast<std::size_t>(rank);
    const OperatorState& state = ops_[at]->state();
    const PackedStorage& storage = weights_[at]->storage();
    GpuRank& gpu = ranks_[at];
    const auto put = [this](const layout::PackedMatrix& matrix) {
        cuda::device::GpuMatrix to;
        to.tiles = upload(matrix.tiles.data(), matrix.tiles.size());
        to.bias = upload(matrix.bias.data(), matrix.bias.size());
        const float* factors = upload(matrix.factors.data(), matrix.factors.size());
        const bool row_form = matrix.form == layout::PackedMatrix::DecodeForm::kRowFactor;
        (row_form ? to.row_factors : to.chunk_factors) = factors;
        return to;
    };
    const auto put_fp8 = [this](const layout::PackedFp8Matrix& matrix) {
        cuda::device::GpuFp8Matrix to;
        to.tiles = upload(matrix.tiles.data(), matrix.tiles.size());
        to.scales = upload(matrix.scales.data(), matrix.scales.size());
        to.groups = static_cast<std::uint32_t>(matrix.scale_groups_per_chunk);
        return to;
    };
    std::vector<cuda::device::GpuExpert> experts;
    for (const auto& expert : storage.experts)
        experts.push_back({put(expert->first), put(expert->second)});
    cuda::device::GpuLaunch& launch = gpu.launch;
    launch.memory = state.backend->memory(0);
    launch.memory.local_base = gpu.local;
    launch.memory.peers = {};
    launch.memory.peers.base = reinterpret_cast<std::uint64_t>(gpu.heap);
    launch.memory.peers.rank = static_cast<std::uint32_t>(rank);
    launch.memory.peers.num_ranks = static_cast<std::uint32_t>(ranks_.size());
    for (std::size_t peer = 0; peer < ranks_.size(); ++peer) {
        launch.memory.peers.offset[peer] = ranks_[peer].heap - gpu.heap;
    }
    launch.memory.plan.dispatch_units = static_cast<std::uint32_t>(case_.dispatch_units);
    launch.memory.plan.compute_units = static_cast<std::uint32_t>(case_.compute_units);
    launch.experts = upload(experts.data(), experts.size());
    if (storage.has_shared) {
        launch.shared_first = put_fp8(storage.shared_first);
        launch.shared_second = put_fp8(storage.shared_second);
    }
    launch.activation = case_.shape.activation;
    launch.num_experts = static_cast<std::uint32_t>(case_.shape.num_experts);
    launch.hidden = static_cast<std::uint32_t>(case_.shape.hidden);
    launch.lead_blocks = state.plans[0].lead_blocks;
    launch.order = storage.order;
    launch.weight_placement = case_.shape.weight_placement;
    launch.first_limit_ns = launch.wait_limit_ns = 5ULL * 1000 * 1000 * 1000;
    gpu.y_copy.assign(static_cast<std::size_t>(case_.num_tokens) * launch.hidden, 0xFFFF);
    launch.y = gpu.y = upload(gpu.y_copy.data(), gpu.y_copy.size());
    launch.y_stride = launch.hidden;
    const std::vector<cuda::device::GpuTimes> times(
        static_cast<std::size_t>(std::max(case_.dispatch_units, case_.compute_units)));
    launch.dispatch_times = upload(times.data(), times.size());
    launch.compute_times = upload(times.data(), times.size());
    launch.combine_times = upload(times.data(), times.size());
    const auto tokens = static_cast<std::uint32_t>(case_.num_tokens);
    std::uint8_t* word = gpu.local + state.local.state + offsetof(layout::StateWords, num_tokens);
    must(cudaMemcpy(word, &tokens, sizeof(tokens), cudaMemcpyHostToDevice), "num_tokens");
    for (int i = 0; i < 2; ++i) {
        cudaStream_t stream = nullptr;
        must(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking), "stream");
        streams_.push_back(stream);
    }
}

// One launch of every rank: roles 1 and 2 side by side, role 3 behind both.
void GpuRanks::enqueue() {
    for (std::size_t r = 0; r < ranks_.size(); ++r) {
        must(cuda::dispatch::launch_role1(ranks_[r].launch, as_stream(streams_[2 * r])), "role 1");
        must(cuda::gemm::launch_role2(ranks_[r].launch, case_.shape.activation_scale,
                                      as_stream(streams_[2 * r + 1])),
             "role 2");
    }
    for (std::size_t r = 0; r < ranks_.size(); ++r) {
        cudaEvent_t ended = nullptr;
        must(cudaEventCreateWithFlags(&ended, cudaEventDisableTiming), "event");
        must(cudaEventRecord(ended, as_stream(streams_[2 * r])), "record");
        must(cudaStreamWaitEvent(as_stream(streams_[2 * r + 1]), ended), "wait");
        must(cuda::combine::launch_role3(ranks_[r].launch, as_stream(streams_[2 * r + 1])),
             "role 3");
        must(cudaEventRecord(ended, as_stream(streams_[2 * r + 1])), "record");
        must(cudaStreamWaitEvent(as_stream(streams_[2 * r]), ended), "wait");
        must(cudaEventDestroy(ended), "event");
    }
}

std::string GpuRanks::run(int launches) {
    for (int i = 0; i < launches; ++i) enqueue();
    must(cudaDeviceSynchronize(), "launches");
    std::string failed;
    for (std::size_t r = 0; r < ranks_.size(); ++r) {
        GpuRank& gpu = ranks_[r];
        const OperatorState& state = ops_[r]->state();
        gpu.heap_copy.resize(state.heap.bytes);
        gpu.local_copy.resize(state.local.bytes);
        must(cudaMemcpy(gpu.heap_copy.data(), gpu.heap, gpu.heap_copy.size(), cudaMemcpyDefault),
             "copy");
        must(cudaMemcpy(gpu.local_copy.data(), gpu.local, gpu.local_copy.size(), cudaMemcpyDefault),
             "copy");
        must(cudaMemcpy(gpu.y_copy.data(), gpu.y, gpu.y_copy.size() * 2, cudaMemcpyDefault),
             "copy");
        const auto* report =
            reinterpret_cast<const StallReport*>(gpu.local_copy.data() + state.local.stall_report);
        if (report->cause != StallCause::kNone) failed += describe(*report) + "\n";
    }
    return failed;
}

void GpuRanks::run_on_cpu(int launches) {
    cpu_y_.resize(ops_.size());
    for (std::size_t r = 0; r < ops_.size(); ++r) {
        cpu_y_[r].resize(ranks_[r].y_copy.size());
        LaunchArgs args;
        args.num_tokens = case_.num_tokens;
        args.y = cpu_y_[r].data();
        for (int i = 0; i < launches; ++i) must(ops_[r]->launch(args));
    }
    for (auto& op : ops_) must(op->synchronize());
}

reference::Problem GpuRanks::problem() {
    reference::Problem problem;
    problem.name = "gpu";
    problem.shape = case_.shape;
    problem.weights = source_.get();
    problem.inputs = &inputs_;
    problem.per_column = case_.per_column;
    problem.num_threads = 8;
    return problem;
}

reference::RankOutputs GpuRanks::outputs(int rank) const {
    const auto at = static_cast<std::size_t>(rank);
    const OperatorState& state = ops_[at]->state();
    const GpuRank& gpu = ranks_[at];
    const auto words = [&gpu](std::uint64_t offset) {
        return reinterpret_cast<const std::uint32_t*>(gpu.local_copy.data() + offset);
    };
    reference::RankOutputs outputs;
    outputs.max_tokens = case_.num_tokens;
    outputs.act = gpu.local_copy.data() + state.local.capture_act;
    outputs.act_scale = words(state.local.capture_act_scale);
    outputs.combine = gpu.heap_copy.data() + state.heap.combine;
    outputs.combine_stride = state.heap.combine_stride;
    outputs.y = gpu.y_copy.data();
    outputs.y_stride = static_cast<std::uint64_t>(case_.shape.hidden);
    if (case_.shape.shared_inter > 0) {
        outputs.shared_act = gpu.local_copy.data() + state.local.shared_act;
        outputs.shared_act_scale = words(state.local.shared_act_scale);
        outputs.shared_row =
            reinterpret_cast<const std::uint16_t*>(gpu.local_copy.data() + state.local.shared_row);
    }
    return outputs;
}

}  // namespace gcmoe::test
