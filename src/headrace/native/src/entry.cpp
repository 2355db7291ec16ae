// What Python calls: the choice of instructions, a plan (all memory for one shape), steps with it, and the products of
// the optimizer.
#include <atomic>
#include <cmath>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <mutex>
#include <vector>

#if defined(__x86_64__) && defined(__linux__)
#include <cpuid.h>
#include <sys/syscall.h>
#include <unistd.h>
#endif

#include "network.h"
#include "pool.h"

#define EXPORT extern "C" __attribute__((visibility("default")))

extern const Instructions instructions_baseline;
#if defined(__x86_64__)
extern const Instructions instructions_avx2, instructions_avx512, instructions_avx512bf16, instructions_amx;
#endif

namespace {

struct Choice {
    const char* name;
    const Instructions* instructions;
};

// Whether the processor has registers for matrices, and the system lets this process use them, which it has to be asked.
// Clang before 18 knows no names of these features, so the processor is asked by their bits.
bool may_use_amx() {
#if defined(__x86_64__) && defined(__linux__)
    constexpr int REQUEST_PERMISSION = 0x1023, TILE_DATA = 18;  // ARCH_REQ_XCOMP_PERM, XFEATURE_XTILEDATA
    constexpr unsigned AMX_BF16 = 1u << 22, AMX_TILE = 1u << 24;
    static const bool may = [] {
        unsigned a, b, c, features;
        return __get_cpuid_count(7, 0, &a, &b, &c, &features) && features & AMX_BF16 && features & AMX_TILE &&
               !syscall(SYS_arch_prctl, REQUEST_PERMISSION, TILE_DATA);
    }();
    return may;
#else
    return false;
#endif
}

// The instruction sets of this build that this processor has, the best first.
std::vector<Choice> available() {
    std::vector<Choice> found;
#if defined(__x86_64__)
    __builtin_cpu_init();
    const bool avx2 = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma");
    const bool avx512 = avx2 && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
                        __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl");
    const bool avx512bf16 = avx512 && __builtin_cpu_supports("avx512bf16");
    if (avx512bf16 && may_use_amx()) found.push_back({"amx", &instructions_amx});
    if (avx512bf16) found.push_back({"avx512bf16", &instructions_avx512bf16});
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

std::mutex one_at_a_time;  // all calls of a process share its threads

struct FreeMemory {
    void operator()(void* memory) const { std::free(memory); }
};
using Block = std::unique_ptr<void, FreeMemory>;

Block allocated(size_t bytes) {
    void* memory = nullptr;
    return Block(posix_memalign(&memory, 64, bytes ? bytes : 64) ? nullptr : memory);
}

Block zeroed(size_t bytes) {
    Block block = allocated(bytes);
    if (block) std::memset(block.get(), 0, bytes);
    return block;
}

std::vector<size_t> tensor_sizes(const Shape& shape) {
    const size_t width = shape.width, up = shape.up_width(), head = shape.head_width();
    std::vector<size_t> sizes(NUM_NETWORK_TENSORS + size_t(shape.num_layers) * NUM_LAYER_TENSORS);
    sizes[EMBEDDING] = sizes[HEAD] = shape.vocabulary * width;
    sizes[POSITIONS] = shape.context * width;
    sizes[NORM] = sizes[NORM_BIAS] = width;
    for (long layer = 0; layer < shape.num_layers; layer++) {
        size_t* of = &sizes[NUM_NETWORK_TENSORS + layer * NUM_LAYER_TENSORS];
        of[ATTENTION_NORM] = of[ATTENTION_NORM_BIAS] = of[FEED_NORM] = of[FEED_NORM_BIAS] = width;
        of[ATTENTION_OUT_BIAS] = of[DOWN_BIAS] = width;
        of[QKV] = 3 * width * width, of[QKV_BIAS] = 3 * width;
        of[QUERY_NORM] = of[KEY_NORM] = head;
        of[ATTENTION_OUT] = width * width;
        of[UP] = up * width, of[UP_BIAS] = up;
        of[DOWN] = width * shape.feed_forward;
    }
    return sizes;
}

// Whether a tensor is a matrix, whose gradient threads may share.
bool is_matrix(size_t index) {
    if (index < NUM_NETWORK_TENSORS) return index == EMBEDDING || index == POSITIONS || index == HEAD;
    const size_t which = (index - NUM_NETWORK_TENSORS) % NUM_LAYER_TENSORS;
    return which == QKV || which == ATTENTION_OUT || which == UP || which == DOWN;
}

// The gradients of a thread: those of the caller, or where it does not share them parts of a block of its own.
struct Gradients {
    std::vector<size_t> sizes;
    bool is_tied, shares_matrices;

    Gradients(const Shape& shape, long num_threads, long most_own_bytes)
        : sizes(tensor_sizes(shape)), is_tied(shape.is_tied), shares_matrices(false) {
        shares_matrices = (num_threads - 1) * long(own_bytes()) > most_own_bytes;
    }
    bool is_own(size_t index) const { return !(shares_matrices && is_matrix(index)) && !(index == HEAD && is_tied); }
    size_t own_bytes() const {
        size_t total = 0;
        for (size_t i = 0; i < sizes.size(); i++) total += is_own(i) ? sizes[i] : 0;
        return total * sizeof(float);
    }
    std::vector<float*> in(float* block, float* const* given) const {
        std::vector<float*> found(given, given + sizes.size());
        for (size_t i = 0; block && i < sizes.size(); i++) {
            if (!is_own(i)) continue;
            if (given[i]) found[i] = block;
            block += sizes[i];
        }
        if (is_tied) found[HEAD] = found[EMBEDDING];
        return found;
    }
};

struct Plan {
    Shape shape;
    long num_threads, sequences_at_once;
    const Instructions* instructions;
    Gradients gradients;
    std::vector<float> rotary;
    std::vector<Block> memory;         // of each thread
    std::vector<Block> own_gradients;  // of each thread but the first, which adds to the caller's
    std::vector<Result> results;
};

// Calls use(tensor, first, end) for this thread's part of every tensor that has a gradient.
template <class Use> void for_part(const Plan& plan, float* const* gradients, int thread, const Use& use) {
    const std::vector<size_t>& sizes = plan.gradients.sizes;
    for (size_t i = 0; i < sizes.size(); i++)
        if (gradients[i] && !(i == HEAD && plan.shape.is_tied))
            use(i, sizes[i] * thread / plan.num_threads, sizes[i] * (thread + 1) / plan.num_threads);
}

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

// The threads that have rows of a call to compute.
long active_threads(const Plan& plan, const Rows& rows) {
    return rows.num_sequences < plan.num_threads ? rows.num_sequences : plan.num_threads;
}

// Computes the rows, each thread its own, into its gradients; without gradients, only the loss. Returns the loss.
double compute(
    Plan& plan, const float* const* weights, const std::vector<std::vector<float*>>& gradients, const Rows& rows,
    float scale
) {
    const long length = plan.shape.length, num_sequences = rows.num_sequences, active = active_threads(plan, rows);
    const long most = (num_sequences + active - 1) / active;
    const long num_rounds = (most + plan.sequences_at_once - 1) / plan.sequences_at_once;
    const bool has_gradients = !gradients.empty();
    Turns turns(active);
    pool_of(int(plan.num_threads)).run([&](int thread) {
        if (thread >= active) return;
        if (thread && has_gradients) std::memset(plan.own_gradients[thread].get(), 0, plan.gradients.own_bytes());
        const long begin = num_sequences * thread / active, end = num_sequences * (thread + 1) / active;
        const Rows part = rows.part(begin, end, length);
        plan.results[thread] = plan.instructions->add_gradients(
            {&plan.shape, weights, has_gradients ? gradients[thread].data() : nullptr, plan.rotary.data(), part,
             num_rounds, plan.sequences_at_once, scale, plan.memory[thread].get(), thread,
             plan.gradients.shares_matrices ? int(active) : 1, &turns});
    });
    double loss = 0;
    for (int thread = 0; thread < active; thread++) loss += plan.results[thread].loss;
    return loss;
}

}  // namespace

EXPORT int headrace_abi() { return 6; }

EXPORT const char* headrace_instructions(const char* wanted) { return choose(wanted).name; }

EXPORT long headrace_plan_bytes(const Shape* shape, long num_threads, long sequences_at_once, long most_own_bytes) {
    return num_threads * choose(nullptr).instructions->memory_bytes(*shape, sequences_at_once) +
           (num_threads - 1) * long(Gradients(*shape, num_threads, most_own_bytes).own_bytes());
}

EXPORT void headrace_free(Plan* plan) { delete plan; }

// frequencies: of the rotary positions, half as many as a head is wide; qwen3 only. most_own_bytes: where gradients of
// their own would take more than this, threads share those of matrices.
EXPORT Plan* headrace_plan(
    const Shape* shape, const float* frequencies, long num_threads, long sequences_at_once, long most_own_bytes,
    const char* wanted
) {
    const Instructions* instructions = choose(wanted).instructions;
    const Gradients gradients(*shape, num_threads, most_own_bytes);
    std::unique_ptr<Plan> plan(
        new Plan{*shape, num_threads, sequences_at_once, instructions, gradients, {}, {}, {}, {}}
    );
    if (frequencies) fill_rotary(*plan, frequencies);
    plan->results.resize(num_threads);
    for (long thread = 0; thread < num_threads; thread++) {
        plan->memory.push_back(zeroed(instructions->memory_bytes(*shape, sequences_at_once)));
        plan->own_gradients.push_back(zeroed(thread ? plan->gradients.own_bytes() : 0));
        if (!plan->memory.back() || !plan->own_gradients.back()) return nullptr;
    }
    return plan.release();
}

// Adds the gradients of scale x the sum of losses to `gradients`, or overwrites them; returns that loss.
EXPORT double headrace_step(
    Plan* plan, const float* const* weights, float* const* gradients, const Rows* rows, float scale, int overwrite,
    double* forward_seconds
) {
    const std::lock_guard<std::mutex> lock(one_at_a_time);
    const long active = active_threads(*plan, *rows);
    Pool& pool = pool_of(int(plan->num_threads));
    std::vector<std::vector<float*>> of_threads;
    for (int thread = 0; thread < active; thread++)
        of_threads.push_back(
            plan->gradients.in(thread ? static_cast<float*>(plan->own_gradients[thread].get()) : nullptr, gradients)
        );
    if (overwrite)
        pool.run([&](int thread) {
            for_part(*plan, gradients, thread, [&](size_t tensor, size_t first, size_t end) {
                std::memset(gradients[tensor] + first, 0, (end - first) * sizeof(float));
            });
        });
    const double loss = compute(*plan, weights, of_threads, *rows, scale);
    if (active > 1)
        pool.run([&](int thread) {
            for_part(*plan, gradients, thread, [&](size_t tensor, size_t first, size_t end) {
                if (!plan->gradients.is_own(tensor)) return;
                for (int other = 1; other < active; other++)
                    for (size_t j = first; j < end; j++) gradients[tensor][j] += of_threads[other][tensor][j];
            });
        });
    *forward_seconds = plan->results[0].forward_seconds;
    return loss;
}

// Returns scale x the sum of losses.
EXPORT double headrace_loss(Plan* plan, const float* const* weights, const Rows* rows, float scale) {
    const std::lock_guard<std::mutex> lock(one_at_a_time);
    return compute(*plan, weights, {}, *rows, scale);
}

// Replaces matrices by nearly the closest orthogonal ones; a thread takes one after the other. Returns whether there
// was enough memory.
EXPORT int headrace_orthogonalise(const Matrices* matrices, long num_matrices, long num_threads, const char* wanted) {
    const std::lock_guard<std::mutex> lock(one_at_a_time);
    const Instructions* instructions = choose(wanted).instructions;
    std::vector<Block> memory;
    for (long thread = 0; thread < num_threads; thread++) {
        memory.push_back(allocated(instructions->orthogonaliser_bytes(*matrices)));
        if (!memory.back()) return 0;
    }
    std::atomic<long> next{0};
    pool_of(int(num_threads)).run([&](int thread) {
        for (long number; (number = next.fetch_add(1)) < num_matrices;)
            instructions->orthogonalise(*matrices, number, memory[thread].get());
    });
    return 1;
}
