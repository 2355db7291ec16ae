// What Python calls: the choice of instructions, a plan (all memory for one shape), and steps with it.
#include <cmath>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <vector>

#include "network.h"
#include "pool.h"

#define EXPORT extern "C" __attribute__((visibility("default")))

extern const Instructions instructions_baseline;
#if defined(__x86_64__)
extern const Instructions instructions_avx2, instructions_avx512, instructions_avx512bf16;
#endif

namespace {

struct Choice {
    const char* name;
    const Instructions* instructions;
};

// The instruction sets of this build that this processor has, the best first.
std::vector<Choice> available() {
    std::vector<Choice> found;
#if defined(__x86_64__)
    __builtin_cpu_init();
    const bool avx2 = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma");
    const bool avx512 = avx2 && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
                        __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl");
    if (avx512 && __builtin_cpu_supports("avx512bf16")) found.push_back({"avx512bf16", &instructions_avx512bf16});
    if (avx512) found.push_back({"avx512", &instructions_avx512});
    if (avx2) found.push_back({"avx2", &instructions_avx2});
#endif
    found.push_back({"baseline", &instructions_baseline});
    return found;
}

// The named instruction set if this processor has it, or its best one.
Choice choose(const char* name) {
    const std::vector<Choice> choices = available();
    for (const Choice& choice : choices)
        if (name && !std::strcmp(choice.name, name)) return choice;
    return choices.front();
}

struct FreeMemory {
    void operator()(void* memory) const { std::free(memory); }
};
using Block = std::unique_ptr<void, FreeMemory>;

Block zeroed(size_t bytes) {
    void* memory = nullptr;
    if (posix_memalign(&memory, 64, bytes ? bytes : 64)) return nullptr;
    std::memset(memory, 0, bytes);
    return Block(memory);
}

std::vector<size_t> tensor_sizes(const Shape& shape) {
    const size_t width = shape.width, up = shape.up_width(), head = shape.head_width();
    std::vector<size_t> sizes(NUM_NETWORK_TENSORS + size_t(shape.num_layers) * NUM_LAYER_TENSORS);
    sizes[EMBEDDING] = sizes[HEAD] = shape.vocabulary * width;
    sizes[POSITIONS] = shape.context * width;
    sizes[NORM] = sizes[NORM_BIAS] = width;
    for (long layer = 0; layer < shape.num_layers; layer++) {
        size_t* of = &sizes[NUM_NETWORK_TENSORS + layer * NUM_LAYER_TENSORS];
        for (LayerTensor which : {ATTENTION_NORM, ATTENTION_NORM_BIAS, ATTENTION_OUT_BIAS, FEED_NORM, FEED_NORM_BIAS, DOWN_BIAS})
            of[which] = width;
        of[QKV] = 3 * width * width, of[QKV_BIAS] = 3 * width;
        of[QUERY_NORM] = of[KEY_NORM] = head;
        of[ATTENTION_OUT] = width * width;
        of[UP] = up * width, of[UP_BIAS] = up;
        of[DOWN] = width * shape.feed_forward;
    }
    return sizes;
}

struct Plan {
    Shape shape;
    long num_threads, sequences_at_once;
    Choice choice;
    std::vector<size_t> sizes;
    std::vector<float> rotary;
    std::vector<Block> memory;             // of each thread
    std::vector<Block> own_gradients;      // of each thread but the first, which adds to the caller's
    std::vector<Result> results;

    long gradient_bytes() const {
        size_t total = 0;
        for (size_t size : sizes) total += size;
        return long(total * sizeof(float));
    }

    // Where a thread adds its gradients: the caller's for thread 0, else parts of its own block of memory.
    std::vector<float*> gradients_of(int thread, float* const* given) const {
        std::vector<float*> found(sizes.size());
        float* next = thread ? static_cast<float*>(own_gradients[thread].get()) : nullptr;
        for (size_t i = 0; i < sizes.size(); i++) {
            if (given[i]) found[i] = thread ? next : given[i];
            if (i == HEAD && given[HEAD] == given[EMBEDDING]) found[HEAD] = found[EMBEDDING];
            else next += given[i] && thread ? sizes[i] : 0;
        }
        return found;
    }
};

// Cosines and sines of position x frequency, in float32 as torch computes its own table.
void fill_rotary(Plan& plan, const float* frequencies) {
    const long head = plan.shape.head_width(), half = head / 2;
    plan.rotary.resize(plan.shape.length * head);
    for (long t = 0; t < plan.shape.length; t++)
        for (long j = 0; j < half; j++) {
            const float angle = float(t) * frequencies[j];
            plan.rotary[t * head + j] = std::cos(angle);
            plan.rotary[t * head + half + j] = std::sin(angle);
        }
}

}  // namespace

