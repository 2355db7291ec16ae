// The code for one instruction set: both number formats of the whole pass, as a table that the dispatcher picks from.
#include "blocks.h"

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

}  // namespace ISA

extern const Instructions TABLE(ISA);
const Instructions TABLE(ISA) = {ISA::memory_bytes, ISA::add_gradients};
