// CPython's internal structs, for the interpreter's own files and no others: the frame, the thread
// state and the evaluation state. What differs between versions is in py311.h and py312.h. Stands
// at the bottom of the interpreter.
#pragma once
#ifndef Py_BUILD_CORE
#error "these files are compiled with Py_BUILD_CORE defined, see CMakeLists.txt"
#endif
#include <Python.h>
// C++20 has no <stdatomic.h>; without it the internal headers use the compiler's own atomics, whose
// types have the same layout.
#undef HAVE_STD_ATOMIC
#include <frameobject.h>
#include <opcode.h>

#include "internal/pycore_ceval.h"
#include "internal/pycore_frame.h"
#include "internal/pycore_interp.h"
#include "internal/pycore_object.h"

extern "C" {
extern const uint8_t _PyOpcode_Caches[256];
extern const uint8_t _PyOpcode_Deopt[256];
}

#include "capture/interpreter/common.h"
#if PY_VERSION_HEX >= 0x030C0000 && PY_VERSION_HEX < 0x030D0000
#include "capture/interpreter/py312.h"
#elif PY_VERSION_HEX >= 0x030B0000 && PY_VERSION_HEX < 0x030C0000
#include "capture/interpreter/py311.h"
#else
#error "the interpreter knows CPython 3.11 and 3.12"
#endif
