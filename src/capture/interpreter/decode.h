// Reading the instructions of a code object: their general form, without prefixes. Stands above
// cpython.h, for what looks at code that is not being executed.
#pragma once
#include "capture/interpreter/cpython.h"

namespace ingot::capture {

struct Instruction {
    int at;  // behind its prefixes
    int opcode;
    int argument;

    int next() const { return at + 1 + _PyOpcode_Caches[opcode]; }
};

/// The instruction that begins at `offset`, prefixes skipped.
inline Instruction decode(PyCodeObject* code, int offset) {
    _Py_CODEUNIT* units = _PyCode_CODE(code);
    int argument = 0;
    for (int at = offset;; ++at) {
        int opcode = _PyOpcode_Deopt[_Py_OPCODE(units[at])];
        argument = argument << 8 | _Py_OPARG(units[at]);
        if (opcode == EXTENDED_ARG) continue;
        if (!version::is_call_prefix(opcode)) return {at, opcode, argument};
        at += _PyOpcode_Caches[opcode];
        argument = 0;
    }
}

}  // namespace ingot::capture
