// The gated activation between the two GEMMs.
#pragma once

#include <cmath>

#include "base/host_device.hpp"
#include "gcmoe/shape.hpp"
#include "numerics/nan_math.hpp"

namespace gcmoe::numerics {

// The operations that a machine may have in hardware: a minimum and a maximum that hand a NaN on,
// e^x and 1 / x.
struct PlainMath {
    GCMOE_HD static float min_nan(float a, float b) { return numerics::min_nan(a, b); }
    GCMOE_HD static float max_nan(float a, float b) { return numerics::max_nan(a, b); }
    GCMOE_HD static float exp(float x) { return std::exp(x); }
    GCMOE_HD static float reciprocal(float x) { return 1.0F / x; }
};

// g = min(gate, clamp), u = clamp(up, -clamp, clamp): (g * sigmoid(alpha g)) * (u + beta), each
// operation rounded to FP32 in this order. The caller has added the biases already.
// NaN in gate or up gives NaN; gate = -huge gives a zero (exp overflows to infinity, its inverse is
// 0); gate = -infinity gives NaN, as IEEE says of -infinity * 0.
template <class Math = PlainMath>
GCMOE_HD inline float swiglu(float gate, float up, const Activation& activation) {
    const float g = Math::min_nan(gate, activation.clamp);
    const float u = Math::max_nan(Math::min_nan(up, activation.clamp), -activation.clamp);
    const float sigmoid = Math::reciprocal(1.0F + Math::exp(-(activation.alpha * g)));
    return (g * sigmoid) * (u + activation.beta);
}

// The same formula in FP64, for references.
GCMOE_HD inline double swiglu_fp64(double gate, double up, const Activation& activation) {
    const double clamp = static_cast<double>(activation.clamp);
    const double g = min_nan(gate, clamp);
    const double u = clamp_nan(up, -clamp, clamp);
    const double exponent = -(static_cast<double>(activation.alpha) * g);
#if defined(__CUDA_ARCH__)
    const double sigmoid = 1.0 / (1.0 + exp(exponent));
#else
    const double sigmoid = 1.0 / (1.0 + std::exp(exponent));
#endif
    return (g * sigmoid) * (u + static_cast<double>(activation.beta));
}

}  // namespace gcmoe::numerics
