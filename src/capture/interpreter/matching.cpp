// `match` statements.
#include <utility>

#include "capture/interpreter/errors.h"
#include "capture/interpreter/observe.h"

namespace ingot::capture {

namespace {

/// A reference that is released at the end of the block.
struct Owned {
    PyObject* value;
    explicit Owned(PyObject* reference) : value(reference) {}
    Owned(const Owned&) = delete;
    Owned& operator=(const Owned&) = delete;
    ~Owned() { Py_XDECREF(value); }
    PyObject* release() { return std::exchange(value, nullptr); }
};

/// Adds `key` to the set of those seen; 1: it was there already; below zero: error.
int see(PyObject* seen, PyObject* key) {
    int before = PySet_Contains(seen, key);
    return before != 0 ? before : PySet_Add(seen, key);
}

/// subject.key for a class pattern; nullptr without an error when there is none.
PyObject* pattern_attribute(PyObject* subject, PyObject* type, PyObject* key, PyObject* seen) {
    int again = see(seen, key);
    if (again > 0)
        PyErr_Format(PyExc_TypeError, "%s() got multiple sub-patterns for attribute %R",
                     reinterpret_cast<PyTypeObject*>(type)->tp_name, key);
    if (again != 0) return nullptr;
    PyObject* value = PyObject_GetAttr(subject, key);
    if (value == nullptr && PyErr_ExceptionMatches(PyExc_AttributeError)) PyErr_Clear();
    return value;
}

bool append_attribute(PyObject* values, PyObject* subject, PyObject* type, PyObject* key,
                      PyObject* seen) {
    Owned value(pattern_attribute(subject, type, key, seen));
    return value.value != nullptr && PyList_Append(values, value.value) == 0;
}

/// The attributes for the positional patterns of `type(...)`.
bool match_positional(PyObject* values, PyObject* subject, PyObject* type, Py_ssize_t count,
                      PyObject* seen) {
    const char* type_name = reinterpret_cast<PyTypeObject*>(type)->tp_name;
    Owned match_args(PyObject_GetAttr(type, names().match_args));
    bool matches_self = false;
    if (match_args.value == nullptr) {
        if (!PyErr_ExceptionMatches(PyExc_AttributeError)) return false;
        PyErr_Clear();
        match_args.value = PyTuple_New(0);
        if (match_args.value == nullptr) return false;
        matches_self =
            PyType_HasFeature(reinterpret_cast<PyTypeObject*>(type), _Py_TPFLAGS_MATCH_SELF) != 0;
    } else if (!PyTuple_CheckExact(match_args.value)) {
        PyErr_Format(PyExc_TypeError, "%s.__match_args__ must be a tuple (got %s)", type_name,
                     Py_TYPE(match_args.value)->tp_name);
        return false;
    }
    Py_ssize_t allowed = matches_self ? 1 : PyTuple_GET_SIZE(match_args.value);
    if (allowed < count) {
        PyErr_Format(PyExc_TypeError, "%s() accepts %d positional sub-pattern%s (%d given)",
                     type_name, static_cast<int>(allowed), allowed == 1 ? "" : "s",
                     static_cast<int>(count));
        return false;
    }
    if (matches_self) return PyList_Append(values, subject) == 0;
    for (Py_ssize_t i = 0; i < count; ++i) {
        PyObject* key = PyTuple_GET_ITEM(match_args.value, i);
        if (!PyUnicode_CheckExact(key)) {
            PyErr_Format(PyExc_TypeError, "__match_args__ elements must be strings (got %s)",
                         Py_TYPE(key)->tp_name);
            return false;
        }
        if (!append_attribute(values, subject, type, key, seen)) return false;
    }
    return true;
}

/// A tuple of the attributes that the patterns of `type(...)` ask for; nullptr without an error
/// when the subject does not match.
PyObject* match_by_class(PyObject* subject, PyObject* type, Py_ssize_t count, PyObject* keywords) {
    if (!PyType_Check(type)) {
        PyErr_SetString(PyExc_TypeError, "called match pattern must be a type");
        return nullptr;
    }
    if (PyObject_IsInstance(subject, type) <= 0) return nullptr;
    Owned seen(PySet_New(nullptr));
    Owned values(PyList_New(0));
    if (seen.value == nullptr || values.value == nullptr) return nullptr;
    if (count > 0 && !match_positional(values.value, subject, type, count, seen.value))
        return nullptr;
    for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(keywords); ++i)
        if (!append_attribute(values.value, subject, type, PyTuple_GET_ITEM(keywords, i),
                              seen.value))
            return nullptr;
    return PyList_AsTuple(values.value);
}

/// A tuple of the values of `keys`, or None when one is missing; new references.
PyObject* match_by_keys(PyObject* mapping, PyObject* keys) {
    Py_ssize_t count = PyTuple_GET_SIZE(keys);
    if (count == 0) return PyTuple_New(0);
    // get(key, default) finds a value without errors and without making missing ones.
    Owned get(PyObject_GetAttr(mapping, names().get));
    if (get.value == nullptr) return nullptr;
    Owned seen(PySet_New(nullptr));
    Owned missing(PyObject_CallNoArgs(reinterpret_cast<PyObject*>(&PyBaseObject_Type)));
    Owned values(PyTuple_New(count));
    if (seen.value == nullptr || missing.value == nullptr || values.value == nullptr)
        return nullptr;
    for (Py_ssize_t i = 0; i < count; ++i) {
        PyObject* key = PyTuple_GET_ITEM(keys, i);
        int again = see(seen.value, key);
        if (again > 0)
            PyErr_Format(PyExc_ValueError, "mapping pattern checks duplicate key (%R)", key);
        if (again != 0) return nullptr;
        PyObject* arguments[] = {nullptr, key, missing.value};
        PyObject* value = PyObject_Vectorcall(get.value, arguments + 1,
                                              2 | PY_VECTORCALL_ARGUMENTS_OFFSET, nullptr);
        if (value == nullptr) return nullptr;
        if (value == missing.value) {
            Py_DECREF(value);
            return Py_NewRef(Py_None);
        }
        PyTuple_SET_ITEM(values.value, i, value);
    }
    return values.release();
}

}  // namespace

