#include "checkpoint/dtype.hpp"

#include <array>

#include "base/check.hpp"

namespace gcmoe::checkpoint {
namespace {

struct DtypeRow {
    Dtype dtype;
    const char* name;
    std::uint64_t num_bytes;
};

constexpr std::array<DtypeRow, 16> kDtypes = {{
    {Dtype::kBool, "BOOL", 1},
    {Dtype::kU8, "U8", 1},
    {Dtype::kI8, "I8", 1},
    {Dtype::kF8E4m3, "F8_E4M3", 1},
    {Dtype::kF8E5m2, "F8_E5M2", 1},
    {Dtype::kF8E8m0, "F8_E8M0", 1},
    {Dtype::kU16, "U16", 2},
    {Dtype::kI16, "I16", 2},
    {Dtype::kF16, "F16", 2},
    {Dtype::kBf16, "BF16", 2},
    {Dtype::kU32, "U32", 4},
    {Dtype::kI32, "I32", 4},
    {Dtype::kF32, "F32", 4},
    {Dtype::kU64, "U64", 8},
    {Dtype::kI64, "I64", 8},
    {Dtype::kF64, "F64", 8},
}};

const DtypeRow& row_of(Dtype dtype) {
    const auto idx = static_cast<std::size_t>(dtype);
    GCMOE_CHECK(idx < kDtypes.size(), idx);
    GCMOE_CHECK(kDtypes[idx].dtype == dtype, idx);
    return kDtypes[idx];
}

}  // namespace

const char* dtype_name(Dtype dtype) { return row_of(dtype).name; }

std::uint64_t dtype_bytes(Dtype dtype) { return row_of(dtype).num_bytes; }

bool dtype_from_name(std::string_view name, Dtype* out) {
    for (const DtypeRow& row : kDtypes) {
        if (name == row.name) {
            *out = row.dtype;
            return true;
        }
    }
    return false;
}

}  // namespace gcmoe::checkpoint
