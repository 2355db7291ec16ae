// Native steps and orthogonalisation of random shapes, for `make sanitize`: memory is as large as a shape needs and no
// larger, so that the sanitizers see every access beyond it. Prints the seed of what fails.
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <random>
#include <vector>

#include "../../src/headrace/native/src/network.h"

extern "C" {
const char* headrace_instructions(const char* wanted);
void* headrace_plan(
    const Shape*, const float* frequencies, long num_threads, long sequences_at_once, long most_own_bytes,
    const char* wanted
);
void headrace_free(void* plan);
double headrace_step(
    void* plan, const float* const* weights, float* const* gradients, const Rows*, float scale, int overwrite,
    double* forward_seconds
);
double headrace_loss(void* plan, const float* const* weights, const Rows*, float scale);
int headrace_orthogonalise(const Matrices*, long num_matrices, long num_threads, const char* wanted);
}

namespace {

using Tensor = std::unique_ptr<float[]>;

struct Random {
    std::mt19937 engine;
    long between(long least, long most) { return std::uniform_int_distribution<long>(least, most)(engine); }
    bool coin() { return between(0, 1) == 1; }
    float number() { return std::normal_distribution<float>(0, 0.3f)(engine); }
};

Shape random_shape(Random& random) {
    const int32_t kind = random.coin() ? GPT2 : QWEN3;
    const long heads = random.between(1, 4), head = kind == QWEN3 ? 2 * random.between(1, 20) : random.between(1, 40);
    const long length = random.coin() ? random.between(1, 12) : random.between(1, 150);
    return {kind, int32_t(random.between(1, 2)), int32_t(heads * head), int32_t(heads), int32_t(random.between(1, 90)),
            int32_t(random.between(0, 9) ? random.between(2, 300) : 50257), int32_t(length + random.between(0, 3)),
            int32_t(length), random.coin(), random.coin()};
}

std::vector<long> sizes_of(const Shape& shape, bool has_bias) {
    const long width = shape.width, up = shape.up_width(), bias = has_bias && shape.kind == GPT2;
    const long head = shape.kind == QWEN3 ? shape.head_width() : 0;
    std::vector<long> sizes = {shape.vocabulary * width, shape.kind == GPT2 ? shape.context * width : 0,
                               shape.is_tied ? 0 : shape.vocabulary * width, width, bias * width};
    for (int layer = 0; layer < shape.num_layers; layer++) {
        const long of[] = {width, bias * width, 3 * width * width, bias * 3 * width, head, head, width * width,
                           bias * width, width, bias * width, up * width, bias * up, width * shape.feed_forward,
                           bias * width};
        sizes.insert(sizes.end(), of, of + NUM_LAYER_TENSORS);
    }
    return sizes;
}

const char* random_instructions(Random& random) {
    const char* instructions[] = {"amx", "avx512bf16", "avx512", "avx2", "baseline"};
    return instructions[random.between(0, 4)];
}

bool orthogonal_is_sound(Random& random) {
    const long number = random.between(1, 3);
    const long most = random.between(0, 9) ? 90 : 700, rows = random.between(1, most), columns = random.between(1, most);
    const bool is_bfloat16 = random.coin();
    std::vector<uint16_t> rounded(number * rows * columns);
    for (uint16_t& each : rounded) each = uint16_t(random.between(0x3c00, 0x3f80) | random.between(0, 1) << 15);
    std::vector<float> exact(number * rows * columns);
    for (float& each : exact) each = random.number();
    void* numbers = is_bfloat16 ? static_cast<void*>(rounded.data()) : exact.data();
    const float polynomials[] = {7.9103f, -22.0788f, 15.8691f, 3.6073f, -2.6467f, 0.5110f};
    const Matrices matrices{numbers, rows, columns, polynomials, 2, is_bfloat16, !is_bfloat16 && random.coin()};
    bool is_finite = headrace_orthogonalise(&matrices, number, random.between(1, 4), random_instructions(random));
    for (uint16_t each : rounded) is_finite &= (each & 0x7f80) != 0x7f80;
    for (float each : exact) is_finite &= std::isfinite(each);
    return is_finite;
}

bool is_sound(unsigned seed) {
    Random random{std::mt19937(seed)};
    const Shape shape = random_shape(random);
    std::vector<Tensor> weights, gradients;
    std::vector<float*> weight_pointers, gradient_pointers;
    const std::vector<long> sizes = sizes_of(shape, random.coin());
    for (long size : sizes) {
        weights.emplace_back(size ? new float[size] : nullptr);
        gradients.emplace_back(size ? new float[size]() : nullptr);
        for (long i = 0; i < size; i++) weights.back()[i] = random.number();
        weight_pointers.push_back(weights.back().get());
        gradient_pointers.push_back(gradients.back().get());
    }
    if (shape.is_tied) weight_pointers[HEAD] = weight_pointers[EMBEDDING], gradient_pointers[HEAD] = gradient_pointers[EMBEDDING];
    const long num_sequences = random.between(1, 5), count = num_sequences * shape.length;
    std::vector<int32_t> inputs(count), targets(count), documents(count);
    std::vector<uint8_t> mask(count);
    for (long i = 0; i < count; i++) {
        inputs[i] = int32_t(random.between(0, shape.vocabulary - 1));
        targets[i] = int32_t(random.between(0, shape.vocabulary - 1));
        documents[i] = i && random.between(0, 9) ? documents[i - 1] : int32_t(i);
        mask[i] = random.coin();
    }
    std::vector<float> frequencies(shape.head_width() / 2, 0.5f);
    std::vector<uint32_t> keys(num_sequences);
    for (uint32_t& key : keys) key = uint32_t(random.between(0, 1 << 30));
    std::vector<float> offsets(shape.vocabulary);
    for (float& offset : offsets) offset = random.coin() ? 3 * random.number() : -1e30f;
    const Rows rows{inputs.data(), targets.data(), random.coin() ? documents.data() : nullptr,
                    random.coin() ? mask.data() : nullptr, random.coin() ? keys.data() : nullptr,
                    random.coin() ? offsets.data() : nullptr, 0.3, num_sequences};
    void* plan = headrace_plan(&shape, shape.kind == QWEN3 ? frequencies.data() : nullptr, random.between(1, 4),
                               random.between(1, 3), random.coin() ? 0 : 1 << 30, random_instructions(random));
    bool is_finite = orthogonal_is_sound(random);
    double forward_seconds;
    for (int repeat = 0; repeat < 2; repeat++)
        is_finite &= std::isfinite(headrace_step(plan, weight_pointers.data(), gradient_pointers.data(), &rows,
                                                 1.0f / float(count), repeat, &forward_seconds));
    is_finite &= bool(std::isfinite(headrace_loss(plan, weight_pointers.data(), &rows, 1.0f)));
    for (size_t i = 0; i < sizes.size(); i++)
        for (long j = 0; j < sizes[i]; j++) is_finite &= bool(std::isfinite(gradients[i][j]));
    headrace_free(plan);
    return is_finite;
}

}  // namespace

int main(int count, char** arguments) {
    const unsigned num_shapes = count > 1 ? unsigned(std::atoi(arguments[1])) : 300;
    for (unsigned seed = 0; seed < num_shapes; seed++)
        if (!is_sound(seed)) {
            std::printf("not finite: seed %u\n", seed);
            return 1;
        }
    std::printf("%u shapes are sound, the best instructions here are %s\n", num_shapes, headrace_instructions(nullptr));
}
