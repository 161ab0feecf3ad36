// Which truth value of a conditional jump leads straight to a `raise`: see Frame::raising_truth.
// Costs a walk over one message's instructions, at each tensor that decides a branch.
#include <optional>

#include "capture/interpreter/decode.h"
#include "capture/interpreter/evaluator.h"
#include "capture/interpreter/frame.h"

namespace ingot::capture {
namespace {

constexpr int kLongestMessage = 400;  // instructions

/// Whether what begins at `at` runs into a `raise`, whatever the values are.
bool raises(PyCodeObject* code, int at) {
    for (int n = 0; n < kLongestMessage; ++n) {
        const Instruction i = decode(code, at);
        switch (i.opcode) {
            case RAISE_VARARGS:
                return true;
            case JUMP_FORWARD:
                at = i.next() + i.argument;
                break;
            // What calculates a message, and the exception's own making.
            case NOP:
            case POP_TOP:
            case PUSH_NULL:
            case COPY:
            case SWAP:
            case LOAD_CONST:
            case LOAD_FAST:
            case LOAD_DEREF:
            case LOAD_CLOSURE:
            case LOAD_GLOBAL:
            case LOAD_NAME:
            case LOAD_ATTR:
            case LOAD_ASSERTION_ERROR:
            case BINARY_OP:
            case BINARY_SUBSCR:
            case UNARY_NEGATIVE:
            case COMPARE_OP:
            case IS_OP:
            case CONTAINS_OP:
            case BUILD_STRING:
            case FORMAT_VALUE:
            case BUILD_TUPLE:
            case BUILD_LIST:
            case BUILD_MAP:
            case BUILD_CONST_KEY_MAP:
            case BUILD_SLICE:
            case CALL:
#if PY_VERSION_HEX < 0x030C0000
            case LOAD_METHOD:
#else
            case BINARY_SLICE:
            case LOAD_FAST_CHECK:
            case LOAD_SUPER_ATTR:
#endif
                at = i.next();
                break;
            default:
                return false;
        }
    }
    return false;
}

}  // namespace

std::optional<bool> Frame::raising_truth() const {
    const Instruction jump = decode(code(), offset());
    bool jump_when = false;
    switch (jump.opcode) {
#if PY_VERSION_HEX < 0x030C0000
        case POP_JUMP_FORWARD_IF_TRUE:
#else
        case POP_JUMP_IF_TRUE:
#endif
            jump_when = true;
            break;
#if PY_VERSION_HEX < 0x030C0000
        case POP_JUMP_FORWARD_IF_FALSE:
#else
        case POP_JUMP_IF_FALSE:
#endif
            break;
        default:
            return std::nullopt;
    }
    const bool there = raises(code(), jump.next() + jump.argument);
    const bool here = raises(code(), jump.next());
    if (there == here) return std::nullopt;
    return there ? jump_when : !jump_when;
}

}  // namespace ingot::capture
