// The packed file: the tiles of one rank's experts on disk, in the order in which they are made.
//
//   PackedHeader                          512 bytes
//   sections                              each starts at a multiple of kPackedAlignment; the gap
//                                         before it is zeros
//   directory                             SectionRecord per section, in file order
//   PackedTail                            64 bytes, the last of the file
//
// Sections of an expert: per matrix (0 first GEMM, 1 second) tiles, then factors (sm90) or scales
// (sm90 shared: FP32; sm100: UE8M0), then its bias if the layer has biases. All numbers
// little-endian. Every byte but the gaps is under a hash; the hashes find damage, not malice.
#pragma once

#include <cstdint>
#include <vector>

#include "checkpoint/layer_info.hpp"
#include "gcmoe/shape.hpp"
#include "gcmoe/status.hpp"

namespace gcmoe::checkpoint {

inline constexpr std::uint64_t kPackedMagic = 0x314B4350454F4D43ULL;      // "CMOEPCK1"
inline constexpr std::uint64_t kPackedTailMagic = 0x31444E45454F4D43ULL;  // "CMOEEND1"
inline constexpr std::uint32_t kPackedVersion = 2;
inline constexpr std::uint64_t kPackedAlignment = 256;
inline constexpr std::uint64_t kPackedModelBytes = 64;  // of the model's name with a zero behind it

// Whose tiles a file holds.
enum class PackTarget : std::uint32_t { kSm90 = 90, kSm100 = 100 };
[[nodiscard]] const char* target_name(PackTarget target);

// The layer that a packed file belongs to.
struct PackedLayer {
    LayerIdentity identity;  // equal in the files of all ranks and experts; the name may be cut
    Shape shape;             // padded; num_ranks is what it was packed for
    int rank = 0;
    PackTarget target = PackTarget::kSm90;
    int model_hidden = 0;  // before padding
    int model_inter = 0;
    float routed_scale = 1.0F;
    bool has_uneven_scales = false;  // made by a scale rule of the generator: judged per column
};

struct PackedHeader {
    std::uint64_t magic;
    std::uint32_t version;
    std::uint32_t header_bytes;
    std::uint32_t target;
    std::int32_t hidden;
    std::int32_t inter;
    std::int32_t num_experts;
    std::int32_t topk;
    std::int32_t num_ranks;
    std::int32_t rank;
    std::int32_t shared_inter;
    std::uint32_t has_bias;
    std::uint32_t activation_scale;
    std::uint32_t weight_placement;
    float clamp;
    float alpha;
    float beta;
    std::int32_t model_hidden;
    std::int32_t model_inter;
    float routed_scale;
    std::uint32_t has_uneven_scales;
    std::uint64_t fingerprint;
    std::int32_t layer_idx;
    char model[kPackedModelBytes];  // ends with a zero
    std::uint8_t reserved[340];     // zeros
    std::uint64_t hash;             // of the bytes before it
};
static_assert(sizeof(PackedHeader) == 512);

enum class SectionKind : std::uint32_t { kTiles = 1, kFactors = 2, kScales = 3, kBias = 4 };

inline constexpr std::int32_t kSharedSection = -1;

struct SectionRecord {
    std::uint32_t kind;                    // SectionKind
    std::int32_t expert;                   // global id; kSharedSection: the shared expert
    std::uint32_t matrix;                  // 0 or 1
    std::uint32_t form;                    // sm90 routed: 0 row factors, 1 chunk factors; else 0
    std::int32_t rows;                     // packed rows of the matrix
    std::int32_t chunks;                   // its K / 128
    std::uint32_t scale_groups_per_chunk;  // sm90 shared: 1 or 4; else 0
    std::uint32_t reserved;                // 0
    std::uint64_t offset;                  // from the start of the file
    std::uint64_t num_bytes;
    std::uint64_t hash;
    std::uint64_t reserved_too;  // 0
};
static_assert(sizeof(SectionRecord) == 64);

struct PackedTail {
    std::uint64_t magic;
    std::uint64_t directory_offset;
    std::uint64_t num_sections;
    std::uint64_t directory_hash;
    std::uint64_t file_bytes;
    std::uint64_t header_hash;  // binds the two ends of one file
    std::uint64_t reserved;     // 0
    std::uint64_t hash;         // of the bytes before it
};
static_assert(sizeof(PackedTail) == 64);

// A 64-bit hash of bytes at any address.
[[nodiscard]] std::uint64_t hash_bytes(const void* bytes, std::uint64_t num_bytes);

[[nodiscard]] PackedHeader header_of(const PackedLayer& layer);

// Errors: kBadCheckpoint with the field and its value for what this version cannot read, or a
// header that no writer makes.
Status parse_header(const PackedHeader& header, PackedLayer* out);

// The sections of one expert in file order, as the layer wants them: kind, expert, matrix, rows and
// chunks are set.
[[nodiscard]] std::vector<SectionRecord> sections_of(const PackedLayer& layer, std::int32_t expert);

// What num_bytes of a section must be, by its other fields.
[[nodiscard]] std::uint64_t section_bytes(const PackedLayer& layer, const SectionRecord& section);

}  // namespace gcmoe::checkpoint
