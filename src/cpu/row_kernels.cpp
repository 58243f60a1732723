// Compiled once per SIMD target by Highway's foreach_target; the calls at the end take the best one
// that this machine supports.
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "cpu/row_kernels.cpp"
#include <hwy/foreach_target.h>  // must come before highway.h
#include <hwy/highway.h>

#include "cpu/row_kernels.hpp"
#include "layout/ring.hpp"
#include "numerics/bf16.hpp"
#include "numerics/bits.hpp"
#include "numerics/quantise.hpp"

HWY_BEFORE_NAMESPACE();
namespace gcmoe::cpu::HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

// A row of 128 columns, and the 8 columns whose gates stand side by side, divide by these.
using Floats = hn::CappedTag<float, 16>;
using EightFloats = hn::CappedTag<float, 8>;

template <class D>
using Vec = hn::Vec<D>;

// NaN in one form, whatever made it.
template <class D>
HWY_INLINE Vec<D> one_nan(D d, Vec<D> value) {
    const hn::Rebind<std::uint32_t, D> words;
    const auto nan = hn::BitCast(d, hn::Set(words, numerics::kFloatQuietNanBits));
    return hn::IfThenElse(hn::IsNaN(value), nan, value);
}

// 2^n for n in -126..127, as integers.
template <class D>
HWY_INLINE Vec<D> power_of_two(D d, hn::Vec<hn::Rebind<std::int32_t, D>> n) {
    const hn::Rebind<std::int32_t, D> ints;
    return hn::BitCast(d, hn::ShiftLeft<23>(hn::Add(n, hn::Set(ints, 127))));
}

// e^x: x = n ln 2 + r, |r| <= 0.35, the series of e^r up to r^7. Infinity above 88.7, 0 or a
// subnormal below -87.3.
template <class D>
HWY_INLINE Vec<D> exponential(D d, Vec<D> argument) {
    const auto x = hn::Max(hn::Min(argument, hn::Set(d, 89.0F)), hn::Set(d, -104.0F));
    const auto n = hn::NearestInt(hn::Mul(x, hn::Set(d, 1.44269504F)));
    const auto whole = hn::ConvertTo(d, n);
    // ln 2 in two parts: the first has 9 bits, n times it is exact.
    auto r = hn::Sub(x, hn::Mul(whole, hn::Set(d, 0.693359375F)));
    r = hn::Sub(r, hn::Mul(whole, hn::Set(d, -2.12194440e-4F)));
    auto series = hn::Set(d, 1.0F / 5040);
    series = hn::Add(hn::Mul(series, r), hn::Set(d, 1.0F / 720));
    series = hn::Add(hn::Mul(series, r), hn::Set(d, 1.0F / 120));
    series = hn::Add(hn::Mul(series, r), hn::Set(d, 1.0F / 24));
    series = hn::Add(hn::Mul(series, r), hn::Set(d, 1.0F / 6));
    series = hn::Add(hn::Mul(series, r), hn::Set(d, 0.5F));
    const auto power = hn::Add(hn::Add(hn::Mul(hn::Mul(r, r), series), r), hn::Set(d, 1.0F));
    const auto half = hn::ShiftRight<1>(n);  // 2^n alone would leave the normal numbers
    const auto rest = hn::Sub(n, half);
    return hn::Mul(hn::Mul(power, power_of_two(d, half)), power_of_two(d, rest));
}

// numerics::swiglu, its operations in its order. Comparisons with NaN are false: it stays.
template <class D>
HWY_INLINE Vec<D> swiglu(D d, Vec<D> gate, Vec<D> up, const Activation& activation) {
    const auto high = hn::Set(d, activation.clamp);
    const auto low = hn::Set(d, -activation.clamp);
    const auto one = hn::Set(d, 1.0F);
    const auto g = hn::IfThenElse(hn::Gt(gate, high), high, gate);
    auto u = hn::IfThenElse(hn::Gt(up, high), high, up);
    u = hn::IfThenElse(hn::Lt(u, low), low, u);
    const auto exponent = hn::Neg(hn::Mul(hn::Set(d, activation.alpha), g));
    const auto sigmoid = hn::Div(one, hn::Add(one, exponential(d, exponent)));
    return hn::Mul(hn::Mul(g, sigmoid), hn::Add(u, hn::Set(d, activation.beta)));
}

