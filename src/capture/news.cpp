// See news.h.
#include "capture/news.h"

#include "bindings/lock.h"
#include "capture/captured.h"
#include "capture/interpreter/observer.h"
#include "capture/recording.h"

namespace ingot::capture {
namespace {

Ref module() { return Ref::steal(PyImport_ImportModule("ingot._news")); }

/// What the package's function gives for (name, place, reason, places...), or nothing with the
/// error set.
Ref ask(const char* function, const RecordingContext& context, const std::string& reason,
        const std::vector<CodePlace>& places, PyObject* more) {
    const Ref package = module();
    const Ref frames = Ref::steal(as_python(places));
    if (!package || !frames) return {};
    return Ref::steal(PyObject_CallMethod(package.get(), function, "sssOO", context.name.c_str(),
                                          context.place.c_str(), reason.c_str(), frames.get(),
                                          more));
}

PyObject* error_of(const char* function, const RecordingContext& context, const std::string& reason,
                   const std::vector<CodePlace>& places) {
    const Quiet quiet;
    const bindings::Pending pending;
    Ref error = ask(function, context, reason, places, Py_None);
    if (error && PyExceptionInstance_Check(error.get())) return error.release();
    bindings::Pending failure;
    PyObject* other = failure.exception();
    return other != nullptr ? Py_NewRef(other)
                            : PyObject_CallFunction(PyExc_RuntimeError, "s", reason.c_str());
}

}  // namespace

void tell(const RecordingContext& context, const char* kind, const std::string& reason,
          const std::vector<CodePlace>& places, const std::vector<std::string>& details) {
    const Quiet quiet;
    const bindings::Pending pending;
    const Ref more = Ref::steal(PyList_New(0));
    for (const std::string& text : details)
        if (const Ref one = Ref::steal(PyUnicode_FromString(text.c_str())); more && one)
            PyList_Append(more.get(), one.get());
    if (!more || !ask(kind, context, reason, places, more.get())) PyErr_Clear();
}

bool tells_guards() {
    const Quiet quiet;
    const bindings::Pending pending;
    const Ref package = module();
    const Ref wanted =
        package ? Ref::steal(PyObject_CallMethod(package.get(), "guards_wanted", nullptr)) : Ref();
    if (!wanted) PyErr_Clear();
    return wanted.get() == Py_True;
}

void tell_limit(const RecordingContext& context, const std::string& failure) {
    tell(context, "limit", failure, {}, {std::to_string(context.limit)});
}

PyObject* unsupported(const RecordingContext& context, const std::string& reason,
                      const std::vector<CodePlace>& places) {
    return error_of("unsupported", context, reason, places);
}

PyObject* limit_error(const RecordingContext& context, const std::string& failure) {
    return error_of("limit_error", context,
                    "recompile_limit reached (" + std::to_string(context.limit) +
                        "); the last guard that failed: " + failure,
                    {});
}

PyObject* recompile_error(const RecordingContext& context, const std::string& failure) {
    return error_of("recompile_error", context, failure, {});
}

PyObject* raise_error(PyObject* error) {
    PyErr_SetObject(reinterpret_cast<PyObject*>(Py_TYPE(error)), error);
    Py_DECREF(error);
    return nullptr;
}

}  // namespace ingot::capture
