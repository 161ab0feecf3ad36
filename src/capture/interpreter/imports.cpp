// Imports.
#include "capture/interpreter/errors.h"
#include "capture/interpreter/observe.h"

namespace ingot::capture {

namespace {

bool is_initializing(PyObject* spec) {
    PyObject* value = nullptr;
    if (spec == nullptr || _PyObject_LookupAttr(spec, names().initializing, &value) <= 0) {
        PyErr_Clear();
        return false;
    }
    int truth = PyObject_IsTrue(value);
    Py_DECREF(value);
    if (truth < 0) PyErr_Clear();
    return truth > 0;
}

/// Raises the ImportError of `from module import key`; `package` is the module's name or nullptr.
void raise_cannot_import(PyObject* module, PyObject* key, PyObject* package) {
    PyObject* path = PyModule_GetFilenameObject(module);
    PyObject* shown =
        package != nullptr ? Py_NewRef(package) : PyUnicode_FromString("<unknown module name>");
    if (shown == nullptr) {
        Py_XDECREF(path);
        return;
    }
    PyObject* message;
    if (path == nullptr || !PyUnicode_Check(path)) {
        PyErr_Clear();
        message =
            PyUnicode_FromFormat("cannot import name %R from %R (unknown location)", key, shown);
        version::raise_import_error(message, package, nullptr, key);
    } else {
        PyObject* spec = PyObject_GetAttr(module, names().spec);
        const char* format =
            is_initializing(spec)
                ? "cannot import name %R from partially initialized module %R (most likely due to a"
                  " circular import) (%S)"
                : "cannot import name %R from %R (%S)";
        Py_XDECREF(spec);
        message = PyUnicode_FromFormat(format, key, shown, path);
        version::raise_import_error(message, package, path, key);
    }
    Py_XDECREF(message);
    Py_DECREF(shown);
    Py_XDECREF(path);
}

/// module.key, or the submodule of that name that is being imported in a circle.
PyObject* import_from_module(PyObject* module, PyObject* key) {
    PyObject* value;
    if (_PyObject_LookupAttr(module, key, &value) != 0) return value;
    PyObject* package = PyObject_GetAttr(module, names().module_name);
    if (package != nullptr && PyUnicode_Check(package)) {
        PyObject* full_name = PyUnicode_FromFormat("%U.%U", package, key);
        value = full_name != nullptr ? PyImport_GetModule(full_name) : nullptr;
        bool missing = full_name != nullptr && value == nullptr && !PyErr_Occurred();
        Py_XDECREF(full_name);
        if (!missing) {
            Py_DECREF(package);
            return value;
        }
    } else {
        Py_CLEAR(package);
    }
    raise_cannot_import(module, key, package);
    Py_XDECREF(package);
    return nullptr;
}

/// Raises the error of a name in `__all__` (or `__dict__`, `plain`) that is no string.
void raise_not_a_name(PyObject* module, PyObject* key, bool plain) {
    PyObject* module_name = PyObject_GetAttr(module, names().module_name);
    if (module_name == nullptr) return;
    if (!PyUnicode_Check(module_name))
        PyErr_Format(PyExc_TypeError, "module __name__ must be a string, not %.100s",
                     Py_TYPE(module_name)->tp_name);
    else
        PyErr_Format(PyExc_TypeError, "%s in %U.%s must be str, not %.100s", plain ? "Key" : "Item",
                     module_name, plain ? "__dict__" : "__all__", Py_TYPE(key)->tp_name);
    Py_DECREF(module_name);
}

/// Copies one public name; false with the error set.
bool copy_name(PyObject* module, PyObject* key, bool plain, PyObject* mapping) {
    if (!PyUnicode_Check(key)) {
        raise_not_a_name(module, key, plain);
        return false;
    }
    if (plain && PyUnicode_GET_LENGTH(key) > 0 && PyUnicode_READ_CHAR(key, 0) == '_') return true;
    PyObject* value = PyObject_GetAttr(module, key);
    if (value == nullptr) return false;
    int failure = PyDict_CheckExact(mapping) ? PyDict_SetItem(mapping, key, value)
                                             : PyObject_SetItem(mapping, key, value);
    Py_DECREF(value);
    return failure == 0;
}

bool copy_names(PyObject* module, PyObject* mapping) {
    PyObject *all, *dict;
    if (_PyObject_LookupAttr(module, names().all, &all) < 0) return false;
    bool plain = all == nullptr;
    if (plain) {
        if (_PyObject_LookupAttr(module, names().dict, &dict) < 0) return false;
        if (dict == nullptr) {
            PyErr_SetString(PyExc_ImportError,
                            "from-import-* object has no __dict__ and no __all__");
            return false;
        }
        all = PyMapping_Keys(dict);
        Py_DECREF(dict);
        if (all == nullptr) return false;
    }
    bool done = true;
    for (Py_ssize_t i = 0; done; ++i) {
        PyObject* key = PySequence_GetItem(all, i);
        if (key == nullptr) {
            done = PyErr_ExceptionMatches(PyExc_IndexError) != 0;
            if (done) PyErr_Clear();
            break;
        }
        done = copy_name(module, key, plain, mapping);
        Py_DECREF(key);
    }
    Py_DECREF(all);
    return done;
}

}  // namespace

Step Evaluator::import_name(int index) {
    PyObject* from_list = top();
    PyObject* level = top(2);
    PyObject* module_name = name(index);
    PyObject* operands[] = {frame_->f_globals, from_list, level};
    PyObject* result = nullptr;
    bool done =
        perform({Operation::import_name, 0, operands, module_name}, &result, [&]() -> PyObject* {
            PyObject* import = PyDict_GetItemWithError(frame_->f_builtins, names().import);
            if (import == nullptr) {
                if (!PyErr_Occurred()) PyErr_SetString(PyExc_ImportError, "__import__ not found");
                return nullptr;
            }
            Py_INCREF(import);
            PyObject* locals = frame_->f_locals != nullptr ? frame_->f_locals : Py_None;
            PyObject* arguments[] = {nullptr, module_name, frame_->f_globals,
                                     locals,  from_list,   level};
            PyObject* module = PyObject_Vectorcall(import, arguments + 1,
                                                   5 | PY_VECTORCALL_ARGUMENTS_OFFSET, nullptr);
            Py_DECREF(import);
            return module;
        });
    if (!done) return failed();
    replace(2, result);
    return Step::next;
}

Step Evaluator::import_from(int index) {
    PyObject* result = nullptr;
    bool done = perform({Operation::import_from, 0, {&top(), 1}, name(index)}, &result,
                        [&] { return import_from_module(top(), name(index)); });
    return push_result(done, result);
}

Step Evaluator::import_all(PyObject* module) {
    PyFrameObject* object = PyEval_GetFrame();
    if (object == nullptr || PyFrame_FastToLocalsWithError(object) < 0) return Step::error;
    PyObject* mapping = frame_->f_locals;
    if (mapping == nullptr) {
        PyErr_SetString(PyExc_SystemError, "no locals found during 'import *'");
        return Step::error;
    }
    bool done = perform_effect({Operation::import_star, 0, {&top(), 1}},
                               [=] { return copy_names(module, mapping); });
    PyFrame_LocalsToFast(object, 0);
    return done ? Step::next : failed();
}

Step Evaluator::import_star(int) {
    Step step = import_all(top());
    if (step == Step::next) drop(1);
    return step;
}

}  // namespace ingot::capture