// Gates and ups of eight columns are eight packed rows each, side by side.
void activate_columns(const GatedRow& row, const Activation& activation, float* activated) {
    const EightFloats d;
    constexpr int kN = static_cast<int>(hn::MaxLanes(EightFloats()));
    for (int column = 0; column < layout::kChunk; column += kN) {
        const int gate_row = layout::first_gemm_packed_row({column, false});
        const int up_row = layout::first_gemm_packed_row({column, true});
        auto gate = hn::LoadU(d, row.sums + gate_row);
        auto up = hn::LoadU(d, row.sums + up_row);
        if (row.bias != nullptr) {
            gate = hn::Add(gate, hn::LoadU(d, row.bias + gate_row));
            up = hn::Add(up, hn::LoadU(d, row.bias + up_row));
        }
        const auto value = hn::Mul(swiglu(d, gate, up, activation), hn::Set(d, row.weight));
        hn::StoreU(one_nan(d, value), d, activated + column);
    }
}

// numerics::group_amax: n is a multiple of 16.
HWY_INLINE float amax_of(const float* values, int n) {
    const Floats d;
    constexpr int kN = static_cast<int>(hn::MaxLanes(Floats()));
    auto most = hn::Zero(d);
    auto nan = hn::Zero(d);
    for (int i = 0; i < n; i += kN) {
        const auto value = hn::LoadU(d, values + i);
        most = hn::Max(most, hn::Abs(value));  // of a NaN: anything, `nan` knows
        nan = hn::Or(nan, hn::IfThenElse(hn::IsNaN(value), hn::Set(d, 1.0F), hn::Zero(d)));
    }
    if (hn::GetLane(hn::MaxOfLanes(d, nan)) != 0.0F) {
        return numerics::bits_to_float(numerics::kFloatQuietNanBits);
    }
    return hn::GetLane(hn::MaxOfLanes(d, most));
}

// numerics::e4m3_from_float of values * inverse.
HWY_INLINE void cast_to_e4m3(const float* values, float inverse, int n, std::uint8_t* codes) {
    const Floats d;
    const hn::Rebind<std::uint32_t, Floats> words;
    const hn::Rebind<std::int32_t, Floats> ints;
    const hn::Rebind<std::uint8_t, Floats> bytes;
    constexpr int kN = static_cast<int>(hn::MaxLanes(Floats()));
    for (int i = 0; i < n; i += kN) {
        const auto value = hn::Mul(hn::LoadU(d, values + i), hn::Set(d, inverse));
        const auto bits = hn::BitCast(words, value);
        const auto sign = hn::And(hn::ShiftRight<24>(bits), hn::Set(words, 0x80U));
        const auto magnitude = hn::And(bits, hn::Set(words, numerics::kFloatMagnitudeMask));
        const auto order = hn::BitCast(ints, magnitude);
        const auto odd = hn::And(hn::ShiftRight<20>(magnitude), hn::Set(words, 1U));
        const auto rounded = hn::Add(hn::Add(magnitude, hn::Set(words, 0x7FFFFU)), odd);
        const auto normal = hn::Sub(hn::ShiftRight<20>(rounded), hn::Set(words, 120U << 3));
        const auto shifted = hn::Add(hn::BitCast(d, magnitude), hn::Set(d, 16384.0F));
        const auto subnormal = hn::And(hn::BitCast(words, shifted), hn::Set(words, 0xFU));
        const auto below = [&](std::int32_t limit) HWY_ATTR {
            return hn::RebindMask(words, hn::Lt(order, hn::Set(ints, limit)));
        };
        auto code = hn::IfThenElse(below(0x3C800000), subnormal, normal);
        code = hn::IfThenElse(below(0x43E00000), code, hn::Set(words, 0x7EU));
        code = hn::IfThenElse(below(0x7F800001), code, hn::Set(words, 0x7FU));
        hn::StoreU(hn::TruncateTo(bytes, hn::Or(code, sign)), bytes, codes + i);
    }
}

void requantise_columns(const float* values, ActivationScale format, std::uint8_t* codes,
                        std::uint32_t* scale_word) {
    if (format == ActivationScale::kFp32K128) {
        const float amax = amax_of(values, layout::kChunk);
        *scale_word = numerics::float_to_bits(numerics::fp32_scale(amax));
        cast_to_e4m3(values, numerics::fp32_inverse_scale(amax), layout::kChunk, codes);
        return;
    }
    *scale_word = 0;
    for (int g = 0; g < layout::kGroupsPerChunk; ++g) {
        const int first = g * layout::kScaleGroupK;
        const std::uint8_t code =
            numerics::ue8m0_scale_code(amax_of(values + first, layout::kScaleGroupK));
        cast_to_e4m3(values + first, numerics::ue8m0_inverse(code), layout::kScaleGroupK,
                     codes + first);
        *scale_word |= std::uint32_t{code} << (8 * g);
    }
}

