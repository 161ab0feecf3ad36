#include "capture/interpreter/errors.h"

namespace ingot::capture {

const Names& names() {
    static const Names table = [] {
        auto intern = [](const char* text) { return PyUnicode_InternFromString(text); };
        Names n{};
        n.aenter = intern("__aenter__");
        n.aexit = intern("__aexit__");
        n.all = intern("__all__");
        n.annotations = intern("__annotations__");
        n.build_class = intern("__build_class__");
        n.dict = intern("__dict__");
        n.enter = intern("__enter__");
        n.exit = intern("__exit__");
        n.get = intern("get");
        n.import = intern("__import__");
        n.init = intern("__init__");
        n.initializing = intern("_initializing");
        n.name = intern("name");
        n.module_name = intern("__name__");
        n.send = intern("send");
        n.spec = intern("__spec__");
        n.split = intern("split");
        n.close = intern("close");
        n.throw_ = intern("throw");
        n.call = intern("__call__");
        n.match_args = intern("__match_args__");
        n.empty = intern("");
        n.class_ = intern("__class__");
        return n;
    }();
    return table;
}

void raise_for_name(PyObject* type, const char* format, PyObject* name) {
    const char* text = PyUnicode_AsUTF8(name);
    if (text == nullptr) return;
    PyErr_Format(type, format, text);
    if (type != PyExc_NameError) return;
    // The name lets the traceback suggest others; failing to set it loses only that.
    PyObject* error = version::take_exception();
    if (PyObject_TypeCheck(error, reinterpret_cast<PyTypeObject*>(PyExc_NameError)) &&
        reinterpret_cast<PyNameErrorObject*>(error)->name == nullptr)
        (void)PyObject_SetAttr(error, names().name, name);
    version::restore_exception(error);
}

void raise_name_error(PyObject* name) {
    raise_for_name(PyExc_NameError, "name '%.200s' is not defined", name);
}

void raise_unbound_local(PyObject* name) {
    raise_for_name(PyExc_UnboundLocalError,
                   "cannot access local variable '%s' where it is not associated with a value",
                   name);
}

bool check_expandable(PyObject* function, PyObject* args) {
    if (Py_TYPE(args)->tp_iter != nullptr || PySequence_Check(args)) return true;
    PyErr_Clear();
    if (PyObject* text = _PyObject_FunctionStr(function)) {
        PyErr_Format(PyExc_TypeError, "%U argument after * must be an iterable, not %.200s", text,
                     Py_TYPE(args)->tp_name);
        Py_DECREF(text);
    }
    return false;
}

void raise_for_keywords(PyObject* function, PyObject* keywords) {
    if (PyErr_ExceptionMatches(PyExc_AttributeError)) {
        PyErr_Clear();
        if (PyObject* text = _PyObject_FunctionStr(function)) {
            PyErr_Format(PyExc_TypeError, "%U argument after ** must be a mapping, not %.200s",
                         text, Py_TYPE(keywords)->tp_name);
            Py_DECREF(text);
        }
        return;
    }
    if (!PyErr_ExceptionMatches(PyExc_KeyError)) return;
    PyObject* key = version::take_duplicate_key();
    if (key == nullptr) return;
    if (PyObject* text = _PyObject_FunctionStr(function)) {
        PyErr_Format(PyExc_TypeError, "%U got multiple values for keyword argument '%S'", text,
                     key);
        Py_DECREF(text);
    }
    Py_DECREF(key);
}

namespace {

bool is_exception_class(PyObject* type) {
    if (PyExceptionClass_Check(type)) return true;
    PyErr_SetString(PyExc_TypeError,
                    "catching classes that do not inherit from BaseException is not allowed");
    return false;
}

bool is_no_group(PyObject* type) {
    int is_group = PyObject_IsSubclass(type, PyExc_BaseExceptionGroup);
    if (is_group > 0)
        PyErr_SetString(PyExc_TypeError,
                        "catching ExceptionGroup with except* is not allowed. Use except instead.");
    return is_group == 0;
}

template <class Check>
bool for_each_type(PyObject* type, Check check) {
    if (!PyTuple_Check(type)) return check(type);
    for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(type); ++i)
        if (!check(PyTuple_GET_ITEM(type, i))) return false;
    return true;
}

}  // namespace

bool check_catchable(PyObject* type, bool star) {
    return for_each_type(type, is_exception_class) && (!star || for_each_type(type, is_no_group));
}

}  // namespace ingot::capture
