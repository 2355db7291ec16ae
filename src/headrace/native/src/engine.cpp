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
    return Orthogonaliser(matrices.rows, matrices.columns, nullptr).bytes;
}

static void orthogonalise(const Matrices& matrices, long number, void* memory) {
    bfloat16* first = (bfloat16*)matrices.data + number * matrices.rows * matrices.columns;
    Orthogonaliser(matrices.rows, matrices.columns, memory).run(first, matrices.polynomials, matrices.num_polynomials);
}

}  // namespace ISA

extern const Instructions TABLE(ISA);
const Instructions TABLE(ISA) = {
    ISA::memory_bytes, ISA::add_gradients, ISA::orthogonaliser_bytes, ISA::orthogonalise
};