// numerics::bf16_from_float.
template <class D>
HWY_INLINE hn::Vec<hn::Rebind<std::uint16_t, D>> to_bf16(D, Vec<D> value) {
    const hn::Rebind<std::uint32_t, D> words;
    const hn::Rebind<std::uint16_t, D> halves;
    const auto bits = hn::BitCast(words, value);
    const auto upper = hn::ShiftRight<16>(bits);
    const auto odd = hn::And(upper, hn::Set(words, 1U));
    const auto rounded = hn::ShiftRight<16>(hn::Add(hn::Add(bits, hn::Set(words, 0x7FFFU)), odd));
    const auto nan = hn::Or(upper, hn::Set(words, 0x0040U));
    const auto is_nan = hn::RebindMask(words, hn::IsNaN(value));
    return hn::TruncateTo(halves, hn::IfThenElse(is_nan, nan, rounded));
}

void store_results(const float* sums, const RowScale& scale, std::size_t n, std::uint16_t* out) {
    const Floats d;
    const hn::Rebind<std::uint16_t, Floats> halves;
    const auto weight = hn::Set(d, scale.weight);
    for (std::size_t i = 0; i < n; i += hn::MaxLanes(d)) {
        auto value = hn::LoadU(d, sums + i);
        if (scale.weighs_sum) {
            if (scale.bias != nullptr) value = hn::Add(value, hn::LoadU(d, scale.bias + i));
            value = hn::Mul(weight, value);
        } else if (scale.bias != nullptr) {
            value = hn::Add(value, hn::Mul(weight, hn::LoadU(d, scale.bias + i)));
        }
        hn::StoreU(to_bf16(d, one_nan(d, value)), halves, out + i);
    }
}

void add_bf16(const std::uint16_t* row, std::size_t n, float* sum) {
    const Floats d;
    const hn::Rebind<std::uint16_t, Floats> halves;
    const hn::Rebind<std::uint32_t, Floats> words;
    for (std::size_t i = 0; i < n; i += hn::MaxLanes(d)) {
        const auto bits = hn::PromoteTo(words, hn::LoadU(halves, row + i));
        const auto value = hn::BitCast(d, hn::ShiftLeft<16>(bits));
        hn::StoreU(hn::Add(hn::LoadU(d, sum + i), value), d, sum + i);
    }
}

void round_values(const float* values, std::size_t n, std::uint16_t* out) {
    const Floats d;
    const hn::Rebind<std::uint16_t, Floats> halves;
    for (std::size_t i = 0; i < n; i += hn::MaxLanes(d)) {
        hn::StoreU(to_bf16(d, hn::LoadU(d, values + i)), halves, out + i);
    }
}

}  // namespace gcmoe::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace gcmoe::cpu {
namespace {

HWY_EXPORT(activate_columns);
HWY_EXPORT(requantise_columns);
HWY_EXPORT(store_results);
HWY_EXPORT(add_bf16);
HWY_EXPORT(round_values);

}  // namespace

void activate_row(const GatedRow& row, const Activation& activation, float* activated) {
    HWY_DYNAMIC_DISPATCH(activate_columns)(row, activation, activated);
}

void requantise_row(const float* values, ActivationScale format, std::uint8_t* codes,
                    std::uint32_t* scale_word) {
    HWY_DYNAMIC_DISPATCH(requantise_columns)(values, format, codes, scale_word);
}

void store_result_row(const float* sums, const RowScale& scale, std::size_t n, std::uint16_t* out) {
    HWY_DYNAMIC_DISPATCH(store_results)(sums, scale, n, out);
}

void add_bf16_row(const std::uint16_t* row, std::size_t n, float* sum) {
    HWY_DYNAMIC_DISPATCH(add_bf16)(row, n, sum);
}

void round_to_bf16(const float* values, std::size_t n, std::uint16_t* out) {
    HWY_DYNAMIC_DISPATCH(round_values)(values, n, out);
}

}  // namespace gcmoe::cpu
#endif  // HWY_ONCE
