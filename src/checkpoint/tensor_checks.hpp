// From the tensors of a file to views of one matrix, each proven first.
#pragma once

#include <cstdint>
#include <initializer_list>
#include <memory>
#include <string>
#include <vector>

#include "checkpoint/safetensors_file.hpp"
#include "checkpoint/stored_source.hpp"
#include "gcmoe/status.hpp"
#include "gcmoe/weights.hpp"

namespace gcmoe::checkpoint {

// kBadCheckpoint: "file 'p': tensor 'n': reason".
Status bad_tensor(const StoredTensor& tensor, const std::string& reason);
Status check_dtype(const StoredTensor& tensor, std::initializer_list<Dtype> accepted);
Status check_shape(const StoredTensor& tensor, const std::vector<std::int64_t>& needed);

// The grid that a scale tensor of this type and shape is, for a (rows, cols) matrix.
// Errors: kBadCheckpoint if no grid fits, or more than one.
Status find_scale_grid(const StoredTensor& scale, int rows, int cols, ScaleGrid* out);

// What the views of one expert point into.
struct HeldBytes {
    std::vector<std::unique_ptr<float[]>> floats;
    std::vector<std::unique_ptr<std::uint8_t[]>> bytes;
};

// num_bytes bytes of a tensor from the begin-th on, in held. Errors: InputFile::read.
Status hold_bytes(const StoredTensor& tensor, std::uint64_t begin, std::uint64_t num_bytes,
                  HeldBytes* held, const std::uint8_t** out);

// One matrix of an expert in the file.
struct MatrixPlace {
    std::string label;  // "expert 3, matrix w1 (gate)", for messages
    int rows = 0;
    int cols = 0;
};

// A tensor per matrix, read into held, as a view. Errors: those of reading; kBadCheckpoint for
// another type or shape, a scale that is NaN, an E4M3 NaN, an FP32 scale that is not finite and
// positive, a BF16 weight that is not finite; naming tensor, matrix and place.
Status view_mxfp4(const StoredTensor& weight, const StoredTensor& scale, const MatrixPlace& place,
                  HeldBytes* held, Mxfp4View* out);
Status view_fp8(const StoredTensor& weight, const StoredTensor& scale, const MatrixPlace& place,
                HeldBytes* held, Fp8View* out);
Status view_bf16(const StoredTensor& weight, const MatrixPlace& place, HeldBytes* held,
                 Bf16View* out);

// No code of (rows, cols / 32) scales is 255. Errors: as above.
Status check_mxfp4_scales(const StoredTensor& scale, const std::uint8_t* codes,
                          const MatrixPlace& place);

// num_values BF16 or F32 values from the first_value-th of a tensor as floats, each finite.
// Callers: type and shape were checked.
Status copy_biases(const StoredTensor& bias, std::uint64_t first_value, const MatrixPlace& place,
                   std::unique_ptr<float[]>* out);

}  // namespace gcmoe::checkpoint
