// The code for one instruction set, as a table that the dispatcher picks from: the whole pass in both number formats,
// and the products of the optimizer.
#include "blocks.h"
#include "orthogonal.h"

#define NAMED(prefix, isa) prefix##isa
#define TABLE(isa) NAMED(instructions_, isa)

namespace ISA {

static long memory_bytes(const Shape& shape, long sequences_at_once) {
    if (shape.is_bfloat16) return Memory<bfloat16>(shape, sequences_at_once, nullptr).bytes;
    return Memory<float>(shape, sequences_at_once, nullptr).bytes;
}

static Result add_gradients(const Task& task) {
    return task.shape->is_bfloat16 ? Pass<bfloat16>(task).run() : Pass<float>(task).run();
}

static long orthogonaliser_bytes(const Matrices& matrices) {
    if (matrices.is_bfloat16) return Orthogonaliser<bfloat16>(matrices, nullptr).bytes;
    return Orthogonaliser<float>(matrices, nullptr).bytes;
}

static void orthogonalise(const Matrices& matrices, long number, void* memory) {
    if (matrices.is_bfloat16)
        Orthogonaliser<bfloat16>(matrices, memory).run(number);
    else
        Orthogonaliser<float>(matrices, memory).run(number);
}

}  // namespace ISA

extern const Instructions TABLE(ISA);
const Instructions TABLE(ISA) = {
    ISA::memory_bytes, ISA::add_gradients, ISA::orthogonaliser_bytes, ISA::orthogonalise
};
