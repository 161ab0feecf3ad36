// Whether a frame's instruction stands in a loop: a jump backwards spans it. Costs a walk over the
// code, where a recording breaks.
#include "capture/interpreter/decode.h"
#include "capture/interpreter/evaluator.h"
#include "capture/interpreter/frame.h"

namespace ingot::capture {
namespace {

bool jumps_back(int opcode) {
    switch (opcode) {
        case JUMP_BACKWARD:
#if PY_VERSION_HEX < 0x030C0000
        case POP_JUMP_BACKWARD_IF_FALSE:
        case POP_JUMP_BACKWARD_IF_TRUE:
        case POP_JUMP_BACKWARD_IF_NONE:
        case POP_JUMP_BACKWARD_IF_NOT_NONE:
#endif
            return true;
        default:
            return false;
    }
}

}  // namespace

bool Frame::in_loop() const {
    const int here = instruction();
    const auto size = static_cast<int>(Py_SIZE(code()));
    for (int at = 0; at < size;) {
        const Instruction i = decode(code(), at);
        if (jumps_back(i.opcode) && here <= i.at && i.next() - i.argument <= here) return true;
        at = i.next();
    }
    return false;
}

}  // namespace ingot::capture
