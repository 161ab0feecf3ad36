/* CPython's tables of specialised instructions and inline caches, which its library does not export but
   its headers define. In C, because the headers initialise them in a way that C++ does not know. */
#define Py_BUILD_CORE 1
#define NEED_OPCODE_TABLES 1
#include <Python.h>
#include <stdint.h>

#include "internal/pycore_opcode.h"
