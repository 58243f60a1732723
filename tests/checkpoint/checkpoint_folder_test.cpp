#include "checkpoint/checkpoint_folder.hpp"

#include "checkpoint/model_config.hpp"
#include "test_files.hpp"

namespace gcmoe::checkpoint {
namespace {

std::string one_tensor(const std::string& name, const std::string& data) {
    return safetensors_bytes("{\"" + name + R"(":{"dtype":"U8","shape":[)" +
                                 std::to_string(data.size()) + R"(],"data_offsets":[0,)" +
                                 std::to_string(data.size()) + "]}}",
                             data);
}

Status open_folder(const TempFolder& folder, std::unique_ptr<CheckpointFolder>* out) {
    return CheckpointFolder::open(folder.path(), out);
}

TEST(CheckpointFolder, ReadsASingleFile) {
    const TempFolder folder;
    write_bytes(folder.file("model.safetensors"), one_tensor("a", "xyz"));
    std::unique_ptr<CheckpointFolder> checkpoint;
    expect_ok(open_folder(folder, &checkpoint));
    StoredTensor tensor;
    expect_ok(checkpoint->tensor("a", &tensor));
    EXPECT_EQ(bytes_of_tensor(tensor), "xyz");
    EXPECT_TRUE(checkpoint->contains("a"));
    expect_error(checkpoint->tensor("b", &tensor), Code::kBadCheckpoint,
                 {folder.path(), "no tensor 'b'"});
}

TEST(CheckpointFolder, OpensShardsWhenAskedFor) {
    const TempFolder folder;
    write_bytes(folder.file("model.safetensors.index.json"),
                R"({"metadata":{},"weight_map":{"a":"s1.safetensors","b":"s2.safetensors",)"
                R"("c":"s1.safetensors","d":"s3.safetensors"}})");
    write_bytes(folder.file("s1.safetensors"), one_tensor("a", "one"));
    write_bytes(folder.file("s3.safetensors"), "broken");
    std::unique_ptr<CheckpointFolder> checkpoint;
    expect_ok(open_folder(folder, &checkpoint));
    EXPECT_EQ(checkpoint->file_of_tensor().size(), 4U);
    StoredTensor tensor;
    expect_ok(checkpoint->tensor("a", &tensor));
    EXPECT_EQ(bytes_of_tensor(tensor), "one");
    expect_error(checkpoint->tensor("b", &tensor), Code::kBadCheckpoint,
                 {folder.file("s2.safetensors"), "is missing", "tensor 'b'"});
    expect_error(checkpoint->tensor("c", &tensor), Code::kBadCheckpoint,
                 {folder.file("s1.safetensors"), "lacks tensor 'c'"});
    expect_error(checkpoint->tensor("d", &tensor), Code::kBadCheckpoint,
                 {folder.file("s3.safetensors"), "6 bytes"});
    write_bytes(folder.file("s2.safetensors"), one_tensor("b", "two"));  // late, but there
    expect_ok(checkpoint->tensor("b", &tensor));
    EXPECT_EQ(bytes_of_tensor(tensor), "two");
}

TEST(CheckpointFolder, RefusesFoldersWithoutAModel) {
    const TempFolder folder;
    std::unique_ptr<CheckpointFolder> checkpoint;
    expect_error(open_folder(folder, &checkpoint), Code::kBadCheckpoint,
                 {folder.path(), "neither model.safetensors.index.json nor model.safetensors"});
    expect_error(CheckpointFolder::open(folder.file("none"), &checkpoint), Code::kBadCheckpoint,
                 {folder.file("none"), "not a folder"});
}

TEST(CheckpointFolder, RefusesBadIndexes) {
    const TempFolder folder;
    const std::string path = folder.file("model.safetensors.index.json");
    std::unique_ptr<CheckpointFolder> checkpoint;
    const auto expect_refused = [&](const std::string& text, const std::string& reason) {
        write_bytes(path, text);
        expect_error(open_folder(folder, &checkpoint), Code::kBadCheckpoint, {path, reason});
    };
    expect_refused("{", "not valid JSON");
    expect_refused("[]", "needs a JSON object");
    expect_refused("{}", "no object weight_map");
    expect_refused(R"({"weight_map":3})", "no object weight_map");
    expect_refused(R"({"weight_map":{"a":3}})", "tensor 'a': 3 is not the name of a file");
    expect_refused(R"({"weight_map":{"a":"../x"}})", "tensor 'a': \"../x\" is not the name");
    expect_refused(R"({"weight_map":{"a":".."}})", "tensor 'a'");
    expect_refused(R"({"weight_map":{"a":"s","a":"t"}})", "'a' stands there twice");
}

TEST(ModelConfig, ReadsFieldsAtTheTop) {
    const TempFolder folder;
    write_bytes(folder.file("config.json"),
                R"({"model_type":"deepseek_v4","hidden_size":4096,"moe_intermediate_size":2048,
                "n_routed_experts":256,"num_experts_per_tok":6,"n_shared_experts":1,
                "swiglu_limit":10.0,"routed_scaling_factor":1.5,"expert_dtype":"fp4",
                "quantization_config":{"weight_block_size":[128,128]}})");
    ModelConfig config;
    expect_ok(read_model_config(folder.path(), &config));
    EXPECT_EQ(config.model_type, "deepseek_v4");
    EXPECT_EQ(config.expert_dtype, "fp4");
    EXPECT_EQ(config.hidden_size, 4096);
    EXPECT_EQ(config.moe_intermediate_size, 2048);
    EXPECT_EQ(config.n_routed_experts, 256);
    EXPECT_EQ(config.num_experts_per_tok, 6);
    EXPECT_EQ(config.n_shared_experts, 1);
    EXPECT_EQ(config.swiglu_limit, 10.0F);
    EXPECT_EQ(config.routed_scaling_factor, 1.5F);
    EXPECT_EQ(config.weight_block_size, (std::array<int, 2>{128, 128}));
    EXPECT_FALSE(config.swiglu_alpha.has_value());
}

TEST(ModelConfig, TextConfigWinsAndNullIsAbsent) {
    const TempFolder folder;
    write_bytes(folder.file("config.json"),
                R"({"model_type":"deepseek_v41","hidden_size":1,"n_routed_experts":8,
                "weight_block_size":[32,32],"text_config":{"model_type":"inner",
                "hidden_size":5120,"swiglu_limit":null,"n_routed_experts":null}})");
    ModelConfig config;
    expect_ok(read_model_config(folder.path(), &config));
    EXPECT_EQ(config.model_type, "deepseek_v41");
    EXPECT_EQ(config.hidden_size, 5120);
    EXPECT_EQ(config.n_routed_experts, 8);
    EXPECT_FALSE(config.swiglu_limit.has_value());
    EXPECT_EQ(config.weight_block_size, (std::array<int, 2>{32, 32}));
}

TEST(ModelConfig, RefusesBadFields) {
    const TempFolder folder;
    const std::string path = folder.file("config.json");
    ModelConfig config;
    expect_error(read_model_config(folder.path(), &config), Code::kBadCheckpoint,
                 {path, "No such file"});
    const auto expect_refused = [&](const std::string& text, const std::string& reason) {
        write_bytes(path, text);
        expect_error(read_model_config(folder.path(), &config), Code::kBadCheckpoint,
                     {path, reason});
    };
    expect_refused(R"({"hidden_size":"4096"})", "hidden_size = \"4096\", needs a count");
    expect_refused(R"({"hidden_size":-1})", "hidden_size = -1");
    expect_refused(R"({"hidden_size":1e3})", "hidden_size = 1000.0");
    expect_refused(R"({"n_routed_experts":99999999999})", "n_routed_experts = 99999999999");
    expect_refused(R"({"swiglu_limit":"off"})", "swiglu_limit = \"off\", needs a finite number");
    expect_refused(R"({"swiglu_limit":1e300})", "swiglu_limit = 1e+300");
    expect_refused(R"({"model_type":4})", "model_type = 4, needs a string");
    expect_refused(R"({"weight_block_size":[128]})", "weight_block_size = [128], needs two counts");
}

}  // namespace
}  // namespace gcmoe::checkpoint
