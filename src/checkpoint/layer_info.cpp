#include "checkpoint/layer_info.hpp"

#include <fmt/format.h>

#include "base/check.hpp"
#include "checkpoint/message.hpp"

namespace gcmoe::checkpoint {

const char* layout_name(TensorLayout layout) {
    switch (layout) {
        case TensorLayout::kDeepseek:
            return "deepseek";
        case TensorLayout::kHuggingFace:
            return "huggingface";
        case TensorLayout::kGptOss:
            return "gpt-oss";
        case TensorLayout::kStackedW13:
            return "w13";
    }
    GCMOE_CHECK(false, static_cast<int>(layout));
}

const char* format_name(RoutedFormat format) {
    switch (format) {
        case RoutedFormat::kMxfp4:
            return "MXFP4";
        case RoutedFormat::kFp8:
            return "FP8";
        case RoutedFormat::kBf16:
            return "BF16";
    }
    GCMOE_CHECK(false, static_cast<int>(format));
}

std::string LayerIdentity::text() const {
    return fmt::format("layer {} of {}, fingerprint {:016x}", layer_idx,
                       model.empty() ? "an unnamed model" : quote(model), fingerprint);
}

Shape layer_shape(const LayerInfo& info, int num_ranks) {
    Shape shape;
    shape.hidden = info.hidden;
    shape.inter = info.inter;
    shape.num_experts = info.num_experts;
    shape.topk = info.topk;
    shape.num_ranks = num_ranks;
    shape.shared_inter = info.shared_inter;
    shape.has_bias = info.has_bias;
    if (info.clamp.has_value()) shape.activation.clamp = *info.clamp;
    shape.activation.alpha = info.alpha;
    shape.activation.beta = info.beta;
    return shape;
}

}  // namespace gcmoe::checkpoint
