// What calling a C function means for a recording: one table, by module or class and name.
//
// C code reads and writes objects without the interpreter seeing it, so only functions that the
// table knows are called while recording. Anything else is a break.
#pragma once
#include <Python.h>

#include <cstdint>
#include <string>

namespace ingot::capture {

enum class CallKind : std::uint8_t {
    Unknown,  // a break
    Torch,    // runs operators: reads containers among its arguments to their depth
    Pure,     // result depends on the arguments and what is in them, one level deep
    Deep,     // likewise, all levels (comparisons, sorted, ...)
    Shallow,  // does not look into its arguments
    Mutator,  // a method that changes its list, dict or set
    GetAttr,  // getattr(object, name[, default]), hasattr
    SetAttr,  // setattr, delattr and object's own methods for them
    GetItem,  // dict.get, dict.__getitem__, list.__getitem__, operator.getitem
    SetItem,  // dict.__setitem__, dict.__delitem__, dict.setdefault, dict.pop with a key
    Data,     // needs the data of a tensor: a break
    Modes,    // sets a mode of PyTorch: followed through Modes
    Vars,     // vars(object)
    State,    // gives what is in an object (pickling, copying)
    Cached,   // functools.lru_cache: called unrecorded, and again by the guards
    Warning,  // warnings.warn: repeated at each replay
    Frames,   // looks at the frames that run: only CPython does that
    Level,    // of torch.func: enters or leaves a level, wraps tensors for one, or asks for it
};

struct CallClass {
    CallKind kind = CallKind::Unknown;
    std::string name;  // for messages
};

/// What kind of call this C callable is. `callable` is no Python function, class or bound method of
/// a Python function.
CallClass classify(PyObject* callable);
/// Likewise for calling a class whose instances are made by C code.
CallKind classify_class(PyTypeObject* type);
/// Attributes of tensors: whether C code gives them from metadata or by operators.
bool is_known_tensor_attribute(PyObject* name);

/// Whether a built-in function, a class, or a tensor's method written in Python turns a tensor into
/// text or a number of Python's.
bool needs_data(const std::string& name);
bool class_needs_data(PyTypeObject* type);
bool method_needs_data(PyObject* function);

}  // namespace ingot::capture