Step Evaluator::match_class(int count) {
    PyObject* operands[] = {top(3), top(2), top()};
    PyObject* result = nullptr;
    bool done = perform({Operation::match_class, count, operands}, &result, [&] {
        PyObject* attributes = match_by_class(operands[0], operands[1], count, operands[2]);
        if (attributes == nullptr && !PyErr_Occurred()) attributes = Py_NewRef(Py_None);
        return attributes;
    });
    if (!done) return failed();
    drop(3);
    push(result);
    return Step::next;
}

Step Evaluator::match_mapping(int) {
    bool matches = (Py_TYPE(top())->tp_flags & Py_TPFLAGS_MAPPING) != 0;
    PyObject* result = nullptr;
    bool done = perform({Operation::match_kind, 0, {&top(), 1}}, &result,
                        [=] { return Py_NewRef(matches ? Py_True : Py_False); });
    return push_result(done, result);
}

Step Evaluator::match_sequence(int) {
    bool matches = (Py_TYPE(top())->tp_flags & Py_TPFLAGS_SEQUENCE) != 0;
    PyObject* result = nullptr;
    bool done = perform({Operation::match_kind, 1, {&top(), 1}}, &result,
                        [=] { return Py_NewRef(matches ? Py_True : Py_False); });
    return push_result(done, result);
}

Step Evaluator::match_keys(int) {
    PyObject* result = nullptr;
    bool done = perform({Operation::match_keys, 0, {sp_ - 2, 2}}, &result,
                        [this] { return match_by_keys(top(2), top()); });
    return push_result(done, result);
}

}  // namespace ingot::capture
