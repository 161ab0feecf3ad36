// See dynamo_hook.h.
#include "capture/interpreter/dynamo_hook.h"

#include <dlfcn.h>

namespace ingot::capture {
namespace {

/// What PyTorch has for it: `set_eval_frame`, which switches a thread and counts those that are on
/// (None: off, False: compiles nothing), and what only switches, without counting.
struct Switches {
    PyObject* counted = nullptr;
    void (*uncounted)(PyObject*) = nullptr;
};

const Switches* switches() {
    static Switches found;
    if (found.counted != nullptr) return &found;
    static PyObject* const name = PyUnicode_InternFromString("torch._C._dynamo.eval_frame");
    PyObject* module = PyDict_GetItemWithError(PyImport_GetModuleDict(), name);
    if (module == nullptr) return nullptr;
    // libtorch_python is among the libraries of the process, for this one is linked with it.
    void* address = dlsym(RTLD_DEFAULT, "eval_frame_callback_set");
    if (address == nullptr) return nullptr;
    found.uncounted = reinterpret_cast<void (*)(PyObject*)>(address);
    found.counted = PyObject_GetAttrString(module, "set_eval_frame");
    return found.counted != nullptr ? &found : nullptr;
}

/// A frame may be about to raise.
class KeepsError {
  public:
    KeepsError() { PyErr_Fetch(&type_, &value_, &traceback_); }
    ~KeepsError() { PyErr_Restore(type_, value_, traceback_); }
    KeepsError(const KeepsError&) = delete;
    KeepsError& operator=(const KeepsError&) = delete;

  private:
    PyObject *type_ = nullptr, *value_ = nullptr, *traceback_ = nullptr;
};

/// What is switched on has a reference; the function that only switches leaves that to its caller.
void exchange_uncounted(const Switches& s, PyObject* from, PyObject* to) {
    Py_INCREF(to);
    s.uncounted(to);
    Py_DECREF(from);
}

}  // namespace

void DynamoHook::hold() {
    const KeepsError kept;
    const Switches* s = switches();
    PyObject* before = s != nullptr ? PyObject_CallOneArg(s->counted, Py_None) : nullptr;
    PyObject* off = before != nullptr ? PyObject_CallOneArg(s->counted, Py_False) : nullptr;
    if (off == nullptr) {
        PyErr_Clear();
        Py_XDECREF(before);
        return;
    }
    Py_DECREF(off);
    exchange_uncounted(*s, Py_False, Py_None);
    // Off as before, which counts nothing, for the flag that tells PyTorch whether it is.
    if (PyObject* again = PyObject_CallOneArg(s->counted, Py_None); again != nullptr)
        Py_DECREF(again);
    else
        PyErr_Clear();
    before_ = before;
}

void DynamoHook::release() {
    if (before_ == nullptr) return;
    const KeepsError kept;
    const Switches* s = switches();
    exchange_uncounted(*s, Py_None, Py_False);
    PyObject* held = PyObject_CallOneArg(s->counted, before_);
    if (held == nullptr) PyErr_Clear();
    Py_XDECREF(held);
    Py_CLEAR(before_);
}

}  // namespace ingot::capture
