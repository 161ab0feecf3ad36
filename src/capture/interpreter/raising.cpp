// Which truth value of a conditional jump leads straight to a `raise`: see Frame::raising_truth.
// Costs a walk over one message's instructions, at each tensor that decides a branch.
#include <optional>

#include "capture/interpreter/cpython.h"
#include "capture/interpreter/evaluator.h"
#include "capture/interpreter/frame.h"

namespace ingot::capture {
namespace {

constexpr int kLongestMessage = 400;  // instructions

struct Instruction {
    int opcode = 0;
    int argument = 0;
    int next = 0;  // where the one behind it begins
};

class Code {
  public:
    explicit Code(PyCodeObject* code)
        : units_(_PyCode_CODE(code)), size_(static_cast<int>(Py_SIZE(code))) {}

    /// The instruction that begins at `at`, behind its prefixes.
    std::optional<Instruction> read(int at) const {
        Instruction i;
        do {
            if (at < 0 || at >= size_) return std::nullopt;
            i.opcode = _PyOpcode_Deopt[version::opcode_of(units_[at])];
            i.argument = (i.argument << 8) | version::argument_of(units_[at]);
            ++at;
        } while (i.opcode == EXTENDED_ARG);
        i.next = at + _PyOpcode_Caches[i.opcode];
        return i;
    }

    /// Whether what begins at `at` runs into a `raise`, whatever the values are.
    bool raises(int at) const {
        for (int n = 0; n < kLongestMessage; ++n) {
            const std::optional<Instruction> i = read(at);
            if (!i) return false;
            switch (i->opcode) {
                case RAISE_VARARGS:
                    return true;
                case JUMP_FORWARD:
                    at = i->next + i->argument;
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
                case KW_NAMES:
                case CALL:
#if PY_VERSION_HEX < 0x030C0000
                case PRECALL:
                case LOAD_METHOD:
#else
                case BINARY_SLICE:
                case LOAD_FAST_CHECK:
                case LOAD_SUPER_ATTR:
#endif
                    at = i->next;
                    break;
                default:
                    return false;
            }
        }
        return false;
    }

  private:
    _Py_CODEUNIT* units_;
    int size_;
};

}  // namespace

std::optional<bool> Frame::raising_truth() const {
    const Code code(this->code());
    const std::optional<Instruction> jump = code.read(offset());
    if (!jump) return std::nullopt;
    bool jump_when = false;
    switch (jump->opcode) {
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
    const bool there = code.raises(jump->next + jump->argument), here = code.raises(jump->next);
    if (there == here) return std::nullopt;
    return there ? jump_when : !jump_when;
}

}  // namespace ingot::capture