EXPORT int headrace_abi() { return 1; }

EXPORT const char* headrace_instructions(const char* wanted) { return choose(wanted).name; }

EXPORT long headrace_plan_bytes(const Shape* shape, long num_threads, long sequences_at_once) {
    size_t weights = 0;
    for (size_t size : tensor_sizes(*shape)) weights += size;
    return num_threads * choose(nullptr).instructions->memory_bytes(*shape, sequences_at_once) +
           (num_threads - 1) * long(weights * sizeof(float));
}

EXPORT void headrace_free(Plan* plan) { delete plan; }

// frequencies: of the rotary positions, half as many as a head is wide; qwen3 only.
EXPORT Plan* headrace_plan(
    const Shape* shape, const float* frequencies, long num_threads, long sequences_at_once, const char* wanted
) {
    auto plan = std::make_unique<Plan>();
    plan->shape = *shape;
    plan->num_threads = num_threads;
    plan->sequences_at_once = sequences_at_once;
    plan->choice = choose(wanted);
    plan->sizes = tensor_sizes(*shape);
    if (frequencies) fill_rotary(*plan, frequencies);
    plan->results.resize(num_threads);
    for (long thread = 0; thread < num_threads; thread++) {
        plan->memory.push_back(zeroed(plan->choice.instructions->memory_bytes(*shape, sequences_at_once)));
        plan->own_gradients.push_back(zeroed(thread ? plan->gradient_bytes() : 0));
        if (!plan->memory.back() || !plan->own_gradients.back()) return nullptr;
    }
    return plan.release();
}

// Adds the gradients of scale x the sum of losses to `gradients`, or overwrites them; returns that loss.
EXPORT double headrace_step(
    Plan* plan, const float* const* weights, float* const* gradients, const Rows* rows, float scale, int overwrite,
    double* forward_seconds
) {
    const long length = plan->shape.length, num_sequences = rows->num_sequences;
    const long active = num_sequences < plan->num_threads ? num_sequences : plan->num_threads;
    Pool& pool = pool_of(int(plan->num_threads));
    std::vector<std::vector<float*>> own;
    for (int thread = 0; thread < active; thread++) own.push_back(plan->gradients_of(thread, gradients));
    pool.run([&](int thread) {
        if (thread >= active) return;
        if (thread || overwrite)
            for (size_t i = 0; i < plan->sizes.size(); i++)
                if (own[thread][i]) std::memset(own[thread][i], 0, plan->sizes[i] * sizeof(float));
        const long begin = num_sequences * thread / active, end = num_sequences * (thread + 1) / active;
        const Rows part{rows->inputs + begin * length, rows->targets + begin * length,
                        rows->documents ? rows->documents + begin * length : nullptr,
                        rows->mask ? rows->mask + begin * length : nullptr, end - begin};
        plan->results[thread] = plan->choice.instructions->add_gradients(
            {&plan->shape, weights, own[thread].data(), plan->rotary.data(), part, plan->sequences_at_once, scale,
             plan->memory[thread].get()});
    });
    pool.run([&](int thread) {
        for (size_t i = 0; i < plan->sizes.size(); i++) {
            if (!gradients[i] || (i == HEAD && gradients[HEAD] == gradients[EMBEDDING])) continue;
            const size_t begin = plan->sizes[i] * thread / plan->num_threads;
            const size_t end = plan->sizes[i] * (thread + 1) / plan->num_threads;
            for (int other = 1; other < active; other++)
                for (size_t j = begin; j < end; j++) gradients[i][j] += own[other][i][j];
        }
    });
    double loss = 0;
    for (int thread = 0; thread < active; thread++) loss += plan->results[thread].loss;
    *forward_seconds = plan->results[0].forward_seconds;
    return loss;
}
