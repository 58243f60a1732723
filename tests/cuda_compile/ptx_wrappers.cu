// Every wrapper of src/cuda/ptx that all targets have, so that ptxas sees each of them. Never run.
#include <cstdint>

#include "cuda/ptx/copy.cuh"
#include "cuda/ptx/math.cuh"
#include "cuda/ptx/signal.cuh"
#include "cuda/ptx/special.cuh"
#include "cuda/ptx/sync.cuh"

namespace gcmoe::cuda {

__global__ void copies(std::uint8_t* out, const std::uint8_t* from) {
    __shared__ alignas(16) std::uint8_t bytes[256];
    __shared__ std::uint64_t barrier;
    if (ptx::thread_idx() < 32 && ptx::elect_one()) {
        ptx::mbarrier_init(&barrier, 1);
        ptx::mbarrier_init_fence();
        ptx::mbarrier_expect(&barrier, 128);
        ptx::mbarrier_arrive_expect(&barrier, 128);
        ptx::bulk_load(bytes, from, 128, &barrier);
        ptx::bulk_prefetch(from + 256, 128);
        ptx::prefetch_line(from);
        ptx::bulk_load_once(bytes + 128, from + 128, 128, &barrier, ptx::evict_first_policy());
    }
    ptx::cta_barrier();
    ptx::launch_dependents();
    while (!ptx::mbarrier_try_wait(&barrier, 0)) ptx::sleep_ns(20);
    ptx::mbarrier_arrive(&barrier);
    const ptx::Words4 words =
        ptx::load_shared_16(ptx::shared_address(bytes) + 16 * (ptx::thread_idx() % 16));
    *reinterpret_cast<ptx::Words4*>(out + 16 * ptx::thread_idx()) = words;
    const ptx::Floats2 pair =
        ptx::load_shared_floats(ptx::shared_address(bytes) + 8 * (ptx::thread_idx() % 32));
    *reinterpret_cast<ptx::Floats2*>(out + 4096 + 8 * ptx::thread_idx()) = pair;
    out[8192 + ptx::thread_idx()] = static_cast<std::uint8_t>(
        ptx::load_shared_byte(ptx::shared_address(bytes) + ptx::thread_idx() % 256) +
        ptx::load_shared_word(ptx::shared_address(bytes) + 4 * (ptx::thread_idx() % 64)));
    ptx::fence_async_proxy_shared();
    ptx::fence_async_proxy();
}

__global__ void numbers(std::uint32_t* out, const float* from) {
    const float limited = ptx::max_nan(ptx::min_nan(from[0], from[5]), from[6]);
    const float value = ptx::fma(ptx::exp(limited), ptx::reciprocal(from[1]), from[2]);
    __shared__ std::uint32_t largest;
    if (ptx::thread_idx() == 0) largest = 0;
    ptx::cta_barrier();
    ptx::shared_max(&largest, ptx::warp_max(ptx::warp_sum(ptx::bf16_pair(value, from[3]))));
    ptx::cta_barrier();
    out[ptx::thread_idx()] = largest + ptx::e4m3_pair(from[4], value);
}

__global__ void threads(std::uint64_t* out) {
    const std::uint32_t me = ptx::cta_idx() * ptx::num_threads() + ptx::thread_idx();
    std::uint32_t value = ptx::shuffle(me, 3) + ptx::shuffle_up(me, 1) + ptx::shuffle_xor(me, 8);
    value = ptx::permute_bytes(value, me, 0x3210) ^ ptx::and_or(value, me, ptx::num_ctas());
    const std::uint32_t lanes = ptx::ballot(value != 0) & ptx::match_any(value);
    ptx::warp_barrier();
    ptx::named_barrier(1, 64);
    __shared__ std::uint32_t word;
    out[me] = ptx::count_bits(lanes) + ptx::first_bit(lanes | 1) + ptx::sm_id() +
              ptx::global_timer_ns() + ptx::shared_address(&word);
}

template <class T>
__device__ void gpu_signals(T* word, T* out) {
    ptx::store_release_gpu(word, T{1});
    ptx::add_release_gpu(word, T{2});
    *out = ptx::load_relaxed_gpu(word) + ptx::load_acquire_gpu(word) +
           ptx::add_acq_rel_gpu(word, T{3});
}

template <class T>
__device__ void sys_signals(T* word, T* out) {
    ptx::store_release_sys(word, T{1});
    ptx::add_release_sys(word, T{2});
    *out = ptx::load_relaxed_sys(word) + ptx::load_acquire_sys(word) +
           ptx::add_acq_rel_sys(word, T{3});
}

__global__ void signals(std::uint32_t* words, std::uint64_t* wide) {
    gpu_signals(words, words + 1);
    gpu_signals(wide, wide + 1);
    sys_signals(words + 2, words + 3);
    sys_signals(wide + 2, wide + 3);
    ptx::xor_release_gpu(wide + 4, 5);
    ptx::xor_release_sys(wide + 5, 6);
}

__global__ void __launch_bounds__(128, 1) register_budgets(std::uint32_t* out) {
    if (ptx::cta_idx() == 0) {
        ptx::take_registers<168>();
    } else {
        ptx::give_registers<40>();
    }
    out[ptx::thread_idx()] = 1;
}

}  // namespace gcmoe::cuda
